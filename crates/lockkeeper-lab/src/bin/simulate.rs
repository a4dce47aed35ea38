//! Runs seeds of the simulation: `simulate --seeds 10000`, or one of them with all that happens: `simulate --seed 4711`.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_lab::simulation::{Mutation, Outcome, Setting, proof, run};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const USAGE: &str = "usage: simulate [--seeds COUNT] [--first SEED] [--seconds EACH]
       simulate --seed SEED [--seconds EACH]    one seed, with everything that happens in it
       simulate --mutations MAX [--bug NAME]     puts each bug of the list back and looks for it with up to so many seeds
RUST_LOG=debug adds what the nodes and clients log.";

struct Asked {
    first: u64,
    seeds: u64,
    lasts: Duration,
    tells: bool,
    mutations: bool,
    bug: Option<String>,
}

fn read_arguments() -> Option<Asked> {
    let mut asked = Asked {
        first: 0,
        seeds: 10_000,
        lasts: Duration::from_secs(20),
        tells: false,
        mutations: false,
        bug: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next()?;
        if name == "--bug" {
            asked.bug = Some(value);
            continue;
        }
        let number: u64 = value.parse().ok()?;
        match name.as_str() {
            "--seeds" => asked.seeds = number,
            "--first" => asked.first = number,
            "--seconds" => asked.lasts = Duration::from_secs(number),
            "--seed" => (asked.first, asked.seeds, asked.tells) = (number, 1, true),
            "--mutations" => (asked.mutations, asked.seeds) = (true, number),
            _ => return None,
        }
    }
    Some(asked)
}

fn main() -> ExitCode {
    let Some(asked) = read_arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    if let Some(filter) = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok()) {
        let lines = tracing_subscriber::fmt::layer().without_time().with_ansi(false);
        tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    }
    if asked.mutations {
        return prove(&asked);
    }
    let began = Instant::now();
    let next = AtomicU64::new(asked.first);
    let end = asked.first + asked.seeds;
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(asked.seeds as usize);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let bad = report(seed, &asked);
                    if bad && let Ok(mut failed) = failed.lock() {
                        failed.push(seed);
                    }
                    let done = seed - asked.first + 1;
                    if done.is_multiple_of(100) {
                        eprintln!("{done} seeds in {:.0?}", began.elapsed());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_default();
    println!("{} seeds, {} failed, {:.0?}", asked.seeds, failed.len(), began.elapsed());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Puts every bug back, and prints who found it, as a table in Markdown.
fn prove(asked: &Asked) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!("| the bug | found by | after so many seeds |\n|---|---|---|");
    let mut all = true;
    let wanted = |mutation: &Mutation| asked.bug.as_ref().is_none_or(|name| *name == format!("{mutation:?}"));
    for mutation in Mutation::ALL.into_iter().filter(proof::can_be_seen).filter(wanted) {
        let found = match proof::find(mutation, asked.seeds, asked.lasts, threads) {
            Ok(found) => found,
            Err(error) => {
                eprintln!("the simulation itself failed: {error}");
                return ExitCode::FAILURE;
            }
        };
        let seeds = found.seeds.map_or("not found".to_owned(), |seeds| seeds.to_string());
        println!("| {} | `{}` | {seeds} |", proof::in_words(mutation), found.checker);
        eprintln!("{mutation:?}: {}", found.words);
        all &= found.seeds.is_some();
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a seed and prints what was broken; true if anything was.
fn report(seed: u64, asked: &Asked) -> bool {
    let outcome = match run(Setting { seed, lasts: asked.lasts, tells: asked.tells, mutation: None }) {
        Ok(outcome) => outcome,
        Err(error) => {
            println!("seed {seed}: the simulation itself failed: {error}");
            return true;
        }
    };
    let Outcome { violations, told, chosen, counts, hash, grants, .. } = outcome;
    if asked.tells {
        told.iter().for_each(|line| println!("{line}"));
        println!("{chosen}\n{counts:?}\n{grants} grants, hash {hash:016x}");
    }
    if violations.is_empty() {
        return false;
    }
    println!("seed {seed} ({chosen}):");
    for (checker, violation) in &violations {
        println!("  {checker}: {violation}");
    }
    println!(
        "  again: cargo run --release -p lockkeeper-lab --features simulation --bin simulate -- --seed {seed} --seconds {}",
        asked.lasts.as_secs()
    );
    true
}
