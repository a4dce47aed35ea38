//! The verbs, one file each, and what they share.

mod all;
mod client;
mod compare;
mod run;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use lockkeeper_lab::LockkeeperBinary;
use lockkeeper_lab::lab::{Case, CaseResult, EngineName, Lab, Scenario, report};
use serde::Serialize;

/// Exit code of wrong usage.
pub(crate) const USAGE: u8 = 64;
const OTHER: u8 = 1;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run one scenario on one engine
    Run(run::Run),
    /// Run all scenarios on all engines
    All(all::All),
    /// Measure all engines and their peers side by side
    Compare(compare::Compare),
    /// A client process, controlled by the lab
    #[command(hide = true)]
    Client(client::Client),
}

impl Verb {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        match self {
            Verb::Run(verb) => verb.run(),
            Verb::All(verb) => verb.run(),
            Verb::Compare(verb) => verb.run(),
            Verb::Client(verb) => verb.run(),
        }
    }
}

/// Failure of a verb.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: u8,
    pub(crate) message: String,
}

impl Failure {
    fn usage(message: impl Into<String>) -> Failure {
        Failure { exit: USAGE, message: message.into() }
    }

    fn other(message: impl Into<String>) -> Failure {
        Failure { exit: OTHER, message: message.into() }
    }
}

/// Text for people, JSON for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Options of `run` and `all`.
#[derive(Debug, Args)]
struct Common {
    /// Seed of the random choices: the same seed makes the same choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The binary `lockkeeper` that serves cells [default: next to this program, built if `cargo run` started it]
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_BIN")]
    binary: Option<PathBuf>,
    /// Text for people or JSON for programs
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Output,
}

impl Common {
    /// Runs the cases one after the other, and prints the progress.
    fn run_cases(&self, cases: &[Case]) -> Result<Vec<CaseResult>, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::other(format!("failed to find this program: {error}")))?;
        let mut lab = Lab::new(program, LockkeeperBinary::new(self.binary.clone()), self.seed);
        let mut cells = Vec::new();
        for (number, &case) in cases.iter().enumerate() {
            let title = format!(
                "[{}/{}] {} on {}, {}",
                number + 1,
                cases.len(),
                case.scenario,
                case.engine,
                case.mode.name()
            );
            let began = Instant::now();
            let cell = lab.run(case, &|text: &str| eprintln!("{title}: {text}"));
            eprintln!("{title}: {} ({:.1} s)", report::text::short(&cell), began.elapsed().as_secs_f64());
            cells.push(cell);
            if cases[number + 1..].iter().all(|later| later.engine != case.engine) {
                lab.end(case.engine);
            }
        }
        Ok(cells)
    }
}

/// A parser whose error lists the valid names.
fn scenarios() -> impl TypedValueParser<Value = Scenario> {
    PossibleValuesParser::new(Scenario::ALL.map(Scenario::name))
        .try_map(|name| Scenario::parse(&name).ok_or("no such scenario"))
}

fn engines() -> impl TypedValueParser<Value = EngineName> {
    PossibleValuesParser::new(EngineName::all().map(EngineName::name))
        .try_map(|name| EngineName::parse(&name).ok_or("no such engine"))
}

/// The exit code for the results.
fn exit_code(cells: &[CaseResult], allow_missing: bool) -> u8 {
    let is_bad = |cell: &CaseResult| match cell {
        CaseResult::Ran(outcome) => outcome.broken.is_some(),
        CaseResult::NotRun { missing, .. } => !(*missing && allow_missing),
        CaseResult::NotApplicable { .. } => false,
    };
    if cells.iter().any(is_bad) { OTHER } else { 0 }
}

/// Writes a page with the drawn timelines for each scenario.
fn write_report(folder: &Path, cells: &[CaseResult]) -> Result<(), Failure> {
    for (name, page) in report::html::pages(cells) {
        write(&folder.join(name), &page)?;
    }
    eprintln!("report: {}", folder.join("index.html").display());
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(file, text))
        .map_err(|error| Failure::other(format!("failed to write {}: {error}", file.display())))
}

/// Prints to stdout. A closed stdout, such as with `head`, is not an error.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::other(format!("failed to write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

fn print_json(answer: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(answer)
        .map_err(|error| Failure::other(format!("failed to write JSON: {error}")))?;
    print(&format!("{text}\n"))
}
