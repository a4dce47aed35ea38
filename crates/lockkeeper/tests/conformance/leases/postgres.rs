//! PostgreSQL, directly and behind PgBouncer.

use lockkeeper::prelude::*;

use crate::doctor::codes;
use crate::servers::Site;
use crate::servers::pgbouncer::PgBouncer;
use crate::servers::postgres::Postgres;
use crate::support::soon;

#[tokio::test]
async fn pooler_in_transaction_mode_is_refused_at_session_level_and_works_at_transaction_level() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::start(&postgres, "transaction");
    let error = Keeper::connect(&bouncer.url("session")).await.unwrap_err();
    assert_eq!(error.code(), "unsupported", "{error}");
    for word in ["PgBouncer", "session mode", "level=transaction"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    let keeper = Keeper::connect(&bouncer.url("transaction")).await.unwrap();
    let other = Keeper::connect(&bouncer.url("transaction")).await.unwrap();
    let direct = Keeper::connect(&postgres.url()).await.unwrap();
    let guard = keeper.lock("pooled").ttl(3.secs()).acquire().await.unwrap();
    for keeper in [&other, &direct] {
        assert!(soon(keeper.lock("pooled").try_acquire()).await.unwrap().is_none());
    }
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(soon(direct.lock("pooled").wait(5.secs()).acquire()).await.unwrap().token() > token);
    assert_eq!(codes(&bouncer.url("transaction")).await, ["pooler"]);
}

#[tokio::test]
async fn pooler_in_session_mode_works_at_session_level() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::start(&postgres, "session");
    let keeper = Keeper::connect(&bouncer.url("session")).await.unwrap();
    let direct = Keeper::connect(&postgres.url()).await.unwrap();
    let guard = keeper.lock("pooled").acquire().await.unwrap();
    assert!(soon(direct.lock("pooled").try_acquire()).await.unwrap().is_none());
    guard.release().await.unwrap();
    soon(direct.lock("pooled").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn names_with_the_same_key_are_an_error() {
    let postgres = Postgres::start();
    let keeper = Keeper::connect(&postgres.url()).await.unwrap();
    postgres.query("INSERT INTO lockkeeper.name VALUES (hashtextextended('orders', 0), 'invoices')");
    let error = soon(keeper.lock("orders").acquire()).await.unwrap_err();
    assert_eq!(error.code(), "invalid");
    assert!(error.to_string().contains("invoices"), "{error}");
    assert_eq!(postgres.left_behind(), Vec::<String>::new());
}

#[tokio::test]
async fn psql_and_lockkeeper_exclude_each_other() {
    let postgres = Postgres::start();
    let keeper = Keeper::connect(&postgres.url()).await.unwrap();
    let guard = keeper.lock("psql").acquire().await.unwrap();
    let try_lock = "SELECT pg_try_advisory_lock(hashtextextended('psql', 0))";
    assert_eq!(postgres.query(try_lock), "f");
    guard.release().await.unwrap();
    assert_eq!(postgres.query(try_lock), "t");
}

#[tokio::test]
async fn terminated_connection_loses_its_lock_at_once() {
    let postgres = Postgres::start();
    let keeper = Keeper::connect(&postgres.url()).await.unwrap();
    let guard = keeper.lock("ended").ttl(60.secs()).acquire().await.unwrap();
    postgres.query("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'");
    soon(guard.lost()).await;
    assert!(guard.check().is_err());
    assert_eq!(guard.release().await.unwrap_err().code(), "session_lost");
    soon(keeper.lock("ended").acquire()).await.unwrap().release().await.unwrap();
}
