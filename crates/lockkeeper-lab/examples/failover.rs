//! Fail-over time of a cell of three: from the end of the leader to the next grant.
//!
//! `cargo run --release -p lockkeeper-lab --example failover -- target/dist/lockkeeper kill 10`
//!
//! Starts three nodes in a temporary folder, and a client that acquires and releases a lock in a loop while it holds another
//! one. In each round the leader is killed (`kill`) or paused (`stop`); then it returns.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper::{Keeper, Status};

type Failed = Box<dyn std::error::Error + Send + Sync>;

const NODES: usize = 3;
/// Pause between rounds, until all nodes are back and the cell is quiet.
const SETTLE: Duration = Duration::from_secs(2);

struct Cell {
    binary: PathBuf,
    folder: PathBuf,
    ports: Vec<u16>,
    nodes: Vec<Child>,
}

impl Cell {
    fn start(binary: &Path, folder: &Path) -> Result<Cell, Failed> {
        let listeners =
            (0..NODES).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let ports =
            listeners.iter().map(|l| Ok(l.local_addr()?.port())).collect::<Result<Vec<_>, Failed>>()?;
        drop(listeners);
        let (binary, folder) = (binary.to_owned(), folder.to_owned());
        let mut cell = Cell { binary, folder, ports, nodes: Vec::new() };
        for index in 0..NODES {
            let node = cell.spawn(index)?;
            cell.nodes.push(node);
        }
        Ok(cell)
    }

    fn spawn(&self, index: usize) -> Result<Child, Failed> {
        let members: Vec<String> =
            self.ports.iter().zip(1..).map(|(port, id)| format!("{id}=127.0.0.1:{port}")).collect();
        Ok(Command::new(&self.binary)
            .args(["serve", "--node-id", &(index + 1).to_string(), "--cell", &members.join(",")])
            .args(["--listen", &format!("127.0.0.1:{}", self.ports[index])])
            .arg("--data-dir")
            .arg(self.folder.join(format!("node{}", index + 1)))
            .env("LOCKKEEPER_LOG", "error")
            .stdout(Stdio::null())
            .spawn()?)
    }

    fn url(&self) -> String {
        let hosts: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("lockkeeper://{}", hosts.join(","))
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
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

fn signal(node: &Child, name: &str) -> Result<(), Failed> {
    Command::new("kill").args([format!("-{name}"), node.id().to_string()]).status()?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let mut words = std::env::args().skip(1);
    let binary = PathBuf::from(words.next().ok_or("name the binary")?);
    let fault = words.next().unwrap_or_else(|| "kill".to_owned());
    let rounds: usize = words.next().map_or(Ok(10), |count| count.parse())?;
    let folder = std::env::current_dir()?.join(format!("target/failover-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut cell = Cell::start(&binary, &folder)?;
    let keeper = connect(&cell.url()).await?;
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
    let observer = connect(&cell.url()).await?;
    let mut times = Vec::new();
    for round in 0..rounds {
        tokio::time::sleep(SETTLE).await;
        let status: Status = observer.status().await?;
        let index = usize::try_from(status.leader.ok_or("no node leads")?)? - 1;
        let ended = Instant::now();
        signal(&cell.nodes[index], if fault == "stop" { "STOP" } else { "KILL" })?;
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
        println!("round {:>2}: node {} ended, next grant after {:>6.1} ms", round + 1, index + 1, ms(took));
        times.push(took);
        if fault == "stop" {
            signal(&cell.nodes[index], "CONT")?;
        } else {
            cell.nodes[index].wait()?;
            cell.nodes[index] = cell.spawn(index)?;
        }
        if long.check().is_err() {
            return Err("the lease of a live client was lost".into());
        }
    }
    worker.abort();
    times.sort();
    println!("median {:.1} ms, longest {:.1} ms", ms(times[times.len() / 2]), ms(times[times.len() - 1]));
    drop(cell);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
