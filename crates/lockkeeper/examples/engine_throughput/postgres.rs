//! PostgreSQL: one statement to take and one to give, prepared, on a connection for each client.

use tokio_postgres::{Client, NoTls, Statement};

use crate::Recipe;

const TAKE: &str =
    "WITH known AS MATERIALIZED (SELECT key, name FROM lockkeeper.name WHERE key = hashtextextended($1, 0)),
    got AS MATERIALIZED (SELECT pg_try_advisory_lock(known.key) AS ok FROM known WHERE known.name = $1)
    SELECT got.ok, CASE WHEN got.ok THEN nextval('lockkeeper.token') END,
      set_config('idle_session_timeout', $2, false), set_config('application_name', $3, false) FROM got";
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
            let (take, give) = (client.prepare(TAKE).await.unwrap(), client.prepare(GIVE).await.unwrap());
            all.push(Connection { client, take, give });
        }
        Connections(all)
    }
}

impl Recipe for Connections {
    async fn pair(&self, client: usize) {
        let (name, own) = (format!("direct/{client}"), &self.0[client]);
        let row = own.client.query_one(&own.take, &[&name, &"30000ms", &"direct"]).await.unwrap();
        assert!(row.get::<_, bool>(0));
        let row = own.client.query_one(&own.give, &[&name]).await.unwrap();
        assert!(row.get::<_, bool>(0));
    }
}
