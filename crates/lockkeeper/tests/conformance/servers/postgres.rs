//! A PostgreSQL server for each test. A new data folder is initialized once and copied for each.

use std::net::SocketAddr;
use std::path::Path;

use lockkeeper_testkit::Servers as _;
use lockkeeper_testkit::postgres::Postgres as Server;

use super::Site;

pub(crate) struct Postgres {
    pub(crate) address: SocketAddr,
    server: Server,
    level: &'static str,
}

impl Postgres {
    pub(crate) fn with(level: &'static str) -> Postgres {
        Postgres::with_settings(level, &[])
    }

    /// Starts PostgreSQL with settings such as `fsync=off`.
    pub(crate) fn with_settings(level: &'static str, settings: &[&str]) -> Postgres {
        // The initialized folder is kept in the target directory for later runs, one for each version.
        let version = Server::version().expect("PostgreSQL is not installed: run ./test");
        let version: String = version.chars().filter(|character| character.is_alphanumeric()).collect();
        let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join(version);
        let server = Server::start_from(&template, settings).unwrap();
        Postgres { address: server.address, server, level }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Restarts the server with other rules in `pg_hba.conf`.
    pub(crate) fn restart_with_hba(&mut self, rules: &str) {
        self.server.admit(rules).unwrap();
    }

    /// Runs a query and returns its rows as lines.
    pub(crate) fn query(&self, sql: &str) -> String {
        self.server.query(sql).unwrap()
    }
}

impl Site for Postgres {
    /// The release, and the statement of the next waiter of that keeper. Waiters in the server's queue send nothing.
    const REQUESTS_PER_RELEASE_MAX: u64 = 4;

    fn start() -> Postgres {
        Postgres::with("session")
    }

    fn start_counting() -> Postgres {
        Postgres::with_settings("session", &["log_statement=all"])
    }

    fn requests(&self) -> u64 {
        self.server.statements()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("postgres://postgres@{}/postgres?level={}", addresses[0], self.level)
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart().unwrap();
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

/// PostgreSQL with locks at transaction level.
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
