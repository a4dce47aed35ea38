//! `lockkeeper man`: manual pages, generated from the help texts.

use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use crate::client;
use crate::failure::Failure;

/// Write the manual pages
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper man | man -l -                     read the page of lockkeeper(1)
  lockkeeper man /usr/local/share/man/man1      write a page for each verb")]
pub(crate) struct ManVerb {
    /// Folder for one page per verb; without it, lockkeeper(1) is printed to stdout
    folder: Option<PathBuf>,
}

impl ManVerb {
    pub(crate) fn run(self, command: clap::Command) -> Result<u8, Failure> {
        let mut command = command;
        command.build();
        let Some(folder) = self.folder else {
            client::print_raw(&page(&command)?)?;
            return Ok(0);
        };
        let failed = |error: std::io::Error| {
            Failure::other(format!("failed to write {}: {error}. Choose another folder", folder.display()))
        };
        std::fs::create_dir_all(&folder).map_err(failed)?;
        for (name, text) in pages(&command, "lockkeeper")? {
            std::fs::write(folder.join(format!("{name}.1")), text).map_err(failed)?;
        }
        Ok(0)
    }
}

fn page(command: &clap::Command) -> Result<String, Failure> {
    let mut text = Vec::new();
    Man::new(command.clone())
        .render(&mut text)
        .map_err(|error| Failure::other(format!("failed to render the manual page: {error}")))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The pages of a command and its subcommands, by name.
fn pages(command: &clap::Command, name: &str) -> Result<Vec<(String, String)>, Failure> {
    let mut all = vec![(name.to_owned(), page(command)?)];
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        all.extend(pages(verb, &format!("{name}-{}", verb.get_name()))?);
    }
    Ok(all)
}
