//! The network between the nodes of a cell, whose links the tests can cut. A proxy listens at the `--cell` address of each
//! node. All nodes have the same list, so a proxy identifies the sender by the process at the other end of the connection.
//!
//! A cut delays bytes and drops none: they arrive after healing, as after a TCP retransmit. Clients are never cut.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The id of a peer that is not a node.
const CLIENT: u64 = 0;

/// The current faults of the network.
#[derive(Debug, Clone, Default)]
struct Rules {
    /// Links (from, to) whose bytes are held back.
    held: HashSet<(u64, u64)>,
    /// Links (from, to) that hold back the bytes of connections with lower numbers than this.
    frozen: HashMap<(u64, u64), u64>,
    /// Bytes per second of slow links (from, to).
    slow: HashMap<(u64, u64), usize>,
}

impl Rules {
    fn holds_back(&self, connection: u64, from: u64, to: u64) -> bool {
        self.held.contains(&(from, to))
            || self.frozen.get(&(from, to)).is_some_and(|passes| connection < *passes)
    }
}

/// Latency and packet loss between nodes.
#[derive(Debug, Clone, Copy)]
pub struct Delay {
    pub one_way: Duration,
    /// Maximum random addition.
    pub jitter: Duration,
    /// Reads per thousand that count as lost. They, and all later ones, are delayed by the retransmit time.
    pub lost_per_mille: u64,
    pub retransmit_after: Duration,
}

impl Delay {
    /// Each direction has a jitter of a tenth of the round trip.
    pub fn of_round_trip(round_trip_ms: u64, lost_per_mille: u64) -> Delay {
        Delay {
            one_way: Duration::from_millis(round_trip_ms / 2),
            jitter: Duration::from_millis(round_trip_ms / 10),
            lost_per_mille,
            retransmit_after: Duration::from_millis(round_trip_ms + 200),
        }
    }

    /// The delay of one read, and whether it counts as lost.
    fn sample(&self, random: &mut u64) -> (Duration, bool) {
        let mut next = || {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            *random
        };
        let jitter = Duration::from_micros(next() % (self.jitter.as_micros() as u64).max(1));
        let is_lost = next() % 1_000 < self.lost_per_mille;
        let retransmit = if is_lost { self.retransmit_after } else { Duration::ZERO };
        (self.one_way + jitter + retransmit, is_lost)
    }
}

/// The network of one cell.
#[derive(Clone)]
pub struct Network {
    rules: watch::Sender<Rules>,
    delay: Arc<Mutex<Option<Delay>>>,
    lost: Arc<AtomicU64>,
    /// The number of connections so far.
    connections: Arc<AtomicU64>,
    processes: Arc<Mutex<HashMap<u32, u64>>>,
    proxies: Arc<Mutex<JoinSet<()>>>,
}

impl Network {
    pub fn new() -> Network {
        Network {
            rules: watch::Sender::default(),
            delay: Arc::default(),
            lost: Arc::default(),
            connections: Arc::default(),
            processes: Arc::default(),
            proxies: Arc::new(Mutex::new(JoinSet::new())),
        }
    }

    fn processes(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a node process. Holds the lock until it is registered, so that every connection can be attributed.
    pub fn start(&self, node: u64, start: impl FnOnce() -> u32) {
        let mut processes = self.processes();
        let process = start();
        processes.retain(|_, known| *known != node);
        processes.insert(process, node);
    }

    /// The number of reads that counted as lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Cuts the link from `from` to `to`.
    pub fn cut(&self, from: u64, to: u64) {
        self.rules.send_modify(|rules| {
            rules.held.insert((from, to));
        });
    }

    pub fn cut_both(&self, one: u64, other: u64) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Limits the rate of the link from `from` to `to`.
    pub fn slow_down(&self, from: u64, to: u64, bytes_per_second: usize) {
        self.rules.send_modify(|rules| {
            rules.slow.insert((from, to), bytes_per_second);
        });
    }

    /// Sets the delay of connections between nodes that are opened from now on.
    pub fn delay(&self, delay: Option<Delay>) {
        *self.delay.lock().unwrap_or_else(PoisonError::into_inner) = delay;
    }

    fn delay_between(&self, one: u64, other: u64) -> Option<Delay> {
        let delay = *self.delay.lock().unwrap_or_else(PoisonError::into_inner);
        delay.filter(|_| one != CLIENT && other != CLIENT)
    }

    pub fn heal(&self) {
        self.rules.send_replace(Rules::default());
    }

    /// Ends the cuts between two nodes for connections that are opened from now on. Older ones stay frozen until the next
    /// [`Network::heal`], as a connection whose next TCP retransmit is still far away.
    pub fn heal_for_new(&self, one: u64, other: u64) {
        let next = self.connections.load(Ordering::Relaxed);
        self.rules.send_modify(|rules| {
            for link in [(one, other), (other, one)] {
                rules.held.remove(&link);
                rules.frozen.insert(link, next);
            }
        });
    }

    /// Opens the proxy in front of a node.
    pub async fn proxy(&self, node: u64, public: &str, real: &str) {
        let listener = TcpListener::bind(public).await.expect("a free address");
        let (network, real) = (self.clone(), real.to_owned());
        let run = async move {
            let mut connections = JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                let Ok((inbound, peer)) = listener.accept().await else { continue };
                let (network, real) = (network.clone(), real.clone());
                connections.spawn(async move {
                    // Either end may close at any time.
                    let _ = network.carry(inbound, peer, node, &real).await;
                });
            }
        };
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).spawn(run);
    }

    async fn carry(&self, inbound: TcpStream, peer: SocketAddr, to: u64, real: &str) -> io::Result<()> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let outbound = TcpStream::connect(real).await?;
        // Scanning all sockets of the machine takes a while.
        let (network, local) = (self.clone(), inbound.local_addr()?);
        let from = tokio::task::spawn_blocking(move || network.sender(peer, local)).await?;
        inbound.set_nodelay(true)?;
        outbound.set_nodelay(true)?;
        if let Some(delay) = self.delay_between(from, to) {
            // TCP handshake.
            tokio::time::sleep(delay.one_way * 2).await;
        }
        let (in_read, in_write) = inbound.into_split();
        let (out_read, out_write) = outbound.into_split();
        tokio::select! {
            ended = self.pump(number, in_read, out_write, (from, to)) => ended,
            ended = self.pump(number, out_read, in_write, (to, from)) => ended,
        }
    }

    async fn pump(
        &self,
        connection: u64,
        mut read: OwnedReadHalf,
        mut write: OwnedWriteHalf,
        (from, to): (u64, u64),
    ) -> io::Result<()> {
        let mut rules = self.rules.subscribe();
        let delay = self.delay_between(from, to);
        let (late, mut arriving) = mpsc::channel(if delay.is_some() { 4_096 } else { 1 });
        let reading = async {
            let mut random = 0x9e37_79b9_7f4a_7c15 ^ (from << 32) ^ to;
            let mut last = Instant::now();
            loop {
                let mut bytes = vec![0; 64 * 1024];
                let count = read.read(&mut bytes).await;
                let (delay, is_lost) =
                    delay.map_or((Duration::ZERO, false), |delay| delay.sample(&mut random));
                self.lost.fetch_add(is_lost.into(), Ordering::Relaxed);
                last = last.max(Instant::now() + delay);
                let ended = !matches!(count, Ok(1..));
                bytes.truncate(*count.as_ref().unwrap_or(&0));
                if late.send((last, count.map(|_| bytes))).await.is_err() || ended {
                    return std::future::pending::<io::Result<()>>().await;
                }
            }
        };
        let writing = async {
            while let Some((due, bytes)) = arriving.recv().await {
                tokio::time::sleep_until(due).await;
                // A close is held back as well: the other side must not notice it.
                let slow = match rules.wait_for(|rules| !rules.holds_back(connection, from, to)).await {
                    Ok(rules) => rules.slow.get(&(from, to)).copied(),
                    Err(_) => return Ok(()),
                };
                let bytes: Vec<u8> = bytes?;
                if bytes.is_empty() {
                    return Ok(());
                }
                write.write_all(&bytes).await?;
                if let Some(per_second) = slow {
                    tokio::time::sleep(Duration::from_secs_f64(bytes.len() as f64 / per_second as f64)).await;
                }
            }
            Ok(())
        };
        tokio::select! {
            ended = reading => ended,
            ended = writing => ended,
        }
    }

    /// The node that opened the connection from `peer` to `local`.
    fn sender(&self, peer: SocketAddr, local: SocketAddr) -> u64 {
        let Some(inode) = inode(peer, local) else { return CLIENT };
        let wanted = format!("socket:[{inode}]");
        let processes = self.processes();
        processes.iter().find(|(process, _)| has_open(**process, &wanted)).map_or(CLIENT, |(_, node)| *node)
    }
}

/// The inode of a local socket.
fn inode(local: SocketAddr, remote: SocketAddr) -> Option<String> {
    let (local, remote) = (in_hex(local)?, in_hex(remote)?);
    std::fs::read_to_string("/proc/net/tcp").ok()?.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let found = words.next() == Some(&local) && words.next() == Some(&remote);
        found.then(|| words.nth(6).map(str::to_owned)).flatten()
    })
}

fn in_hex(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port()))
}

fn has_open(process: u32, wanted: &str) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    files
        .flatten()
        .any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == wanted))
}
