//! PgBouncer in front of a PostgreSQL server.

use lockkeeper_testkit::pgbouncer::PgBouncer as Server;

use super::postgres::Postgres;

pub(crate) struct PgBouncer {
    server: Server,
}

impl PgBouncer {
    pub(crate) fn start(postgres: &Postgres, pool_mode: &str) -> PgBouncer {
        PgBouncer { server: Server::start(postgres.server(), pool_mode, 10).unwrap() }
    }

    pub(crate) fn url(&self, level: &str) -> String {
        format!("postgres://postgres@{}/postgres?level={level}", self.server.address)
    }
}
