//! A PostgreSQL of its own. A fresh data folder is made once and copied for each test.

use std::net::SocketAddr;
use std::path::Path;

use lockkeeper_testkit::postgres::Postgres as Server;

use super::Site;

pub(crate) struct Postgres {
    pub(crate) address: SocketAddr,
    server: Server,
    level: &'static str,
}

impl Postgres {
    pub(crate) fn with(level: &'static str) -> Postgres {
        Postgres::set(level, &[])
    }

    /// With settings such as `fsync=off`.
    pub(crate) fn set(level: &'static str, settings: &[&str]) -> Postgres {
        // Kept beside the build for later runs, for each version.
        let version = Server::version().expect("PostgreSQL is installed: ./test does that");
        let version: String = version.chars().filter(|letter| letter.is_alphanumeric()).collect();
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(version);
        let server = Server::start_from(&kept, settings).unwrap();
        Postgres { address: server.address, server, level }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Starts it again with other rules of who may log in and how.
    pub(crate) fn admit(&mut self, rules: &str) {
        self.server.admit(rules).unwrap();
    }

    /// The answer of a query, one line for each row.
    pub(crate) fn query(&self, sql: &str) -> String {
        self.server.query(sql).unwrap()
    }
}

impl Site for Postgres {
    /// The release, and the statement of the next one of that keeper; those who wait in the server's queue ask nothing.
    const REQUESTS_FOR_A_RELEASE: u64 = 4;

    fn start() -> Postgres {
        Postgres::with("session")
    }

    fn start_counting() -> Postgres {
        Postgres::set("session", &["log_statement=all"])
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
