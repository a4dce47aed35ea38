//! `lockkeeper-lab run`: one scenario on one engine.

use std::path::PathBuf;

use clap::Args;
use lockkeeper_lab::lab::{self, CaseResult, EngineName, Mode, Scenario, report};
use serde_json::json;

use super::{Common, Failure, Output, engines, exit_code, print, print_json, scenarios, write_report};

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Scenario to run
    #[arg(value_parser = scenarios())]
    scenario: Scenario,
    /// Engine to test
    #[arg(long, default_value = "cell", value_parser = engines(), env = "LOCKKEEPER_LAB_ENGINE")]
    engine: EngineName,
    /// Run only with a gate: the resource checks the token [default: with and without]
    #[arg(long, conflicts_with = "unfenced")]
    fenced: bool,
    /// Run only without a gate: the resource accepts every write
    #[arg(long)]
    unfenced: bool,
    #[command(flatten)]
    common: Common,
    /// Write pages with the drawn timelines to this folder
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
}

impl Run {
    pub(super) fn run(self) -> Result<u8, Failure> {
        let mut cases = lab::cases(&[self.scenario], &[self.engine]);
        if self.fenced || self.unfenced {
            let wanted = if self.fenced { Mode::Fenced } else { Mode::Unfenced };
            cases.retain(|case| case.mode == wanted || case.mode == Mode::Either);
        }
        let cells = self.common.run_cases(&cases)?;
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
        if cells.iter().all(|cell| matches!(cell, CaseResult::NotApplicable { .. })) {
            return Err(Failure::usage(format!(
                "{} does not apply to {}; the reason is above",
                self.scenario, self.engine
            )));
        }
        Ok(exit_code(&cells, false))
    }
}
