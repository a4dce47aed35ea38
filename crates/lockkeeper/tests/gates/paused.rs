//! Holders that are stopped by SIGSTOP for longer than their lease, and write when they are continued. With the gate no update
//! is lost, without it some are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use lockkeeper::gates::file::FileGate;
use lockkeeper::gates::http::{FenceLayer, FileTokens, HEADER, header_value};
use lockkeeper::gates::postgres::{Fence, to_error};
use lockkeeper::gates::redis::RedisGate;
use lockkeeper::prelude::*;
use lockkeeper::{Error, Token};
use redis::AsyncCommands;
use rustix::process::Signal;

use crate::child::{Child, send_message, setting};
use crate::servers::Site;
use crate::servers::cell::Cell;

/// Concurrent holders, each with its own lock and resource.
const HOLDERS: usize = 20;
const ROUNDS_WITH_GATE: usize = 10;
const ROUNDS_WITHOUT: usize = 2;
/// The shortest possible lease.
const LEASE: Duration = Duration::from_millis(100);

/// A resource with named numbers, with or without its gate.
enum Resource {
    Postgres(Box<tokio_postgres::Client>),
    Redis(redis::aio::ConnectionManager),
    Files(std::path::PathBuf),
    Http(reqwest::Client, String),
}

impl Resource {
    async fn open(kind: &str, target: &str) -> Resource {
        match kind {
            "postgres" => Resource::Postgres(Box::new(crate::postgres::connect(target).await)),
            "redis" => Resource::Redis(crate::redis::connect(target).await),
            "files" => Resource::Files(target.into()),
            "http" => Resource::Http(reqwest::Client::new(), target.to_owned()),
            other => panic!("there is no resource {other}"),
        }
    }

    /// Reads a number. With a token, the gate refuses older tokens from then on.
    async fn read(&mut self, name: &str, token: Option<Token>) -> Result<u64, Error> {
        match (self, token) {
            (Resource::Postgres(client), token) => {
                let transaction = client.transaction().await.map_err(to_error)?;
                if let Some(token) = token {
                    Fence::check(&transaction, name, token).await?;
                }
                let row = transaction.query_one("SELECT value FROM number WHERE name = $1", &[&name]).await;
                let value: i64 = row.map_err(to_error)?.get(0);
                transaction.commit().await.map_err(to_error)?;
                Ok(value as u64)
            }
            (Resource::Redis(connection), Some(token)) => {
                Ok(RedisGate::new(connection.clone()).get::<Option<u64>>(name, token).await?.unwrap_or(0))
            }
            (Resource::Redis(connection), None) => {
                Ok(connection.get::<_, Option<u64>>(name).await.unwrap().unwrap_or(0))
            }
            (Resource::Files(folder), Some(token)) => {
                Ok(number(FileGate::new(folder.join(name)).read(token).await?.unwrap_or_default()))
            }
            (Resource::Files(folder), None) => {
                Ok(number(std::fs::read(folder.join(name)).unwrap_or_default()))
            }
            (Resource::Http(client, url), token) => {
                let request = client.get(format!("{url}/{}/{name}", route(token)));
                Ok(number(answer(request, name, token).await?))
            }
        }
    }

    async fn write(&mut self, name: &str, value: u64, token: Option<Token>) -> Result<(), Error> {
        match (self, token) {
            (Resource::Postgres(client), token) => {
                let transaction = client.transaction().await.map_err(to_error)?;
                if let Some(token) = token {
                    Fence::check(&transaction, name, token).await?;
                }
                let update = "UPDATE number SET value = $2 WHERE name = $1";
                transaction.execute(update, &[&name, &(value as i64)]).await.map_err(to_error)?;
                transaction.commit().await.map_err(to_error)
            }
            (Resource::Redis(connection), Some(token)) => {
                RedisGate::new(connection.clone()).set(name, value, token).await
            }
            (Resource::Redis(connection), None) => {
                let _: () = connection.set(name, value).await.unwrap();
                Ok(())
            }
            (Resource::Files(folder), Some(token)) => {
                FileGate::new(folder.join(name)).write(value.to_string(), token).await
            }
            (Resource::Files(folder), None) => {
                std::fs::write(folder.join(name), value.to_string()).unwrap();
                Ok(())
            }
            (Resource::Http(client, url), token) => {
                let request = client.put(format!("{url}/{}/{name}", route(token))).body(value.to_string());
                answer(request, name, token).await.map(|_| ())
            }
        }
    }
}

fn number(text: impl AsRef<[u8]>) -> u64 {
    let text = std::str::from_utf8(text.as_ref()).unwrap();
    if text.is_empty() { 0 } else { text.parse().unwrap() }
}

fn route(token: Option<Token>) -> &'static str {
    if token.is_some() { "fenced" } else { "open" }
}

async fn answer(
    request: reqwest::RequestBuilder,
    lock: &str,
    token: Option<Token>,
) -> Result<Vec<u8>, Error> {
    let request = match token {
        Some(token) => request.header(HEADER, header_value(lock, token)),
        None => request,
    };
    let response = request.send().await.unwrap();
    match response.status().as_u16() {
        200 => Ok(response.bytes().await.unwrap().into()),
        412 => Err(Error::StaleToken { last_token: Token(0) }),
        status => panic!("{status}: {:?}", response.text().await),
    }
}

/// A service with named numbers, reachable through the layer and without it.
fn service(tokens: FileTokens) -> Router {
    type Numbers = Arc<Mutex<HashMap<String, u64>>>;
    let read = async |State(numbers): State<Numbers>, Path(name): Path<String>| {
        numbers.lock().unwrap().get(&name).copied().unwrap_or(0).to_string()
    };
    let write = async |State(numbers): State<Numbers>, Path(name): Path<String>, body: String| {
        numbers.lock().unwrap().insert(name, number(body));
    };
    let routes =
        Router::new().route("/{name}", axum::routing::get(read).put(write)).with_state(Numbers::default());
    Router::new().nest("/fenced", routes.clone().layer(FenceLayer::new(tokens))).nest("/open", routes)
}

/// The holder: reads, is stopped, and writes the increment. It does not check its guard in between, like a process that is
/// stopped just before its write.
async fn hold() {
    let keeper =
        Keeper::builder().ttl(LEASE).request_timeout(30.secs()).connect(&setting("URL")).await.unwrap();
    let mut resource = Resource::open(&setting("KIND"), &setting("TARGET")).await;
    for (name, has_gate, rounds) in plan(&setting("HOLDER")) {
        for _ in 0..rounds {
            let (guard, token, value) = loop {
                let Ok(guard) = keeper.lock(&*name).acquire().await else { continue };
                let token = has_gate.then(|| guard.token());
                match resource.read(&name, token).await {
                    Ok(value) => break (guard, token, value),
                    Err(Error::StaleToken { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            };
            send_message("holds");
            // A signal to this very thread, so that it stops at once.
            nix::sys::signal::raise(nix::sys::signal::SIGSTOP).unwrap();
            match resource.write(&name, value + 1, token).await {
                Ok(()) => send_message("wrote"),
                Err(Error::StaleToken { .. }) => send_message("refused"),
                Err(error) => panic!("{error}"),
            }
            drop(guard);
        }
    }
}

/// The plan of a holder: name of lock and resource, whether it uses a gate, number of rounds.
fn plan(holder: &str) -> [(String, bool, usize); 2] {
    [(format!("fenced-{holder}"), true, ROUNDS_WITH_GATE), (format!("open-{holder}"), false, ROUNDS_WITHOUT)]
}

#[test]
#[ignore = "started by the other tests as a separate process"]
fn holder_process() {
    if std::env::var("LOCKKEEPER_TEST_ROLE").is_ok_and(|role| role == "paused") {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(hold());
    }
}

fn until_stopped(process: u32) {
    let until = Instant::now() + Duration::from_secs(30);
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
    };
    while !is_stopped() {
        assert!(Instant::now() < until, "the holder does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lost updates with and without the gate, and refused writes.
#[derive(Debug, Default, Clone, Copy)]
struct Lost {
    with_gate: u64,
    without: u64,
    refused: u64,
}

/// The rival of one holder: acquires the lock each time the holder is stopped.
async fn rival(mut holder: Child, keeper: Keeper, mut resource: Resource, number: usize) -> Lost {
    let mut lost = Lost::default();
    for (name, has_gate, rounds) in plan(&number.to_string()) {
        let mut written = 0;
        for _ in 0..rounds {
            assert_eq!(holder.next_message(), "holds");
            until_stopped(holder.process.id());
            // Only the expiry of the holder's lease ends the wait.
            let guard = keeper.lock(&*name).wait(30.secs()).acquire().await.unwrap();
            let token = has_gate.then(|| guard.token());
            let value = resource.read(&name, token).await.unwrap();
            resource.write(&name, value + 1, token).await.unwrap();
            written += 1;
            holder.signal(Signal::CONT);
            match holder.next_message().as_str() {
                "wrote" => written += 1,
                _ => lost.refused += 1,
            }
            guard.release().await.unwrap();
        }
        let value = resource.read(&name, has_gate.then_some(Token::MAX)).await.unwrap();
        *(if has_gate { &mut lost.with_gate } else { &mut lost.without }) += written - value;
    }
    holder.wait_for_success();
    lost
}

/// Serializes these tests: they rely on holders that renew in time until they are stopped.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn stopped_holders(kind: &str, target: &str) {
    let cell = Cell::start();
    let url = cell.url();
    let lost = std::thread::scope(|scope| {
        let rivals: Vec<_> = (0..HOLDERS)
            .map(|number| {
                let url = &url;
                scope.spawn(move || {
                    let settings = [
                        ("URL", url.as_str()),
                        ("KIND", kind),
                        ("TARGET", target),
                        ("HOLDER", &number.to_string()),
                    ];
                    let holder = Child::start_test("paused::holder_process", "paused", &settings);
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async {
                        let keeper = Keeper::builder().ttl(30.secs()).connect(url).await.unwrap();
                        rival(holder, keeper, Resource::open(kind, target).await, number).await
                    })
                })
            })
            .collect();
        rivals.into_iter().map(|rival| rival.join().unwrap()).fold(Lost::default(), |sum, lost| Lost {
            with_gate: sum.with_gate + lost.with_gate,
            without: sum.without + lost.without,
            refused: sum.refused + lost.refused,
        })
    });
    let rounds = (HOLDERS * ROUNDS_WITH_GATE) as u64;
    println!(
        "{kind}: with the gate {} lost updates in {rounds} rounds ({} stale writes refused), without it {} in {}",
        lost.with_gate,
        lost.refused,
        lost.without,
        HOLDERS * ROUNDS_WITHOUT
    );
    assert_eq!(rounds, 200);
    assert_eq!(lost.with_gate, 0, "{lost:?}");
    assert_eq!(lost.refused, rounds, "every write of a stopped holder is stale: {lost:?}");
    assert!(lost.without > 0, "no update was lost without the gate, so the test proves nothing: {lost:?}");
}

#[test]
fn stopped_holder_loses_no_update_in_postgres() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let postgres = crate::servers::postgres::Postgres::start();
    let rows: Vec<_> =
        (0..HOLDERS).map(|number| format!("('fenced-{number}', 0), ('open-{number}', 0)")).collect();
    postgres.query("CREATE TABLE number (name text PRIMARY KEY, value bigint NOT NULL)");
    postgres.query(&format!("INSERT INTO number VALUES {}", rows.join(", ")));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = crate::postgres::url(&postgres);
    runtime.block_on(async { Fence::migrate(&crate::postgres::connect(&url).await).await.unwrap() });
    stopped_holders("postgres", &url);
}

#[test]
fn stopped_holder_loses_no_update_in_redis() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let redis = crate::servers::redis::Redis::start();
    stopped_holders("redis", &redis.url());
}

#[test]
fn stopped_holder_loses_no_update_in_files() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    stopped_holders("files", folder.path().to_str().unwrap());
}

#[test]
fn stopped_holder_loses_no_update_over_http() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let tokens = FileTokens::open(folder.path()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let address = runtime.block_on(crate::http::serve(service(tokens)));
    stopped_holders("http", &format!("http://{address}"));
}
