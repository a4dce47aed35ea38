//! `lockkeeper lab`: break things on purpose, and count what was lost.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use lockkeeper_lab::lab::{self, Case, Cell, ClientOptions, EngineName, Lab, Mode, Scenario, report};
use serde_json::json;

use crate::client::{Output, block_on, print, print_json};
use crate::failure::{self, Failure};

/// Break things on purpose.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper lab run pause --engine redis               with a gate and without, and the timelines
  lockkeeper lab run pause --engine cell --fenced --report ./lab-report
  lockkeeper lab run clock-jump --engine redlock --output json
  lockkeeper lab all --matrix docs/lab.md               everything, in less than 20 minutes

Starts real servers and real client processes on this machine, on loopback addresses and in temporary folders, and ends
them. What is not installed is named, with the package that brings it.

Exit codes: 0 done; 1 a claim is broken, such as an update that was lost behind a gate, or a run could not be made;
64 wrong usage.")]
pub(crate) struct LabVerb {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Play one scenario on one engine
    Run(Run),
    /// Play all scenarios on all engines
    All(All),
    /// A client process, told by the lab what to do
    #[command(hide = true)]
    Client(Client),
}

#[derive(Debug, Args)]
struct Run {
    /// What happens
    #[arg(value_parser = scenarios())]
    scenario: Scenario,
    /// To whom
    #[arg(long, default_value = "cell", value_parser = engines(), env = "LOCKKEEPER_LAB_ENGINE")]
    engine: EngineName,
    /// Only with a gate: the resource checks the token [default: with and without]
    #[arg(long, conflicts_with = "unfenced")]
    fenced: bool,
    /// Only without a gate: the resource takes everything
    #[arg(long)]
    unfenced: bool,
    #[command(flatten)]
    common: Common,
    /// Write a page with the drawn timelines into this folder
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct All {
    /// Only these scenarios
    #[arg(long, value_delimiter = ',', value_parser = scenarios())]
    scenarios: Vec<Scenario>,
    /// Only these engines
    #[arg(long, value_delimiter = ',', value_parser = engines())]
    engines: Vec<EngineName>,
    #[command(flatten)]
    common: Common,
    /// The folder for the pages with the drawn timelines
    #[arg(long, value_name = "FOLDER", default_value = "lab-report")]
    report: PathBuf,
    /// Write the matrix as a page in Markdown, such as docs/lab.md
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// End well although servers are not installed
    #[arg(long)]
    allow_missing: bool,
}

#[derive(Debug, Args)]
struct Common {
    /// Where chance begins: the same seed makes the same choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Text for people or JSON for programs
    #[arg(long, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Output,
}

#[derive(Debug, Args)]
struct Client {
    #[arg(long)]
    url: String,
    #[arg(long)]
    name: String,
    #[arg(long)]
    lock: String,
    #[arg(long)]
    ttl_ms: u64,
    #[arg(long)]
    resource: String,
}

/// Clap shows the list when a name is wrong.
fn scenarios() -> impl TypedValueParser<Value = Scenario> {
    PossibleValuesParser::new(Scenario::ALL.map(Scenario::name))
        .try_map(|name| Scenario::parse(&name).ok_or("no such scenario"))
}

fn engines() -> impl TypedValueParser<Value = EngineName> {
    PossibleValuesParser::new(EngineName::ALL.map(EngineName::name))
        .try_map(|name| EngineName::parse(&name).ok_or("no such engine"))
}

impl LabVerb {
    pub(crate) fn output(&self) -> Output {
        match &self.verb {
            Verb::Run(run) => run.common.output,
            Verb::All(all) => all.common.output,
            Verb::Client(_) => Output::Table,
        }
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        match self.verb {
            Verb::Run(run) => run.run(),
            Verb::All(all) => all.run(),
            Verb::Client(client) => client.run(),
        }
    }
}

impl Client {
    fn run(self) -> Result<u8, Failure> {
        let ttl = Duration::from_millis(self.ttl_ms);
        let Client { url, name, lock, resource, .. } = self;
        let options = ClientOptions { url, name, lock, ttl, resource };
        block_on(async { lab::play(options).await.map_err(Failure::other) })?;
        Ok(0)
    }
}

impl Run {
    fn run(self) -> Result<u8, Failure> {
        let mut cases = lab::cases(&[self.scenario], &[self.engine]);
        if self.fenced || self.unfenced {
            let wanted = if self.fenced { Mode::Fenced } else { Mode::Unfenced };
            cases.retain(|case| case.mode == wanted || case.mode == Mode::Either);
        }
        let cells = play(&cases, self.common.seed)?;
        if let Some(folder) = &self.report {
            write_report(folder, &cells)?;
        }
        match self.common.output {
            Output::Table => {
                for cell in &cells {
                    print(&format!("{}\n", report::text::cell(cell)))?;
                }
            }
            Output::Json => print_json(&json!({"runs": cells, "versions": lab::versions()}))?,
        }
        if cells.iter().all(|cell| matches!(cell, Cell::NotApplicable { .. })) {
            return Err(Failure::usage(format!(
                "{} does not apply to {}; the reason is above",
                self.scenario, self.engine
            )));
        }
        Ok(verdict(&cells, false))
    }
}

impl All {
    fn run(self) -> Result<u8, Failure> {
        let scenarios = if self.scenarios.is_empty() { Scenario::ALL.to_vec() } else { self.scenarios };
        let engines = if self.engines.is_empty() { EngineName::ALL.to_vec() } else { self.engines };
        let began = Instant::now();
        let cells = play(&lab::cases(&scenarios, &engines), self.common.seed)?;
        let took = began.elapsed();
        write_report(&self.report, &cells)?;
        let page = report::matrix::page(&cells, took);
        if let Some(file) = &self.matrix {
            write(file, &page)?;
        }
        match self.common.output {
            Output::Table => print(&report::text::summary(&cells, took))?,
            Output::Json => print_json(&json!({"runs": cells, "versions": lab::versions()}))?,
        }
        Ok(verdict(&cells, self.allow_missing))
    }
}

/// Plays them one after the other, and says how far it is.
fn play(cases: &[Case], seed: u64) -> Result<Vec<Cell>, Failure> {
    let binary = std::env::current_exe();
    let binary =
        binary.map_err(|error| Failure::other(format!("the path of this program is not known: {error}")))?;
    let mut lab = Lab::new(binary, seed);
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

fn verdict(cells: &[Cell], allow_missing: bool) -> u8 {
    let is_bad = |cell: &Cell| match cell {
        Cell::Ran(outcome) => outcome.broken.is_some(),
        Cell::NotRun { missing, .. } => !(*missing && allow_missing),
        Cell::NotApplicable { .. } => false,
    };
    if cells.iter().any(is_bad) { failure::OTHER } else { 0 }
}

fn write_report(folder: &Path, cells: &[Cell]) -> Result<(), Failure> {
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
        .map_err(|error| Failure::other(format!("{} cannot be written: {error}", file.display())))
}
