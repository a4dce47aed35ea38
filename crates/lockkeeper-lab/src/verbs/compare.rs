//! `lockkeeper-lab compare`: all engines and their peers side by side.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use lockkeeper_lab::LockkeeperBinary;
use lockkeeper_lab::compare::{self, CompareOptions, Target};

use super::{Failure, Output, print, print_json, write};

/// Measure all engines and their peers side by side
#[derive(Debug, Args)]
#[command(after_help = "\
The servers are started here, one after the other, in temporary folders and on free ports: cells of one and of three
nodes, Redis, etcd, ZooKeeper, Consul, PostgreSQL. Servers that are not installed are skipped, and their packages are named.
`redis-bare` and `etcd-bare` are the hand-written recipes, directly on the protocols of Redis and etcd.

Examples:
  lockkeeper-lab compare                                          everything, about ten minutes
  lockkeeper-lab compare --engines cell3,etcd,etcd-bare --clients 64
  lockkeeper-lab compare --markdown docs/performance-compare.md --svg docs/images/compare.svg")]
pub(crate) struct Compare {
    /// Engines to measure: cell, cell3, embedded, redis, redis-bare, redis-memory-bare, redlock, etcd, etcd-bare,
    /// zookeeper, consul, postgres [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", hide_default_value = true,
          default_values_t = Target::ALL.map(|target| target.name().to_owned()))]
    engines: Vec<String>,
    /// Numbers of concurrent clients, one column each
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", default_value = "1,16,64,256",
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: Vec<u16>,
    /// Seconds to measure each figure; fractions are allowed
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Number of sessions for the cost of keep-alives; 0 skips it
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    sessions: u32,
    /// Number of times a leader of three is killed; 0 skips it
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=100))]
    fail_overs: u8,
    /// Folder for the data of the servers: its disk is measured
    #[arg(long, default_value_os_t = std::env::temp_dir(), value_name = "FOLDER")]
    scratch_dir: PathBuf,
    /// Also write a chart to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also write the tables as a Markdown page to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// The binary `lockkeeper` [default: next to this program, built if `cargo run` started it]
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_BIN")]
    binary: Option<PathBuf>,
    /// A table for people or JSON for programs
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Output,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|number| Duration::try_from_secs_f64(number).ok());
    let fits = Duration::from_millis(50)..=Duration::from_secs(3_600);
    time.filter(|time| fits.contains(time)).ok_or_else(|| "expected a number from 0.05 to 3600".to_owned())
}

impl Compare {
    pub(super) fn run(self) -> Result<u8, Failure> {
        let targets = self.engines.iter().map(|name| name.parse()).collect::<Result<Vec<Target>, String>>();
        let mut clients: Vec<usize> = self.clients.iter().map(|count| usize::from(*count)).collect();
        clients.sort_unstable();
        clients.dedup();
        let options = CompareOptions {
            binary: LockkeeperBinary::new(self.binary),
            targets: targets.map_err(Failure::usage)?,
            clients,
            duration: self.seconds,
            sessions: self.sessions as usize,
            fail_overs: self.fail_overs.into(),
            scratch_dir: self.scratch_dir,
        };
        let began = Instant::now();
        let show = |what: &str| eprintln!("{:>4} s  {what}", began.elapsed().as_secs());
        let comparison =
            compare::compare(&options, show).map_err(|error| Failure::other(error.to_string()))?;
        if let Some(path) = &self.svg {
            write(path, &compare::chart(&comparison))?;
        }
        if let Some(path) = &self.markdown {
            let chart = self.svg.as_deref().map(|svg| relative_to(path, svg));
            write(path, &comparison.markdown(chart.as_deref()))?;
        }
        match self.output {
            Output::Table => print(&compare::tables(&comparison))?,
            Output::Json => print_json(&comparison)?,
        }
        for missing in &comparison.missing {
            eprintln!("not measured: {}: {}", missing.engine, missing.why);
        }
        Ok(0)
    }
}

/// The path of the chart relative to the folder of the page, if it lies below it.
fn relative_to(page: &Path, chart: &Path) -> String {
    let folder = page.parent().unwrap_or(Path::new(""));
    chart.strip_prefix(folder).unwrap_or(chart).display().to_string()
}
