//! PostgreSQL: one prepared statement to acquire and one to release, on a connection for each client.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls, Statement};

use crate::Recipe;

/// The engine's own statement at session level, except for the owner.
const TAKE: &str = "SELECT name, ok, token, pg_backend_pid(),
       set_config('idle_session_timeout', CASE WHEN ok THEN $2 ELSE '0' END, false),
       set_config('application_name', CASE WHEN ok THEN
         left($3, 34) || ' #' || token || ' @' || extract(epoch FROM now())::bigint ELSE 'lockkeeper' END, false)
     FROM (
       SELECT name, ok, CASE WHEN ok THEN nextval('lockkeeper.token') END AS token FROM (
         SELECT name, CASE WHEN name = $1 THEN pg_try_advisory_lock(key) ELSE false END AS ok FROM lockkeeper.name
         WHERE key = hashtextextended($1, 0) OFFSET 0) AS taken
       OFFSET 0) AS drawn";
const GIVE: &str =
    "SELECT pg_advisory_unlock(hashtextextended($1, 0)), set_config('idle_session_timeout', '0', false),
    set_config('application_name', 'direct', false)";

struct Connection {
    client: Client,
    take: Statement,
    give: Statement,
}

/// A connection for each client.
pub(crate) struct Connections(Vec<Connection>);

impl Connections {
    pub(crate) async fn open(url: &str, clients: usize) -> Connections {
        let mut all = Vec::new();
        for number in 0..clients {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let insert =
                "INSERT INTO lockkeeper.name VALUES (hashtextextended($1, 0), $1) ON CONFLICT DO NOTHING";
            client.execute(insert, &[&format!("direct/{number}")]).await.unwrap();
            let take = client.prepare_typed(TAKE, &[Type::TEXT, Type::TEXT, Type::TEXT]).await.unwrap();
            let give = client.prepare_typed(GIVE, &[Type::TEXT]).await.unwrap();
            all.push(Connection { client, take, give });
        }
        Connections(all)
    }
}

impl Recipe for Connections {
    async fn pair(&self, client: usize) {
        let (name, own) = (format!("direct/{client}"), &self.0[client]);
        let row = own.client.query_one(&own.take, &[&name, &"30000ms", &"direct"]).await.unwrap();
        assert!(row.get::<_, bool>(1));
        let row = own.client.query_one(&own.give, &[&name]).await.unwrap();
        assert!(row.get::<_, bool>(0));
    }
}
