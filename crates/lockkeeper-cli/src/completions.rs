//! `lockkeeper completions`: shell completions.

use clap::Args;
use clap_complete::Shell;

use crate::client;
use crate::failure::Failure;

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper completions bash > /etc/bash_completion.d/lockkeeper
  lockkeeper completions zsh > \"${fpath[1]}/_lockkeeper\"
  lockkeeper completions fish > ~/.config/fish/completions/lockkeeper.fish")]
pub(crate) struct Completions {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, mut command: clap::Command) -> Result<u8, Failure> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, "lockkeeper", &mut text);
        client::print_raw(&String::from_utf8_lossy(&text))?;
        Ok(0)
    }
}
