//! `lockkeeper bench compare`: all engines and their peers side by side.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lockkeeper_lab::bench::compare::{self, CompareOptions, Comparison, Target, plural};

use crate::client::{Output, block_on, print, print_json};
use crate::failure::Failure;
use crate::table::Table;

/// Compare all engines and their peers.
#[derive(Debug, Args)]
#[command(after_help = "\
The servers are started here, one after the other, in temporary folders and on free ports: cells of one and of three
nodes, Redis, etcd, ZooKeeper, Consul, PostgreSQL. What is not installed is named with its package and left out.
`redis-bare` and `etcd-bare` are the recipes that people use, straight on the peers' own clients.

Examples:
  lockkeeper bench compare                                          everything, about ten minutes
  lockkeeper bench compare --engines cell3,etcd,etcd-bare --clients 64
  lockkeeper bench compare --markdown docs/performance-compare.md --svg docs/images/compare.svg")]
pub(crate) struct Compare {
    /// Which, with commas: cell, cell3, embedded, redis, redis-bare, redis-memory-bare, redlock, etcd, etcd-bare,
    /// zookeeper, consul, postgres [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", hide_default_value = true,
          default_values_t = Target::ALL.map(|target| target.name().to_owned()))]
    engines: Vec<String>,
    /// How many clients ask at the same time, a column for each number
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", default_value = "1,16,64,256",
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: Vec<u16>,
    /// How long each figure is measured, in seconds; fractions are allowed
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// How many sessions are kept alive to see what that costs; 0 leaves it out
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    sessions: u32,
    /// How many times a leader of three is killed; 0 leaves it out
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=100))]
    fail_overs: u8,
    /// Folder on the disk that the servers are to use
    #[arg(long, default_value_os_t = std::env::temp_dir(), value_name = "FOLDER")]
    scratch_dir: PathBuf,
    /// Write a chart into this file as well
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the tables as a page of Markdown into this file as well
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// A table for people or JSON for programs
    #[arg(long, value_enum, default_value = "table", value_name = "FORMAT")]
    pub(super) output: Output,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|number| Duration::try_from_secs_f64(number).ok());
    let fits = Duration::from_millis(50)..=Duration::from_secs(3_600);
    time.filter(|time| fits.contains(time))
        .ok_or_else(|| "a number between 0.05 and 3600 is needed".to_owned())
}

impl Compare {
    pub(super) fn run(self) -> Result<u8, Failure> {
        let targets = self.engines.iter().map(|name| name.parse()).collect::<Result<Vec<Target>, String>>();
        let binary = std::env::current_exe()
            .map_err(|error| Failure::other(format!("this program cannot find itself: {error}")))?;
        let mut clients: Vec<usize> = self.clients.iter().map(|count| usize::from(*count)).collect();
        clients.sort_unstable();
        clients.dedup();
        let options = CompareOptions {
            binary,
            targets: targets.map_err(Failure::usage)?,
            clients,
            duration: self.seconds,
            sessions: self.sessions as usize,
            fail_overs: self.fail_overs.into(),
            scratch_dir: self.scratch_dir,
        };
        let began = std::time::Instant::now();
        let show = |what: &str| eprintln!("{:>4} s  {what}", began.elapsed().as_secs());
        let comparison = block_on(async { compare::compare(&options, show).await.map_err(super::failed) })?;
        if let Some(path) = &self.svg {
            write(path, &compare::chart(&comparison))?;
        }
        if let Some(path) = &self.markdown {
            let chart = self.svg.as_deref().map(|svg| seen_from(path, svg));
            write(path, &comparison.markdown(chart.as_deref()))?;
        }
        match self.output {
            Output::Table => print(&tables(&comparison))?,
            Output::Json => print_json(&comparison)?,
        }
        for missing in &comparison.missing {
            eprintln!("not measured: {}: {}", missing.engine, missing.why);
        }
        Ok(0)
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::other(format!("{} cannot be written: {error}", path.display())))
}

/// The way to the chart from the folder of the page, if it lies below it.
fn seen_from(page: &Path, chart: &Path) -> String {
    let folder = page.parent().unwrap_or(Path::new(""));
    chart.strip_prefix(folder).unwrap_or(chart).display().to_string()
}

fn tables(comparison: &Comparison) -> String {
    let mut text = String::new();
    let mut add = |title: &str, first: &str, rows: Vec<(String, Vec<String>)>| {
        let heads: Vec<String> =
            comparison.clients.iter().map(|count| plural(*count).to_uppercase()).collect();
        let mut head = vec![first];
        head.extend(heads.iter().map(String::as_str));
        let mut table = Table::new(&head);
        for (name, cells) in rows {
            table.row(std::iter::once(name).chain(cells));
        }
        text.push_str(&format!("{title}\n{table}\n"));
    };
    add("Uncontended: pairs/s (p50 of acquire)", "ENGINE", comparison.cells(|row| &row.uncontended));
    add("Ratios", "PAIRS/S", comparison.ratios(|row| &row.uncontended));
    add("Hand-off of one lock: pairs/s (p50 of acquire)", "ENGINE", comparison.cells(|row| &row.handoff));
    add("Ratios", "PAIRS/S", comparison.ratios(|row| &row.handoff));
    if !comparison.fail_overs.is_empty() {
        let mut table = Table::new(&["LEADER KILLED TO NEXT GRANT", "MEDIAN", "LONGEST"]);
        for one in &comparison.fail_overs {
            table.row([
                one.engine.to_owned(),
                format!("{:.0} ms", one.median_ms),
                format!("{:.0} ms", one.longest_ms),
            ]);
        }
        text.push_str(&format!("{table}\n"));
    }
    if !comparison.keep_alives.is_empty() {
        let mut table = Table::new(&["KEEP-ALIVES", "SESSIONS", "CPU FOR 1,000", "BYTES A SESSION"]);
        for one in &comparison.keep_alives {
            table.row([
                one.engine.to_owned(),
                one.sessions.to_string(),
                format!("{:.2} ms", one.cpu_ms_per_thousand),
                format!("{:.0}", one.bytes_per_session),
            ]);
        }
        text.push_str(&format!("{table}\n"));
    }
    text.push_str(&format!(
        "This machine: {} cores for all, append + fdatasync p50 {:.0} us, loopback round trip p50 {:.0} us\n",
        comparison.cores,
        comparison.machine.append_fdatasync_p50_us,
        comparison.machine.loopback_round_trip_p50_us
    ));
    text
}
