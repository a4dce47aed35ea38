//! Fills a node with sessions and held locks, to measure the cost of a million of them.
//!
//! `cargo run --release -p lockkeeper-lab --example fill -- 127.0.0.1:7420 100000 1000000`
//!
//! It uses frames on one connection directly, because a keeper has only one session.

use std::time::Instant;

use lockkeeper_api::v1;
use lockkeeper_api::v1::{answer, operation};
use lockkeeper_lab::compare::Link;

/// Long enough to examine the node.
const TTL_MS: u64 = 24 * 60 * 60 * 1_000;

type Failed = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().collect();
    let [_, address, sessions, locks] = &words[..] else {
        return Err("usage: fill HOST:PORT SESSIONS LOCKS".into());
    };
    let (sessions, locks): (usize, usize) = (sessions.parse()?, locks.parse()?);
    let mut link = Link::connect(address).await?;

    let began = Instant::now();
    let open = |number| v1::OpenSessionRequest { ttl_ms: TTL_MS, owner: format!("host-{number}/worker") };
    let opened = link.all((0..sessions).map(|n| operation::Kind::OpenSession(open(n))).collect()).await?;
    let ids: Vec<String> = opened
        .into_iter()
        .map(|answer| match answer {
            answer::Kind::OpenSession(opened) => Ok(opened.session),
            other => Err(format!("not opened: {other:?}")),
        })
        .collect::<Result<_, _>>()?;
    println!("{sessions} sessions in {:.1} s", began.elapsed().as_secs_f64());

    let began = Instant::now();
    let acquire = |number: usize| v1::AcquireRequest {
        session: ids[number % ids.len()].clone(),
        lock: format!("orders/{number:07}"),
        request: format!("r{number}"),
        ..Default::default()
    };
    let granted = link.all((0..locks).map(|n| operation::Kind::Acquire(acquire(n))).collect()).await?;
    let held = granted.iter().filter(|answer| matches!(answer, answer::Kind::Grant(_))).count();
    println!("{held} of {locks} locks held in {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}
