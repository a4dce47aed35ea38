//! A PostgreSQL of its own.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use crate::error::ServerError;
use crate::process::{Process, Program, find_program, first_line, folder, succeed};
use crate::{Signal, free_address};

const ADVICE: &str = "apt-get install postgresql";
const ELSEWHERE: &[&str] = &[
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
];

/// One PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    /// Where clients go, as user `postgres` and without a password.
    pub address: SocketAddr,
    settings: Vec<String>,
    process: Option<Process>,
}

/// PostgreSQL does not run as root: the package brings a user of its own.
pub(crate) fn user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("postgres")
}

/// Makes a folder the property of whoever runs the server.
pub(crate) fn give_to_user(folder: &Path) -> Result<(), ServerError> {
    if let Some(user) = user() {
        let mut command = Command::new("chown");
        command.args(["-R", user]).arg(folder);
        succeed(command)?;
    }
    Ok(())
}

fn program(name: &'static str) -> Result<PathBuf, ServerError> {
    find_program(name, ELSEWHERE, ADVICE)
}

/// A new data folder.
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
    succeed(command).map(drop)
}

fn copy(from: &Path, to: &Path) -> Result<(), ServerError> {
    let mut command = Command::new("cp");
    command.arg("-r").arg(from).arg(to);
    succeed(command).map(drop)
}

/// Makes a data folder to be copied.
fn keep(kept: &Path) -> Result<(), ServerError> {
    let folder = folder()?;
    give_to_user(folder.path())?;
    let data = folder.path().join("data");
    initialise(&data)?;
    let new = kept.with_extension(std::process::id().to_string());
    copy(&data, &new)?;
    // Whoever comes second at the same time has the same.
    if std::fs::rename(&new, kept).is_err() {
        let _ = std::fs::remove_dir_all(&new);
    }
    Ok(())
}

impl Postgres {
    /// Makes a data folder and starts a server in it.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start() -> Result<Postgres, ServerError> {
        let folder = folder()?;
        give_to_user(folder.path())?;
        initialise(&folder.path().join("data"))?;
        Postgres::in_folder(folder, &[])
    }

    /// The same with a copy of a data folder that is kept here: to make one takes seconds. Settings are like `fsync=off`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start_from(kept: &Path, settings: &[&str]) -> Result<Postgres, ServerError> {
        {
            // One at a time in this process: they would copy into each other's folder. Other processes have other names.
            static TURN: Mutex<()> = Mutex::new(());
            let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            if !kept.join("PG_VERSION").exists() {
                keep(kept)?;
            }
        }
        let folder = folder()?;
        let data = folder.path().join("data");
        copy(kept, &data)?;
        give_to_user(folder.path())?;
        std::fs::set_permissions(&data, PermissionsExt::from_mode(0o700))
            .map_err(ServerError::io("the data folder of PostgreSQL cannot be closed to others"))?;
        Postgres::in_folder(folder, settings)
    }

    fn in_folder(folder: TempDir, settings: &[&str]) -> Result<Postgres, ServerError> {
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let mut postgres = Postgres { folder, address: free_address(5432), settings, process: None };
        postgres.restart()?;
        Ok(postgres)
    }

    /// Its version, in its own words.
    pub fn version() -> Option<String> {
        let line = first_line(&program("postgres").ok()?, &["--version"]);
        line.strip_prefix("postgres (PostgreSQL) ")
            .map(|version| format!("PostgreSQL {}", version.split(' ').next().unwrap_or_default()))
    }

    /// Ends it at once, without a clean shutdown.
    pub fn kill(&mut self) {
        // Its children follow it by themselves, and must be gone before the folder is used again.
        if let Some(process) = self.process.take() {
            process.signal(Signal::QUIT);
            process.until_it_ended();
        }
    }

    /// Starts it, with what it kept on disk.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn restart(&mut self) -> Result<(), ServerError> {
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
        process.until(&format!("PostgreSQL at {}", self.address), || {
            let mut command = Command::new(&ready);
            command.args(["-q", "-h", &host, "-p", &port]).status().is_ok_and(|status| status.success())
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Starts it again with other rules of who may log in and how (`pg_hba.conf`).
    ///
    /// # Errors
    ///
    /// If they cannot be written, or it cannot be started.
    pub fn admit(&mut self, rules: &str) -> Result<(), ServerError> {
        std::fs::write(self.folder.path().join("data/pg_hba.conf"), rules)
            .map_err(ServerError::io("the rules of PostgreSQL cannot be written"))?;
        self.kill();
        self.restart()
    }

    /// How many statements of clients its log tells of, if it was started with `log_statement=all`.
    pub fn statements(&self) -> u64 {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let is_one = |line: &&str| line.contains("LOG:  execute ") || line.contains("LOG:  statement: ");
        log.lines().filter(is_one).count() as u64
    }

    /// The answer of a query, one line for each row.
    ///
    /// # Errors
    ///
    /// With the words of PostgreSQL.
    pub fn query(&self, sql: &str) -> Result<String, ServerError> {
        let mut command = Command::new(program("psql")?);
        command.args(["-h", &self.address.ip().to_string(), "-p", &self.address.port().to_string()]);
        command.args(["-U", "postgres", "-tAc", sql]);
        Ok(succeed(command)?.trim().to_owned())
    }

    /// How many transactions it has worked on. Those of the last second may be missing.
    pub fn requests(&self) -> Option<u64> {
        self.query("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database").ok()?.parse().ok()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}
