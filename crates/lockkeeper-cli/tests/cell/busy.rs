//! An overloaded machine: a busy leader is not taken for a dead one.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::cell::Cell;
use crate::harness::client::Load;
use crate::harness::{attempts, until};

/// Long enough for several hundred heartbeats.
const BUSY_FOR: Duration = Duration::from_secs(12);
const ATTEMPTS: usize = 3;

/// Processes in a busy loop, at normal priority.
struct Spinners(Vec<Child>);

impl Spinners {
    fn start(count: usize) -> Spinners {
        let spinner = || {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
            command.spawn().expect("setpriv (util-linux) starts a shell")
        };
        Spinners((0..count).map(|_| spinner()).collect())
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for spinner in &mut self.0 {
            let _ = spinner.kill();
            let _ = spinner.wait();
        }
    }
}

async fn terms(cell: &Cell) -> Vec<u64> {
    let mut terms = Vec::new();
    for node in &cell.nodes {
        let what = format!("the term of node {}", node.id);
        let term = until(&what, async || node.status().await?["term"].as_u64()).await;
        terms.push(term);
    }
    terms
}

#[tokio::test]
async fn busy_machine_causes_no_election() {
    let cell = Cell::start(3).await;
    let mut load = Load::start(&cell, 16).await;
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let spinners = Spinners::start(2 * cores);
    // The machine may run other programs too, and they may delay a heartbeat for too long now and then.
    attempts(ATTEMPTS, async || {
        let (before, done) = (terms(&cell).await, load.done());
        tokio::time::sleep(BUSY_FOR).await;
        let after = terms(&cell).await;
        println!("{} pairs in {BUSY_FOR:?} next to {} spinning processes", load.done() - done, 2 * cores);
        match before == after {
            true => Ok(()),
            false => Err(format!("terms {before:?} became {after:?} although no node was down")),
        }
    })
    .await;
    drop(spinners);
    load.until_more(16).await;
    load.end().await;
}
