//! `lockkeeper-lab all`: all scenarios on all engines.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use lockkeeper_lab::lab::{self, EngineName, Scenario, report};
use serde_json::json;

use super::{Common, Failure, Output, engines, exit_code, print, print_json, scenarios, write, write_report};

#[derive(Debug, Args)]
pub(crate) struct All {
    /// Run only these scenarios
    #[arg(long, value_delimiter = ',', value_parser = scenarios())]
    scenarios: Vec<Scenario>,
    /// Run only these engines
    #[arg(long, value_delimiter = ',', value_parser = engines())]
    engines: Vec<EngineName>,
    #[command(flatten)]
    common: Common,
    /// Folder for the pages with the drawn timelines
    #[arg(long, value_name = "FOLDER", default_value = "lab-report")]
    report: PathBuf,
    /// Write the matrix as a Markdown page, such as docs/lab.md
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// Exit with 0 even if servers are not installed
    #[arg(long)]
    allow_missing: bool,
}

impl All {
    pub(super) fn run(self) -> Result<u8, Failure> {
        let scenarios = if self.scenarios.is_empty() { Scenario::ALL.to_vec() } else { self.scenarios };
        let engines = if self.engines.is_empty() { EngineName::all().collect() } else { self.engines };
        let began = Instant::now();
        let cells = self.common.run_cases(&lab::cases(&scenarios, &engines))?;
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
        Ok(exit_code(&cells, self.allow_missing))
    }
}
