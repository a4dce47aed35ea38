//! PgBouncer in front of PostgreSQL.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use crate::error::ServerError;
use crate::free_address;
use crate::postgres::{Postgres, user};
use crate::process::{Process, Program, find_program, folder};

/// A PgBouncer.
#[derive(Debug)]
pub struct PgBouncer {
    _folder: TempDir,
    /// The address for clients.
    pub address: SocketAddr,
    _process: Process,
}

impl PgBouncer {
    /// Starts one with a pool mode and a number of connections to the server.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn start(postgres: &Postgres, pool_mode: &str, connections: u16) -> Result<PgBouncer, ServerError> {
        let program = find_program("pgbouncer", &["/usr/sbin"], "apt-get install pgbouncer")?;
        let folder = folder()?;
        let address = free_address(6432);
        let users = folder.path().join("users");
        let settings = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\npostgres = host={} port={}\n[pgbouncer]\nlisten_addr = {}\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {pool_mode}\n\
             default_pool_size = {connections}\n",
            postgres.address.ip(),
            postgres.address.port(),
            address.ip(),
            address.port(),
            users.display(),
        );
        let write = || {
            std::fs::write(&users, "\"postgres\" \"\"\n")?;
            std::fs::write(&settings, text)?;
            for path in [folder.path(), &users, &settings] {
                std::fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
            }
            Ok(())
        };
        write().map_err(ServerError::io("failed to write the configuration of PgBouncer"))?;
        let mut program = Program::new(program, &[settings.to_string_lossy()], folder.path().join("log"));
        program.user = user();
        let mut process = program.start()?;
        process.wait_until_listening(address)?;
        Ok(PgBouncer { _folder: folder, address, _process: process })
    }
}
