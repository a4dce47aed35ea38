//! Cells of real `lockkeeper serve` processes that the tests kill, pause, cut off and restart.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

pub mod cell;
pub mod client;
pub mod http;
pub mod network;
pub mod node;
pub mod random;
pub mod skip;

use std::time::{Duration, Instant};

pub const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// Longer than any operation takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(40);

/// If this process is late by more than this, the machine is too busy for measurements of time.
pub const LATE_MAX: Duration = Duration::from_millis(30);

/// Polls until `look` returns a value.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(thing) = look().await {
            return thing;
        }
        assert!(began.elapsed() < LONG, "timed out after {LONG:?} waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Repeats an observation that a busy machine can spoil, until it succeeds. A defect fails every attempt.
pub async fn attempts(max: usize, mut observe: impl AsyncFnMut() -> Result<(), String>) {
    let mut reasons = Vec::new();
    while reasons.len() < max {
        match observe().await {
            Ok(()) => return,
            Err(reason) => reasons.push(reason),
        }
        let (count, last) = (reasons.len(), &reasons[reasons.len() - 1]);
        report_retry(&format!("attempt {count} of {max} failed: {last}"));
    }
    panic!("all {max} attempts failed: {reasons:#?}");
}

/// Reports a repeated observation. `./test` lists these lines.
pub fn report_retry(what: &str) {
    let thread = std::thread::current();
    report(&format!("RETRY {}: {what}", thread.name().unwrap_or("a test")));
}

/// Writes a line to stderr even if the test passes: the test runner hides only what the print macros write.
pub fn report(line: &str) {
    use std::io::Write;
    // One write, so that lines of concurrent tests do not mix.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Runs a future. Returns by how much this process was late at most meanwhile, which tells whether the machine was responsive.
pub async fn with_lateness<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let mut late = Duration::ZERO;
    let measuring = async {
        loop {
            let due = Instant::now() + Duration::from_millis(5);
            tokio::time::sleep_until(due.into()).await;
            late = late.max(due.elapsed());
        }
    };
    let output = tokio::select! {
        output = future => output,
        never = measuring => never,
    };
    (output, late)
}

/// Writes a file that only its owner may read.
pub fn write_secret(path: &std::path::Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).open(path).expect("a new file");
    file.write_all(text.as_bytes()).expect("a secret");
}
