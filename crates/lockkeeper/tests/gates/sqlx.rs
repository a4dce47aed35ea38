use lockkeeper::gates::sqlx::{Fence, to_error};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};

use crate::postgres::url;
use crate::servers::Site;
use crate::servers::postgres::Postgres;
use crate::writers::{assert_fenced, write_at_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_transactions_are_fenced() {
    let postgres = Postgres::start();
    let pool = PgPoolOptions::new().max_connections(32).connect(&url(&postgres)).await.unwrap();
    Fence::migrate(&pool).await.unwrap();
    sqlx::query("CREATE TABLE history (id bigserial, token bigint)").execute(&pool).await.unwrap();
    let passed = write_at_once(|_, token| {
        let pool = pool.clone();
        async move {
            let mut transaction = pool.begin().await.map_err(to_error)?;
            Fence::check(&mut transaction, "account/1", token).await?;
            let write = sqlx::query("INSERT INTO history (token) VALUES ($1)").bind(token.0 as i64);
            write.execute(&mut *transaction).await.map_err(to_error)?;
            transaction.commit().await.map_err(to_error)
        }
    })
    .await;
    let history: Vec<i64> =
        sqlx::query_scalar("SELECT token FROM history ORDER BY id").fetch_all(&pool).await.unwrap();
    assert_fenced(passed, &history.iter().map(|token| *token as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn probe_triggers_and_update_statement_work() {
    let postgres = Postgres::start();
    let mut connection = PgConnection::connect(&url(&postgres)).await.unwrap();
    assert!(Fence::probe(&mut connection).await.unwrap_err().to_string().contains("Fence::migrate"));
    Fence::migrate(&mut connection).await.unwrap();
    Fence::probe(&mut connection).await.unwrap();
    assert_eq!(postgres.query("SELECT count(*) FROM lockkeeper.fence"), "0");

    let table = "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint, fence_token bigint);
         INSERT INTO account VALUES (1, 10, 5);
         CREATE TRIGGER fence BEFORE UPDATE ON account
            FOR EACH ROW EXECUTE FUNCTION lockkeeper.fence_row('account/', 'id')";
    sqlx::raw_sql(table).execute(&mut connection).await.unwrap();
    Fence::probe_write(&mut connection, async |transaction, token| {
        Fence::announce(transaction, token).await?;
        sqlx::query("UPDATE account SET balance = 0").execute(&mut **transaction).await.map_err(to_error)?;
        Ok(())
    })
    .await
    .unwrap();

    sqlx::raw_sql("DROP TRIGGER fence ON account").execute(&mut connection).await.unwrap();
    let sql = Fence::update_statement("account", &["balance"], "id");
    for (token, rows) in [(4_i64, 0), (5, 1), (6, 1), (5, 0)] {
        let write = sqlx::query(&sql).bind(token).bind(1_i64).bind(token);
        assert_eq!(write.execute(&mut connection).await.unwrap().rows_affected(), rows, "{token}");
    }
}
