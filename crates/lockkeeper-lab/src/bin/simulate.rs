//! Runs seeds of the simulation: `simulate --seeds 10000`, or one seed with its trace: `simulate --seed 4711`.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_lab::simulation::{Mutation, Outcome, RunOptions, now, proof, run};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const USAGE: &str = "usage: simulate [--seeds COUNT] [--first SEED] [--seconds EACH]
       simulate --seed SEED [--seconds EACH] [--bug NAME]    one seed, with its trace; NAME is a bug to reintroduce
       simulate --mutations MAX [--bug NAME]     reintroduces each known bug and searches up to MAX seeds for it
RUST_LOG=debug adds the logs of nodes and clients.";

struct Options {
    first: u64,
    seeds: u64,
    duration: Duration,
    trace: bool,
    mutations: bool,
    bug: Option<Mutation>,
}

/// Formats the simulated time of a log line.
struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        write!(writer, "{:9.3}", now().as_secs_f64())
    }
}

fn read_arguments() -> Option<Options> {
    let mut options = Options {
        first: 0,
        seeds: 10_000,
        duration: Duration::from_secs(20),
        trace: false,
        mutations: false,
        bug: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next()?;
        if name == "--bug" {
            options.bug = Some(Mutation::ALL.into_iter().find(|bug| format!("{bug:?}") == value)?);
            continue;
        }
        let number: u64 = value.parse().ok()?;
        match name.as_str() {
            "--seeds" => options.seeds = number,
            "--first" => options.first = number,
            "--seconds" => options.duration = Duration::from_secs(number),
            "--seed" => (options.first, options.seeds, options.trace) = (number, 1, true),
            "--mutations" => (options.mutations, options.seeds) = (true, number),
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = read_arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    if let Some(filter) = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok()) {
        let lines = tracing_subscriber::fmt::layer().with_timer(SimulatedTime).with_ansi(false);
        tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    }
    if options.mutations {
        return find_mutations(&options);
    }
    let began = Instant::now();
    let next = AtomicU64::new(options.first);
    let end = options.first + options.seeds;
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(options.seeds as usize);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let bad = report(seed, &options);
                    if bad && let Ok(mut failed) = failed.lock() {
                        failed.push(seed);
                    }
                    let done = seed - options.first + 1;
                    if done.is_multiple_of(100) {
                        eprintln!("{done} seeds in {:.0?}", began.elapsed());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_default();
    println!("{} seeds, {} failed, {:.0?}", options.seeds, failed.len(), began.elapsed());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reintroduces every bug, and prints a Markdown table with the checkers that found them. Bugs out of the simulation's reach are
/// listed with the tests that find them.
fn find_mutations(options: &Options) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!("| bug | found by | seeds needed |\n|---|---|---|");
    let mut all = true;
    let wanted = |mutation: &Mutation| options.bug.is_none_or(|bug| bug == *mutation);
    for mutation in Mutation::ALL.into_iter().filter(wanted) {
        if let Some(test) = proof::test_that_finds(mutation) {
            println!("| {} | `{test}` | |", proof::description(mutation));
            continue;
        }
        let found = match proof::find(mutation, options.seeds, options.duration, threads) {
            Ok(found) => found,
            Err(error) => {
                eprintln!("{mutation:?}: {error}");
                all = false;
                continue;
            }
        };
        let seeds = found.seeds.map_or("not found".to_owned(), |seeds| seeds.to_string());
        println!("| {} | `{}` | {seeds} |", proof::description(mutation), found.checker);
        eprintln!("{mutation:?}: {}", found.violation);
        all &= found.seeds.is_some();
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a seed and prints its violations. Returns whether there were any.
fn report(seed: u64, options: &Options) -> bool {
    let outcome = match run(RunOptions {
        seed,
        duration: options.duration,
        trace: options.trace,
        mutation: options.bug,
    }) {
        Ok(outcome) => outcome,
        Err(error) => {
            println!("seed {seed}: the simulation itself failed: {error}");
            return true;
        }
    };
    let Outcome { violations, trace, setup, counts, hash, grants, .. } = outcome;
    if options.trace {
        trace.iter().for_each(|line| println!("{line}"));
        println!("{setup}\n{counts:?}\n{grants} grants, hash {hash:016x}");
    }
    if violations.is_empty() {
        return false;
    }
    println!("seed {seed} ({setup}):");
    for (checker, violation) in &violations {
        println!("  {checker}: {violation}");
    }
    println!(
        "  replay: cargo run --release -p lockkeeper-lab --features simulation --bin simulate -- --seed {seed} --seconds {}",
        options.duration.as_secs()
    );
    true
}
