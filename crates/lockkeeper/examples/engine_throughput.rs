//! How fast an engine is through our API, against the same recipe written directly with the same client crate, in one run
//! and in turns: `cargo run --release --example engine_throughput --features redlock,postgres -- URL...`
//! for `redis://`, `redlock://` and `postgres://`.
#![allow(clippy::unwrap_used, reason = "an example ends at the first error")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockkeeper::prelude::*;
use redis::Script;
use redis::aio::MultiplexedConnection;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const TTL_MS: u64 = 10_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!("{:<12} {:>8} {:>12} {:>12} {:>7}", "engine", "clients", "direct/s", "ours/s", "ratio");
    for url in std::env::args().skip(1) {
        for clients in [1, 16] {
            let (mut direct, mut ours) = (Vec::new(), Vec::new());
            let keeper = Keeper::connect_unfenced(&url).await.unwrap();
            let recipe = Arc::new(Recipe::connect(&url, clients).await);
            for _ in 0..ROUNDS {
                direct.push(measure(clients, |client| recipe.clone().pairs(client)).await);
                ours.push(measure(clients, |client| through_api(keeper.clone(), client)).await);
            }
            let (direct, ours) = (median(direct), median(ours));
            let engine = keeper.engine();
            println!("{engine:<12} {clients:>8} {direct:>12.0} {ours:>12.0} {:>7.2}", ours / direct);
            keeper.close().await.unwrap();
        }
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Pairs of acquire and release in a second, of all clients together.
async fn measure<F: Future<Output = u64>>(clients: usize, client: impl Fn(usize) -> F) -> f64 {
    let began = Instant::now();
    let pairs: u64 = join_all((0..clients).map(client)).await.into_iter().sum();
    pairs as f64 / began.elapsed().as_secs_f64()
}

async fn through_api(keeper: Keeper<lockkeeper::Unfenced>, client: usize) -> u64 {
    let lock = keeper.lock(format!("ours/{client}"));
    let (began, mut pairs) = (Instant::now(), 0);
    while began.elapsed() < ROUND {
        lock.acquire().await.unwrap().release().await.unwrap();
        pairs += 1;
    }
    pairs
}

/// The same steps, by hand.
enum Recipe {
    Redis {
        connection: MultiplexedConnection,
        take: Script,
        give: Script,
    },
    Redlock {
        connections: Vec<MultiplexedConnection>,
        take: Script,
        give: Script,
    },
    Postgres {
        clients: Vec<tokio_postgres::Client>,
        statements: Vec<(tokio_postgres::Statement, tokio_postgres::Statement)>,
    },
}

const PLANT: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0";
const TAKE: &str =
    "WITH known AS MATERIALIZED (SELECT key, name FROM lockkeeper.name WHERE key = hashtextextended($1, 0)),
    got AS MATERIALIZED (SELECT pg_try_advisory_lock(known.key) AS ok FROM known WHERE known.name = $1)
    SELECT got.ok, CASE WHEN got.ok THEN nextval('lockkeeper.token') END,
      set_config('idle_session_timeout', $2, false), set_config('application_name', $3, false) FROM got";
const GIVE: &str =
    "SELECT pg_advisory_unlock(hashtextextended($1, 0)), set_config('idle_session_timeout', '0', false),
    set_config('application_name', 'direct', false)";

impl Recipe {
    async fn connect(url: &str, clients: usize) -> Recipe {
        let give = Script::new(include_str!("../src/engines/redis/give.lua"));
        let redis = |host: String| async move {
            let client = redis::Client::open(format!("redis://{host}")).unwrap();
            client.get_multiplexed_async_connection().await.unwrap()
        };
        if let Some(host) = url.strip_prefix("redis://") {
            let take = Script::new(include_str!("../src/engines/redis/take.lua"));
            return Recipe::Redis { connection: redis(host.to_owned()).await, take, give };
        }
        if let Some(hosts) = url.strip_prefix("redlock://") {
            let hosts = hosts.split('?').next().unwrap();
            let connections = join_all(hosts.split(',').map(|host| redis(host.to_owned()))).await;
            return Recipe::Redlock { connections, take: Script::new(PLANT), give };
        }
        let (mut all, mut statements) = (Vec::new(), Vec::new());
        for client in 0..clients {
            let (connected, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let name = format!("direct/{client}");
            let insert =
                "INSERT INTO lockkeeper.name VALUES (hashtextextended($1, 0), $1) ON CONFLICT DO NOTHING";
            connected.execute(insert, &[&name]).await.unwrap();
            statements.push((connected.prepare(TAKE).await.unwrap(), connected.prepare(GIVE).await.unwrap()));
            all.push(connected);
        }
        Recipe::Postgres { clients: all, statements }
    }

    async fn pairs(self: Arc<Recipe>, client: usize) -> u64 {
        let (began, mut pairs) = (Instant::now(), 0);
        while began.elapsed() < ROUND {
            self.pair(client).await;
            pairs += 1;
        }
        pairs
    }

    async fn pair(&self, client: usize) {
        let mut bytes = [0u8; 20];
        getrandom::fill(&mut bytes).unwrap();
        let id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = format!("lockkeeper:lock:direct/{client}");
        match self {
            Recipe::Redis { connection, take, give } => {
                let mut connection = connection.clone();
                let mut invocation = take.key(&key);
                invocation.key("lockkeeper:token").arg(&id).arg(TTL_MS).arg("x").arg(1).arg("direct");
                let (granted, _): (i64, i64) = invocation.invoke_async(&mut connection).await.unwrap();
                assert_eq!(granted, 1);
                let given: i64 = give.key(&key).arg(&id).invoke_async(&mut connection).await.unwrap();
                assert_eq!(given, 1);
            }
            Recipe::Redlock { connections, take, give } => {
                for script in [take, give] {
                    let all = connections.iter().map(|connection| {
                        let (mut connection, key, id) = (connection.clone(), &key, &id);
                        async move {
                            let mut invocation = script.key(key);
                            let answer = invocation.arg(id).arg(TTL_MS).invoke_async::<i64>(&mut connection);
                            tokio::time::timeout(Duration::from_millis(300), answer)
                                .await
                                .is_ok_and(|yes| yes == Ok(1))
                        }
                    });
                    let yes = join_all(all).await.into_iter().filter(|yes| *yes).count();
                    assert!(yes > connections.len() / 2);
                }
            }
            Recipe::Postgres { clients, statements } => {
                let name = format!("direct/{client}");
                let (take, give) = &statements[client];
                let row = clients[client].query_one(take, &[&name, &"10000ms", &"direct"]).await.unwrap();
                assert!(row.get::<_, bool>(0));
                let row = clients[client].query_one(give, &[&name]).await.unwrap();
                assert!(row.get::<_, bool>(0));
            }
        }
    }
}
