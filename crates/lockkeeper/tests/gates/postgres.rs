use lockkeeper::gates::postgres::{Fence, to_error};
use lockkeeper::{Error, Token};
use tokio_postgres::{Client, NoTls};

use crate::servers::Site;
use crate::servers::postgres::Postgres;
use crate::writers::{assert_fenced, write_at_once};

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn url(postgres: &Postgres) -> String {
    format!("postgres://postgres@{}/postgres", postgres.address)
}

async fn start() -> (Postgres, String, Client) {
    let postgres = Postgres::start();
    let url = url(&postgres);
    let client = connect(&url).await;
    (postgres, url, client)
}

async fn history(client: &Client) -> Vec<u64> {
    let rows = client.query("SELECT token FROM history ORDER BY id", &[]).await.unwrap();
    rows.iter().map(|row| row.get::<_, i64>(0) as u64).collect()
}

const TABLES: &str = "
    CREATE TABLE history (id bigserial, token bigint);
    CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL DEFAULT 0, fence_token bigint);
    INSERT INTO account (id) VALUES (1), (2);
    CREATE TABLE ledger (id bigint PRIMARY KEY, balance bigint NOT NULL);
    CREATE TABLE batch (line text);";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_transactions_are_fenced() {
    let (_postgres, url, client) = start().await;
    // Concurrent migrations are safe.
    let migrations = (0..4).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { Fence::migrate(&connect(&url).await).await.unwrap() })
    });
    for migration in migrations.collect::<Vec<_>>() {
        migration.await.unwrap();
    }
    client.batch_execute(TABLES).await.unwrap();
    let passed = write_at_once(|_, token| {
        let url = url.clone();
        async move {
            let mut client = connect(&url).await;
            let transaction = client.transaction().await.map_err(to_error)?;
            Fence::check(&transaction, "account/1", token).await?;
            let number = token.0 as i64;
            transaction
                .execute("INSERT INTO history (token) VALUES ($1)", &[&number])
                .await
                .map_err(to_error)?;
            transaction.commit().await.map_err(to_error)
        }
    })
    .await;
    assert_fenced(passed, &history(&client).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_single_statements_are_fenced() {
    let (_postgres, url, client) = start().await;
    client.batch_execute(TABLES).await.unwrap();
    // Records the writes in the order in which the row changed.
    client
        .batch_execute(
            "CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO history (token) VALUES (NEW.fence_token); RETURN NEW; END $$;
             CREATE TRIGGER remember AFTER UPDATE ON account FOR EACH ROW EXECUTE FUNCTION remember()",
        )
        .await
        .unwrap();
    let passed = write_at_once(|writer, token| {
        let url = url.clone();
        async move {
            let client = connect(&url).await;
            Fence::update(&client, "account", &[("balance", &(writer as i64))], ("id", &1_i64), token).await
        }
    })
    .await;
    assert_fenced(passed, &history(&client).await);
    let missing = Fence::update(&client, "account", &[("balance", &1_i64)], ("id", &99_i64), Token(1)).await;
    assert_eq!(missing.unwrap_err().code(), "invalid");
}

#[tokio::test]
async fn triggers_refuse_stale_writers_in_any_language() {
    let (postgres, _url, mut client) = start().await;
    client.batch_execute(TABLES).await.unwrap();
    Fence::migrate(&client).await.unwrap();
    client
        .batch_execute(
            "CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON ledger
                FOR EACH ROW EXECUTE FUNCTION lockkeeper.fence_row('ledger/', 'id');
             CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON batch
                FOR EACH STATEMENT EXECUTE FUNCTION lockkeeper.fence_table('batch')",
        )
        .await
        .unwrap();
    // psql stands for another language. A refusal has its own SQLSTATE, which works in any language.
    postgres.query("CREATE TABLE refusal (why text)");
    let passes = |token: u64, sql: &str| {
        let before = postgres.query("SELECT count(*) FROM refusal");
        postgres.query(&format!(
            "DO $$ BEGIN PERFORM set_config('lockkeeper.token', '{token}', true); {sql};
             EXCEPTION WHEN SQLSTATE 'LK412' THEN INSERT INTO refusal VALUES (SQLERRM); END $$"
        ));
        postgres.query("SELECT count(*) FROM refusal") == before
    };
    let under = |token: u64, sql: &str| assert!(passes(token, sql), "{token} {sql}");
    let refused = |token: u64, sql: &str| assert!(!passes(token, sql), "{token} {sql}");
    under(5, "INSERT INTO ledger VALUES (1, 10), (2, 20)");
    under(5, "UPDATE ledger SET balance = 11 WHERE id = 1");
    under(7, "UPDATE ledger SET balance = 12 WHERE id = 1");
    refused(6, "UPDATE ledger SET balance = 13 WHERE id = 1");
    refused(6, "DELETE FROM ledger WHERE id = 1");
    // Each row has its own lock: the other row has seen no higher token.
    under(6, "UPDATE ledger SET balance = 21 WHERE id = 2");
    // The token outlives the row.
    under(8, "DELETE FROM ledger WHERE id = 1");
    refused(7, "INSERT INTO ledger VALUES (1, 99)");
    refused(7, "UPDATE ledger SET id = 1 WHERE id = 2");
    under(9, "INSERT INTO batch VALUES ('a')");
    refused(8, "TRUNCATE batch");
    assert_eq!(postgres.query("SELECT id, balance FROM ledger"), "2|21");

    // A writer without a token is refused; the error names the next step.
    let error = client.execute("UPDATE ledger SET balance = 0", &[]).await.map_err(to_error).unwrap_err();
    assert_eq!(error.code(), "invalid");
    assert!(error.to_string().contains("announce"), "{error}");
    // Through the library, with a converted error.
    let transaction = client.transaction().await.unwrap();
    Fence::announce(&transaction, Token(5)).await.unwrap();
    let error =
        transaction.execute("UPDATE ledger SET balance = 0", &[]).await.map_err(to_error).unwrap_err();
    assert_eq!(error, Error::StaleToken { last_token: Token(6) });
    drop(transaction);
    // The probe of the table itself.
    Fence::probe_write(&mut client, async |transaction, token| {
        Fence::announce(transaction, token).await?;
        transaction.execute("UPDATE ledger SET balance = balance", &[]).await.map_err(to_error)?;
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(postgres.query("SELECT id, balance FROM ledger"), "2|21");
}

#[tokio::test]
async fn probe_finds_a_missing_or_disabled_fence() {
    let (postgres, _url, mut client) = start().await;
    let missing = Fence::probe(&mut client).await.unwrap_err();
    assert!(missing.to_string().contains("Fence::migrate"), "{missing}");
    Fence::migrate(&client).await.unwrap();
    Fence::probe(&mut client).await.unwrap();
    assert_eq!(postgres.query("SELECT count(*) FROM lockkeeper.fence"), "0", "the probe leaves rows behind");
    // The probe detects an unchecked write.
    client.batch_execute(TABLES).await.unwrap();
    let unguarded = Fence::probe_write(&mut client, async |transaction, token| {
        Fence::announce(transaction, token).await?;
        transaction.execute("UPDATE ledger SET balance = balance", &[]).await.map_err(to_error)?;
        Ok(())
    });
    assert_eq!(unguarded.await.unwrap_err().code(), "fatal");
    // The probe detects a disabled check.
    client
        .batch_execute(
            "CREATE OR REPLACE FUNCTION lockkeeper.raise_fence(resource_name text, fence_token bigint) RETURNS bigint
                LANGUAGE sql AS $$ SELECT fence_token $$",
        )
        .await
        .unwrap();
    assert_eq!(Fence::probe(&mut client).await.unwrap_err().code(), "fatal");
}

#[tokio::test]
async fn writer_without_table_rights_can_raise_but_not_lower_a_token() {
    let (postgres, _url, client) = start().await;
    Fence::migrate(&client).await.unwrap();
    client
        .batch_execute("CREATE ROLE writer LOGIN; GRANT USAGE ON SCHEMA lockkeeper TO writer")
        .await
        .unwrap();
    let mut writer = connect(&format!("postgres://writer@{}/postgres", postgres.address)).await;
    let transaction = writer.transaction().await.unwrap();
    Fence::check(&transaction, "r", Token(3)).await.unwrap();
    transaction.commit().await.unwrap();
    let lower =
        writer.execute("UPDATE lockkeeper.fence SET token = 1", &[]).await.map_err(to_error).unwrap_err();
    assert_eq!(lower.code(), "forbidden");
}

#[tokio::test]
async fn idle_timeout_ends_the_transaction_of_a_stopped_holder() {
    let (_postgres, url, mut client) = start().await;
    Fence::migrate(&client).await.unwrap();
    // The setting that docs/gates.md recommends.
    client
        .batch_execute("ALTER ROLE postgres SET idle_in_transaction_session_timeout = '200ms'")
        .await
        .unwrap();
    let mut stopped = connect(&url).await;
    let transaction = stopped.transaction().await.unwrap();
    Fence::check(&transaction, "account/1", Token(41)).await.unwrap();
    let next = client.transaction().await.unwrap();
    Fence::check(&next, "account/1", Token(42)).await.unwrap();
    next.commit().await.unwrap();
    assert_eq!(transaction.commit().await.map_err(to_error).unwrap_err().code(), "unavailable");
}
