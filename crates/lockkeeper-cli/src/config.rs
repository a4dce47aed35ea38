//! `lockkeeper config`: the settings of `serve`, and where each comes from.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::client::{self, Output};
use crate::failure::Failure;
use crate::serve::Serve;
use crate::settings::{self, Setting};
use crate::table::Table;

/// Show the settings of `serve`, and where each comes from
#[derive(Debug, Args)]
pub(crate) struct ConfigVerb {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show each setting, its value and where it comes from: flag, environment, file or default
    Show(Box<Show>),
    /// Print a lockkeeper.toml with all settings, their explanations and defaults
    Example,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper config show
  lockkeeper config show --config ./lockkeeper.toml --output json
  LOCKKEEPER_LISTEN=0.0.0.0:7420 lockkeeper config show --node-id 2

Takes all flags of `serve` and shows the settings that `serve` would use. A flag overrides the
environment, the environment overrides the file, the file overrides the default. The file is
--config, LOCKKEEPER_CONFIG, ./lockkeeper.toml or /etc/lockkeeper/lockkeeper.toml.")]
struct Show {
    #[command(flatten)]
    _serve: Serve,
    /// A table for people or JSON for programs
    #[arg(short, long, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Output,
}

impl ConfigVerb {
    pub(crate) fn output(&self) -> Output {
        match &self.verb {
            Verb::Show(show) => show.output,
            Verb::Example => Output::Table,
        }
    }

    pub(crate) fn run(self, command: &clap::Command, settings: &[Setting]) -> Result<u8, Failure> {
        match (&self.verb, self.output()) {
            (Verb::Example, _) => client::print(&settings::example(command))?,
            (Verb::Show(_), Output::Table) => {
                let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
                for Setting { key, value, source } in settings {
                    table.row([
                        key.clone(),
                        value.clone().unwrap_or_else(|| "-".to_owned()),
                        source.to_string(),
                    ]);
                }
                client::print(&table.to_string())?;
            }
            (Verb::Show(_), Output::Json) => {
                let all = settings.iter().map(|Setting { key, value, source }| {
                    (key.clone(), json!({"value": value, "from": source.to_string()}))
                });
                client::print_json(&all.collect::<serde_json::Map<_, _>>())?;
            }
        }
        Ok(0)
    }
}
