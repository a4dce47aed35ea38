//! A payment that is booked once, although the worker that started it wakes up too late.
//!
//! ```text
//! cargo run -p lockkeeper --example payment --features embedded,gate-postgres
//! cargo run -p lockkeeper --example payment --features embedded,gate-postgres postgres://user@host/database
//! ```
//!
//! Without a URL the ledger is in the memory of this process, behind a `Gate`. With one it is a table in PostgreSQL, behind
//! the fence table. The locks are embedded in both cases, so no other server has to run.

use std::error::Error;
use std::sync::Mutex;

use lockkeeper::Token;
use lockkeeper::gates::Gate;
use lockkeeper::gates::postgres::{Fence, to_error};
use lockkeeper::prelude::*;

const ORDER: &str = "orders/4472";

/// Where payments are booked.
enum Ledger {
    Memory { gate: Gate, booked: Mutex<Vec<String>> },
    Postgres(Box<tokio::sync::Mutex<tokio_postgres::Client>>),
}

impl Ledger {
    async fn open(url: Option<String>) -> Result<Ledger, Box<dyn Error>> {
        let Some(url) = url else {
            let gate = Gate::new();
            gate.probe()?;
            return Ok(Ledger::Memory { gate, booked: Mutex::default() });
        };
        let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Fence::migrate(&client).await?;
        Fence::probe(&mut client).await?; // on this very database: a stale token is refused, a newer one passes
        client.batch_execute("CREATE TEMPORARY TABLE payment (order_name text, worker text)").await?;
        Ok(Ledger::Postgres(Box::new(tokio::sync::Mutex::new(client))))
    }

    /// Books the payment, unless the ledger has seen a newer token.
    async fn book(&self, worker: &str, token: Token) -> Result<(), lockkeeper::Error> {
        match self {
            Ledger::Memory { gate, booked } => gate.run(token, || {
                booked.lock().expect("no writer panics").push(worker.to_owned());
            }),
            Ledger::Postgres(client) => {
                let mut client = client.lock().await;
                let transaction = client.transaction().await.map_err(to_error)?;
                // The check and the payment are one transaction: both happen, or neither.
                Fence::check(&transaction, ORDER, token).await?;
                let sql = "INSERT INTO payment VALUES ($1, $2)";
                transaction.execute(sql, &[&ORDER, &worker]).await.map_err(to_error)?;
                transaction.commit().await.map_err(to_error)
            }
        }
    }

    async fn bookings(&self) -> Result<Vec<String>, Box<dyn Error>> {
        Ok(match self {
            Ledger::Memory { booked, .. } => booked.lock().expect("no writer panics").clone(),
            Ledger::Postgres(client) => {
                let rows = client.lock().await.query("SELECT worker FROM payment", &[]).await?;
                rows.iter().map(|row| row.get(0)).collect()
            }
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let ledger = Ledger::open(std::env::args().nth(1)).await?;
    let keeper = Keeper::connect("embedded:").await?;

    let slow = keeper.lock(ORDER).acquire().await?;
    println!("the slow worker holds {ORDER} with token {}, and is paused", slow.token());

    // Its lease ends. In this example an operator ends it; normally it expires.
    keeper.force_release(ORDER, "its worker does not answer").await?;

    let quick = keeper.lock(ORDER).acquire().await?;
    println!("the quick worker holds it with token {}", quick.token());
    ledger.book("quick", quick.token()).await?;
    quick.release().await?;

    // The slow worker wakes up, has not noticed the loss, and writes.
    match ledger.book("slow", slow.token()).await {
        Err(lockkeeper::Error::StaleToken { last_token }) => {
            println!(
                "the slow worker is refused: token {} is stale, the last one is {last_token}",
                slow.token()
            );
        }
        other => return Err(format!("the gate accepted a stale write: {other:?}").into()),
    }
    let bookings = ledger.bookings().await?;
    println!("booked by: {}", bookings.join(", "));
    if bookings != ["quick"] {
        return Err("the payment was not booked exactly once".into());
    }
    Ok(())
}
