//! A PostgreSQL of its own. A fresh data folder is made once and copied for each test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::{Process, Site, find_program, free_address};

const ELSEWHERE: &[&str] = &[
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
];

pub(crate) struct Postgres {
    folder: TempDir,
    pub(crate) address: SocketAddr,
    process: Option<Process>,
    level: &'static str,
}

/// PostgreSQL does not run as root: the package brings a user of its own.
pub(crate) fn user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("postgres")
}

fn succeed(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn give_to_user(folder: &Path) {
    if let Some(user) = user() {
        let mut command = Command::new("chown");
        command.args(["-R", user]).arg(folder);
        succeed(command);
    }
}

/// A data folder as `initdb` makes it. It takes seconds, so it is kept beside the build for later runs.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let initdb = find_program("initdb", ELSEWHERE);
        let mut version = Command::new(&initdb);
        version.arg("--version");
        let version: String = succeed(version).chars().filter(|letter| letter.is_alphanumeric()).collect();
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(version);
        if kept.join("PG_VERSION").exists() {
            return kept;
        }
        let folder = tempfile::tempdir().unwrap();
        give_to_user(folder.path());
        let data = folder.path().join("data");
        let mut command = match user() {
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", user, "--regid", user, "--clear-groups", &initdb]);
                command
            }
            None => Command::new(initdb),
        };
        command
            .args(["--no-sync", "--auth", "trust", "--username", "postgres", "--encoding", "UTF8", "-D"])
            .arg(&data);
        command.current_dir("/");
        succeed(command);
        // Whoever comes second at the same time has the same.
        let new = kept.with_extension(std::process::id().to_string());
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(&data).arg(&new);
        succeed(copy);
        if std::fs::rename(&new, &kept).is_err() {
            let _ = std::fs::remove_dir_all(&new);
        }
        kept
    })
}

impl Postgres {
    pub(crate) fn with(level: &'static str) -> Postgres {
        let folder = tempfile::tempdir().unwrap();
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(template()).arg(folder.path().join("data"));
        succeed(copy);
        give_to_user(folder.path());
        let mut mode = Command::new("chmod");
        mode.arg("700").arg(folder.path().join("data"));
        succeed(mode);
        let mut postgres = Postgres { folder, address: free_address(), process: None, level };
        postgres.restart();
        postgres
    }

    /// The answer of a query, one line for each row.
    pub(crate) fn query(&self, sql: &str) -> String {
        let mut command = Command::new(find_program("psql", ELSEWHERE));
        command.args(["-h", "127.0.0.1", "-p", &self.address.port().to_string()]);
        command.args(["-U", "postgres", "-tAc", sql]);
        succeed(command).trim().to_owned()
    }
}

impl Site for Postgres {
    fn start() -> Postgres {
        Postgres::with("session")
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("postgres://postgres@{}/postgres?level={}", addresses[0], self.level)
    }

    fn kill(&mut self) {
        // Its children follow it by themselves, and must be gone before the folder is used again.
        if let Some(process) = self.process.take() {
            process.signal(rustix::process::Signal::QUIT);
            process.until_it_ended();
        }
    }

    fn restart(&mut self) {
        let data = self.folder.path().join("data").to_string_lossy().into_owned();
        let port = self.address.port().to_string();
        let settings = [
            "-D",
            &data,
            "-p",
            &port,
            "-h",
            "127.0.0.1",
            "-k",
            "",
            "-c",
            "max_connections=200",
            "-c",
            "shared_buffers=16MB",
        ];
        let log = self.folder.path().join("log");
        let postgres = find_program("postgres", ELSEWHERE);
        let process = Process::start_as(user(), &postgres, &settings, &log);
        self.process = Some(process.until_it_listens(self.address, &log));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut ready = Command::new(find_program("pg_isready", ELSEWHERE));
        ready.args(["-q", "-h", "127.0.0.1", "-p", &port]);
        while !ready.status().unwrap().success() {
            assert!(
                std::time::Instant::now() < until,
                "{}",
                std::fs::read_to_string(&log).unwrap_or_default()
            );
        }
    }

    fn connections(&self) -> Option<usize> {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%lockkeeper%'";
        Some(self.query(sql).parse().unwrap())
    }

    fn left_behind(&self) -> Vec<String> {
        let locks = self.query("SELECT objid FROM pg_locks WHERE locktype = 'advisory'");
        locks.lines().map(str::to_owned).collect()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The same at transaction level.
pub(crate) struct PostgresTransactions(Postgres);

impl Site for PostgresTransactions {
    fn start() -> PostgresTransactions {
        PostgresTransactions(Postgres::with("transaction"))
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses()
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        self.0.url_at(addresses)
    }

    fn kill(&mut self) {
        self.0.kill();
    }

    fn restart(&mut self) {
        self.0.restart();
    }

    fn connections(&self) -> Option<usize> {
        self.0.connections()
    }

    fn left_behind(&self) -> Vec<String> {
        self.0.left_behind()
    }
}
