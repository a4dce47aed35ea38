//! Compares the throughput of each engine through the library with the same recipe written by hand on the same client
//! crate: in alternating rounds of one run, on servers that it starts itself.
//!
//! `cargo run --release -p lockkeeper --all-features --example engine_throughput [ENGINE...]`
#![allow(clippy::unwrap_used, reason = "an example ends at the first error")]

mod consul;
mod etcd;
mod postgres;
mod redis;
mod zookeeper;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockkeeper::EngineInfo;
use lockkeeper::prelude::*;
use lockkeeper_testkit::Servers;

const ROUNDS: usize = 21;
const ROUND: Duration = Duration::from_millis(600);
/// The numbers of concurrent clients that share one keeper.
const CLIENTS: [usize; 2] = [1, 16];

/// An engine's recipe, written by hand.
trait Recipe {
    /// Acquires and releases the lock of this client.
    async fn pair(&self, client: usize);
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |engine: &str| wanted.is_empty() || wanted.iter().any(|name| name == engine);
    println!(
        "| engine | clients | direct, pairs/s | through the API, pairs/s | ratio |\n|---|---|---|---|---|"
    );
    if is_wanted("redis") {
        let server = lockkeeper_testkit::redis::Redis::with(&[]).unwrap();
        let recipe = redis::One::connect(server.address).await;
        compare(&url("redis", &server), &recipe).await;
    }
    if is_wanted("redlock") {
        let servers = lockkeeper_testkit::redis::instances(3, &[]).unwrap();
        let recipe = redis::Majority::connect(&servers.addresses()).await;
        compare(&url("redlock", &servers), &recipe).await;
    }
    if is_wanted("postgres") {
        let server = lockkeeper_testkit::postgres::Postgres::start().unwrap();
        let url = url("postgres", &server);
        // The first keeper creates the tables.
        Keeper::connect(&url).await.unwrap().close().await.unwrap();
        let recipe = postgres::Connections::open(&url, CLIENTS[1]).await;
        compare(&url, &recipe).await;
    }
    if is_wanted("etcd") {
        let server = lockkeeper_testkit::etcd::Etcd::start(1).unwrap();
        let recipe = etcd::Lease::open(server.addresses()[0]).await;
        compare(&url("etcd", &server), &recipe).await;
    }
    if is_wanted("zookeeper") {
        let server = lockkeeper_testkit::zookeeper::Zookeeper::start(1).unwrap();
        let recipe = zookeeper::Session::open(server.addresses()[0], CLIENTS[1]).await;
        compare(&url("zookeeper", &server), &recipe).await;
    }
    if is_wanted("consul") {
        let server = lockkeeper_testkit::consul::Consul::start().unwrap();
        let recipe = consul::Session::open(server.address).await;
        compare(&url("consul", &server), &recipe).await;
    }
}

/// The URL of the servers of an engine.
fn url(engine: &str, servers: &impl Servers) -> String {
    let (before, after) = servers.url_parts();
    let hosts: Vec<String> = servers.addresses().iter().map(ToString::to_string).collect();
    EngineInfo::by_name(engine).unwrap().url(&[format!("{before}{}{after}", hosts.join(","))])
}

async fn compare(url: &str, recipe: &impl Recipe) {
    let keeper = Keeper::builder().ttl(Duration::from_secs(30)).connect_unfenced(url).await.unwrap();
    for clients in CLIENTS {
        let (mut direct, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            direct.push(measure(clients, async |client| recipe.pair(client).await).await);
            ours.push(measure(clients, async |client| through_api(&keeper, client).await).await);
        }
        let (direct, ours) = (median(direct), median(ours));
        println!("| {} | {clients} | {direct:.0} | {ours:.0} | {:.2} |", keeper.engine(), ours / direct);
    }
    keeper.close().await.unwrap();
}

async fn through_api(keeper: &Keeper<lockkeeper::Unfenced>, client: usize) {
    keeper.lock(format!("ours/{client}")).acquire().await.unwrap().release().await.unwrap();
}

/// Pairs of acquire and release per second, of all clients together.
async fn measure(clients: usize, pair: impl AsyncFn(usize)) -> f64 {
    let began = Instant::now();
    let counts = join_all((0..clients).map(async |client| {
        let mut pairs = 0_u64;
        while began.elapsed() < ROUND {
            pair(client).await;
            pairs += 1;
        }
        pairs
    }));
    let pairs: u64 = counts.await.into_iter().sum();
    pairs as f64 / began.elapsed().as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Random bytes in hexadecimal.
fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0u8; BYTES];
    getrandom::fill(&mut bytes).unwrap();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
