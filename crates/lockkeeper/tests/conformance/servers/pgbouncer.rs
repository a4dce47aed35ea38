//! A real PgBouncer in front of a PostgreSQL.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::postgres::{Postgres, user};
use super::{Process, find_program, free_address};

pub(crate) struct PgBouncer {
    _folder: TempDir,
    pub(crate) address: SocketAddr,
    _process: Process,
}

impl PgBouncer {
    pub(crate) fn start(postgres: &Postgres, pool_mode: &str) -> PgBouncer {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        let users = folder.path().join("users");
        let settings = folder.path().join("pgbouncer.ini");
        std::fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let text = format!(
            "[databases]\npostgres = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {pool_mode}\ndefault_pool_size = 10\n",
            postgres.address.port(),
            address.port(),
            users.display(),
        );
        std::fs::write(&settings, text).unwrap();
        for path in [folder.path(), &users, &settings] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(path, mode).unwrap();
        }
        let log = folder.path().join("log");
        let program = find_program("pgbouncer", &["/usr/sbin"]);
        let settings = settings.to_string_lossy().into_owned();
        let process = Process::start_as(user(), &program, &[&settings], &log).until_it_listens(address, &log);
        PgBouncer { _folder: folder, address, _process: process }
    }

    pub(crate) fn url(&self, level: &str) -> String {
        format!("postgres://postgres@{}/postgres?level={level}", self.address)
    }
}
