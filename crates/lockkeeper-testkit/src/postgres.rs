//! A PostgreSQL server.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use crate::error::ServerError;
use crate::process::{Process, Program, find_program, first_line, folder, run_checked};
use crate::{Servers, Signal, free_address};

const ADVICE: &str = "apt-get install postgresql";
const ELSEWHERE: &[&str] = &[
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
];

/// A PostgreSQL server.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    /// The address for clients, who log in as `postgres` without a password.
    pub address: SocketAddr,
    settings: Vec<String>,
    process: Option<Process>,
}

/// The user that runs the server. PostgreSQL refuses to run as root; its package creates a user.
pub(crate) fn user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("postgres")
}

/// Changes the owner of a folder to the user that runs the server.
pub(crate) fn chown_to_server_user(folder: &Path) -> Result<(), ServerError> {
    if let Some(user) = user() {
        let mut command = Command::new("chown");
        command.args(["-R", user]).arg(folder);
        run_checked(command)?;
    }
    Ok(())
}

fn program(name: &'static str) -> Result<PathBuf, ServerError> {
    find_program(name, ELSEWHERE, ADVICE)
}

/// Creates a data folder.
fn initialise(data: &Path) -> Result<(), ServerError> {
    let initdb = program("initdb")?;
    let mut command = match user() {
        Some(user) => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--clear-groups"]).arg(initdb);
            command
        }
        None => Command::new(initdb),
    };
    command
        .args(["--no-sync", "--auth", "trust", "--username", "postgres", "--encoding", "UTF8", "-D"])
        .arg(data)
        .current_dir("/");
    run_checked(command).map(drop)
}

fn copy(from: &Path, to: &Path) -> Result<(), ServerError> {
    let mut command = Command::new("cp");
    command.arg("-r").arg(from).arg(to);
    run_checked(command).map(drop)
}

/// Creates a template data folder at `kept`.
fn create_template(kept: &Path) -> Result<(), ServerError> {
    let folder = folder()?;
    chown_to_server_user(folder.path())?;
    let data = folder.path().join("data");
    initialise(&data)?;
    let new = kept.with_extension(std::process::id().to_string());
    copy(&data, &new)?;
    // A concurrent process may have created the same folder first.
    if std::fs::rename(&new, kept).is_err() {
        let _ = std::fs::remove_dir_all(&new);
    }
    Ok(())
}

impl Postgres {
    /// Creates a data folder and starts a server in it.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn start() -> Result<Postgres, ServerError> {
        Postgres::with(&[])
    }

    /// Starts a server with settings such as `fsync=off`.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn with(settings: &[&str]) -> Result<Postgres, ServerError> {
        let folder = folder()?;
        chown_to_server_user(folder.path())?;
        initialise(&folder.path().join("data"))?;
        Postgres::in_folder(folder, settings)
    }

    /// Starts a server in a copy of the data folder at `kept`, which is created if it does not exist: creating one takes
    /// seconds.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn start_from(kept: &Path, settings: &[&str]) -> Result<Postgres, ServerError> {
        {
            // One thread of this process at a time: the name of the new folder is unique per process only.
            static COPYING: Mutex<()> = Mutex::new(());
            let _guard = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
            if !kept.join("PG_VERSION").exists() {
                create_template(kept)?;
            }
        }
        let folder = folder()?;
        let data = folder.path().join("data");
        copy(kept, &data)?;
        chown_to_server_user(folder.path())?;
        std::fs::set_permissions(&data, PermissionsExt::from_mode(0o700))
            .map_err(ServerError::io("failed to restrict access to the data folder of PostgreSQL"))?;
        Postgres::in_folder(folder, settings)
    }

    fn in_folder(folder: TempDir, settings: &[&str]) -> Result<Postgres, ServerError> {
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let mut postgres = Postgres { folder, address: free_address(5432), settings, process: None };
        postgres.restart()?;
        Ok(postgres)
    }

    /// Name and version, as the program prints it.
    pub fn version() -> Option<String> {
        let line = first_line(&program("postgres").ok()?, &["--version"]);
        line.strip_prefix("postgres (PostgreSQL) ")
            .map(|version| format!("PostgreSQL {}", version.split(' ').next().unwrap_or_default()))
    }

    /// Restarts it with new client authentication rules (`pg_hba.conf`).
    ///
    /// # Errors
    ///
    /// If they cannot be written, or it does not start.
    pub fn admit(&mut self, rules: &str) -> Result<(), ServerError> {
        std::fs::write(self.folder.path().join("data/pg_hba.conf"), rules)
            .map_err(ServerError::io("failed to write pg_hba.conf"))?;
        self.kill();
        self.restart()
    }

    /// Number of statements in its log, if it was started with `log_statement=all`.
    pub fn statements(&self) -> u64 {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let is_one = |line: &&str| line.contains("LOG:  execute ") || line.contains("LOG:  statement: ");
        log.lines().filter(is_one).count() as u64
    }

    /// Runs a query and returns one line for each row.
    ///
    /// # Errors
    ///
    /// If psql fails.
    pub fn query(&self, sql: &str) -> Result<String, ServerError> {
        let mut command = Command::new(program("psql")?);
        command.args(["-h", &self.address.ip().to_string(), "-p", &self.address.port().to_string()]);
        command.args(["-U", "postgres", "-tAc", sql]);
        Ok(run_checked(command)?.trim().to_owned())
    }
}

impl Servers for Postgres {
    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_parts(&self) -> (&'static str, &'static str) {
        ("postgres@", "/postgres")
    }

    fn kill(&mut self) {
        // Its children end with it, and must have ended before the folder is used again.
        if let Some(process) = self.process.take() {
            process.signal(Signal::QUIT);
            process.wait_for_exit();
        }
    }

    fn restart(&mut self) -> Result<(), ServerError> {
        let data = self.folder.path().join("data").to_string_lossy().into_owned();
        let (host, port) = (self.address.ip().to_string(), self.address.port().to_string());
        let mut arguments = vec![
            "-D",
            &data,
            "-p",
            &port,
            "-h",
            &host,
            "-k",
            "",
            "-c",
            "max_connections=200",
            "-c",
            "shared_buffers=16MB",
        ];
        for setting in &self.settings {
            arguments.extend(["-c", setting]);
        }
        let mut server = Program::new(program("postgres")?, &arguments, self.folder.path().join("log"));
        server.user = user();
        let mut process = server.start()?;
        let ready = program("pg_isready")?;
        process.wait_until(&format!("PostgreSQL at {}", self.address), || {
            let mut command = Command::new(&ready);
            command.args(["-q", "-h", &host, "-p", &port]).status().is_ok_and(|status| status.success())
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Number of transactions. Those of the last second may be missing.
    fn requests(&self) -> Option<u64> {
        self.query("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database").ok()?.parse().ok()
    }

    fn request_unit(&self) -> &'static str {
        "transactions, by pg_stat_database"
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}
