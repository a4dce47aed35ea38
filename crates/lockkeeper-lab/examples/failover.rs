//! Fail-over time of a cell of three: from the end of the leader to the next grant.
//!
//! `cargo run --release -p lockkeeper-lab --example failover -- target/dist/lockkeeper kill 10`
//!
//! Starts three nodes in a temporary folder, and a client that acquires and releases a lock in a loop while it holds another
//! one. In each round the leader is killed (`kill`) or paused (`stop`); then it returns.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper::{EngineInfo, Keeper};
use lockkeeper_testkit::cell::Cell;
use lockkeeper_testkit::{Servers, Signal};

type Failed = Box<dyn std::error::Error + Send + Sync>;

const NODES: usize = 3;
/// Pause between rounds, until all nodes are back and the cell is quiet.
const SETTLE: Duration = Duration::from_secs(2);

fn url_of(cell: &Cell) -> Result<String, Failed> {
    let hosts: Vec<String> = cell.addresses().iter().map(ToString::to_string).collect();
    Ok(EngineInfo::by_name("cell").ok_or("the cell is not a registered engine")?.url(&hosts))
}

async fn connect(url: &str) -> Result<Keeper, Failed> {
    let began = Instant::now();
    loop {
        match Keeper::connect(url).await {
            Ok(keeper) => return Ok(keeper),
            Err(error) if began.elapsed() > Duration::from_secs(30) => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let mut words = std::env::args().skip(1);
    let binary = words.next().ok_or("name the binary")?;
    let fault = words.next().unwrap_or_else(|| "kill".to_owned());
    let rounds: usize = words.next().map_or(Ok(10), |count| count.parse())?;
    // On the disk of the build, not in memory.
    lockkeeper_testkit::set_data_folder(Path::new("target"));
    let mut cell = Cell::start(Path::new(&binary), NODES)?;
    let keeper = connect(&url_of(&cell)?).await?;
    let long = keeper.lock("held-all-the-time").acquire().await?;

    // Time and token of the last grant.
    let last = Arc::new(Mutex::new((Instant::now(), 0)));
    let worker = {
        let (keeper, last) = (keeper.clone(), last.clone());
        tokio::spawn(async move {
            loop {
                let guard = keeper.lock("again-and-again").acquire().await?;
                *last.lock().map_err(|_| "poisoned")? = (Instant::now(), guard.token().0);
                guard.release().await?;
            }
            #[allow(unreachable_code, reason = "fixes the error type")]
            Ok::<(), Failed>(())
        })
    };
    let mut times = Vec::new();
    for round in 0..rounds {
        tokio::time::sleep(SETTLE).await;
        let leader = cell.leader().ok_or("no node leads")?;
        let ended = if fault == "stop" {
            cell.signal(leader, Signal::STOP);
            Instant::now()
        } else {
            cell.kill_leader().ok_or("no node leads")?
        };
        let took = loop {
            tokio::time::sleep(Duration::from_micros(500)).await;
            let (granted_at, _) = *last.lock().map_err(|_| "poisoned")?;
            // A grant in flight when the leader ended may still arrive.
            if granted_at > ended + Duration::from_millis(20) {
                break granted_at - ended;
            }
            if worker.is_finished() {
                return Err("the worker has failed".into());
            }
        };
        println!("round {:>2}: node {} ended, next grant after {:>6.1} ms", round + 1, leader + 1, ms(took));
        times.push(took);
        if fault == "stop" {
            cell.signal(leader, Signal::CONT);
        } else {
            cell.restart()?;
        }
        if long.check().is_err() {
            return Err("the lease of a live client was lost".into());
        }
    }
    worker.abort();
    times.sort();
    println!("median {:.1} ms, longest {:.1} ms", ms(times[times.len() / 2]), ms(times[times.len() - 1]));
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
