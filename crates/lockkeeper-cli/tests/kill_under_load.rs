//! `kill -9` under load, at 200 random times: every acknowledged grant, release and value survives the restart, requests in
//! doubt are settled by their request ids, and tokens keep rising (S1, S5, S10).
//!
//! LOCKKEEPER_KILLS sets the number of kills, LOCKKEEPER_SEED the seed; both are printed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_testkit::http::get;
use lockkeeper_testkit::{Process, Program, free_address};
use serde_json::{Value, json};

const WORKERS: usize = 8;
const LOCKS_EACH: usize = 4;

/// A small seeded random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

struct Server {
    process: Process,
    address: SocketAddr,
}

impl Server {
    fn start(folder: &Path, address: SocketAddr) -> Server {
        let data = folder.join("data").to_string_lossy().into_owned();
        let words = ["serve", "--listen", &address.to_string(), "--data-dir", &data];
        let mut program = Program::new(env!("CARGO_BIN_EXE_lockkeeper"), &words, folder.join("log"));
        // Frequent snapshots and log purges, so that some kills hit them.
        let settings = [
            ("LOCKKEEPER_LOG", "warn,openraft=error"),
            ("LOCKKEEPER_SNAPSHOT_EVERY", "200"),
            ("LOCKKEEPER_SNAPSHOT_BEHIND", "50"),
        ];
        program.environment = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let mut process = program.start().expect("lockkeeper can be started");
        let is_ready = || get(address, "/readyz?verbose").contains("\"status\":\"ok\"");
        process.wait_until("lockkeeper to serve", is_ready).expect("lockkeeper serves");
        Server { process, address }
    }

    fn kill(self) {
        drop(self.process);
    }
}

/// An HTTP connection. An error means that the node was killed and the outcome of the call is unknown.
struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    fn connect(address: SocketAddr) -> std::io::Result<Http> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Http { stream: BufReader::new(stream) })
    }

    fn post(&mut self, path: &str, body: &Value) -> std::io::Result<(u16, Value)> {
        let body = body.to_string();
        self.call(&format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    fn get(&mut self, path: &str) -> std::io::Result<(u16, Value)> {
        self.call(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
    }

    fn call(&mut self, request: &str) -> std::io::Result<(u16, Value)> {
        let broken = |what: &str| std::io::Error::other(what.to_owned());
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or(broken("cut off"))?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(broken("cut off"));
            }
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(|_| broken("a length"))?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, serde_json::from_slice(&body).map_err(|_| broken("a body"))?))
    }
}

/// State of a lock as its worker knows it.
#[derive(Debug, Clone, PartialEq)]
enum Known {
    Free,
    Held(u64),
    /// The acquire with this request id was not answered.
    Acquiring(String),
    /// The release of this token was not answered.
    Releasing(u64),
}

/// A worker and its acknowledged operations.
struct Worker {
    number: usize,
    session: String,
    locks: Vec<(String, Known)>,
    /// Acknowledged value and value in doubt, by key.
    values: HashMap<String, (Option<u64>, Option<u64>)>,
    requests: u64,
    highest_token: u64,
    done: u64,
    random: Random,
}

impl Worker {
    fn open(number: usize, http: &mut Http, seed: u64) -> Worker {
        let (status, opened) = http
            .post("/v1/session/open", &json!({"ttl_ms": 3_600_000, "owner": format!("worker-{number}")}))
            .unwrap();
        assert_eq!(status, 200, "{opened}");
        Worker {
            number,
            session: opened["session"].as_str().unwrap().to_owned(),
            locks: (0..LOCKS_EACH).map(|lock| (format!("lock-{number}-{lock}"), Known::Free)).collect(),
            values: HashMap::new(),
            requests: 0,
            highest_token: 0,
            done: 0,
            random: Random(seed),
        }
    }

    /// Runs until the node is killed.
    fn work(&mut self, address: SocketAddr, stop: &AtomicBool) {
        let Ok(mut http) = Http::connect(address) else { return };
        while !stop.load(Ordering::Relaxed) {
            if self.step(&mut http).is_err() {
                return;
            }
            self.done += 1;
        }
    }

    fn step(&mut self, http: &mut Http) -> std::io::Result<()> {
        let chosen = self.random.below(LOCKS_EACH as u64) as usize;
        if self.random.below(3) == 0 {
            return self.put(http, chosen);
        }
        let (lock, known) = self.locks[chosen].clone();
        match known {
            Known::Free => {
                self.requests += 1;
                let request = format!("w{}-{}", self.number, self.requests);
                self.acquire(http, chosen, &lock, request)
            }
            Known::Held(token) => {
                self.locks[chosen].1 = Known::Releasing(token);
                let body = json!({"session": self.session, "lock": lock, "token": token});
                let (status, answer) = http.post("/v1/lock/release", &body)?;
                assert_eq!(status, 200, "{answer}");
                self.locks[chosen].1 = Known::Free;
                Ok(())
            }
            Known::Acquiring(_) | Known::Releasing(_) => unreachable!("settled after each restart"),
        }
    }

    fn acquire(
        &mut self,
        http: &mut Http,
        chosen: usize,
        lock: &str,
        request: String,
    ) -> std::io::Result<()> {
        self.locks[chosen].1 = Known::Acquiring(request.clone());
        let body = json!({"session": self.session, "lock": lock, "request": request});
        let (status, answer) = http.post("/v1/lock/acquire", &body)?;
        assert_eq!(status, 200, "{lock} has no other user: {answer}");
        let token = answer["token"].as_u64().unwrap();
        assert!(token > self.highest_token, "token {token} is not above {}", self.highest_token);
        self.highest_token = token;
        self.locks[chosen].1 = Known::Held(token);
        Ok(())
    }

    fn put(&mut self, http: &mut Http, chosen: usize) -> std::io::Result<()> {
        let key = format!("value-{}-{chosen}", self.number);
        let number = self.random.next() >> 12;
        let known = self.values.entry(key.clone()).or_default();
        known.1 = Some(number);
        let (status, answer) =
            http.post("/v1/value/put", &json!({"key": key, "value": number.to_string()}))?;
        assert_eq!(status, 200, "{answer}");
        *known = (Some(number), None);
        Ok(())
    }

    /// Verifies all acknowledged operations, and settles those in doubt.
    fn verify(&mut self, http: &mut Http) {
        for chosen in 0..LOCKS_EACH {
            let (lock, known) = self.locks[chosen].clone();
            let (_, seen) = http.get(&format!("/v1/lock?name={lock}")).unwrap();
            let holders: Vec<u64> =
                seen["holders"].as_array().unwrap().iter().map(|h| h["token"].as_u64().unwrap()).collect();
            match known {
                Known::Free => {
                    assert!(holders.is_empty(), "{lock} was released, and that was acknowledged: {holders:?}")
                }
                Known::Held(token) => {
                    assert_eq!(holders, [token], "{lock} was granted, and that was acknowledged")
                }
                Known::Releasing(token) => {
                    assert!(holders.is_empty() || holders == [token], "{lock}: {holders:?}");
                    let body = json!({"session": self.session, "lock": lock, "token": token});
                    let (status, answer) = http.post("/v1/lock/release", &body).unwrap();
                    let expected = if holders.is_empty() { 409 } else { 200 };
                    assert_eq!(status, expected, "{answer}");
                    self.locks[chosen].1 = Known::Free;
                }
                Known::Acquiring(request) => {
                    assert!(holders.len() <= 1, "{lock}: {holders:?}");
                    // The retry is the same request: if it was granted before, it returns the same grant.
                    self.acquire(http, chosen, &lock, request).unwrap();
                    if let [granted] = holders[..] {
                        assert_eq!(
                            self.locks[chosen].1,
                            Known::Held(granted),
                            "a second grant for one request"
                        );
                    }
                }
            }
        }
        for (key, (acknowledged, in_doubt)) in &mut self.values {
            let (_, seen) = http.get(&format!("/v1/value?key={key}")).unwrap();
            let seen: Option<u64> = seen["value"].as_str().map(|text| text.parse().unwrap());
            assert!(seen == *acknowledged || (in_doubt.is_some() && seen == *in_doubt), "{key}: {seen:?}");
            *acknowledged = seen;
            *in_doubt = None;
        }
    }
}

#[test]
fn kill_under_load_loses_nothing_acknowledged() {
    let kills: u64 = std::env::var("LOCKKEEPER_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let seed: u64 =
        std::env::var("LOCKKEEPER_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1
        });
    println!("LOCKKEEPER_SEED={seed} LOCKKEEPER_KILLS={kills}");
    let mut random = Random(seed);
    let folder = tempfile::tempdir().unwrap();

    let address = free_address(7420);
    let mut server = Server::start(folder.path(), address);
    let mut http = Http::connect(address).unwrap();
    let mut workers: Vec<Worker> =
        (0..WORKERS).map(|number| Worker::open(number, &mut http, random.next())).collect();
    let began = Instant::now();
    for kill in 0..kills {
        let stop = Arc::new(AtomicBool::new(false));
        let running: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    worker.work(address, &stop);
                    worker
                })
            })
            .collect();
        // A random delay before the kill.
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        server.kill();
        stop.store(true, Ordering::Relaxed);
        workers = running.into_iter().map(|thread| thread.join().expect("a worker failed")).collect();

        server = Server::start(folder.path(), address);
        let mut http = Http::connect(address).unwrap();
        let highest = workers.iter().map(|worker| worker.highest_token).max().unwrap_or(0);
        for worker in &mut workers {
            worker.verify(&mut http);
        }
        let probe = json!({"session": workers[0].session, "lock": format!("probe-{kill}")});
        let (status, answer) = http.post("/v1/lock/acquire", &probe).unwrap();
        assert_eq!(status, 200, "{answer}");
        assert!(answer["token"].as_u64().unwrap() > highest, "tokens keep rising: {answer} after {highest}");
    }
    let done: u64 = workers.iter().map(|worker| worker.done).sum();
    println!("{kills} kills, {done} acknowledged operations, {:.1} s", began.elapsed().as_secs_f64());
    assert!(done > kills, "the workers did work between the kills");
    let (_, status) = Http::connect(server.address).unwrap().get("/v1/status").unwrap();
    let (snapshot, purged) = (&status["snapshot_index"], &status["purged_index"]);
    println!("last snapshot at entry {snapshot}, log purged to {purged}");
    // Each start counts its commands from zero, so with few kills there may be no snapshot.
    assert!(kills < 100 || (snapshot.as_u64() > Some(0) && purged.as_u64() > Some(0)), "{status}");
}
