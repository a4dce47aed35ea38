//! The binary `lockkeeper-lab`: injects faults and counts lost updates.

use std::process::ExitCode;

use clap::Parser;

mod verbs;

use verbs::{Failure, Verb};

#[derive(Debug, Parser)]
#[command(
    name = "lockkeeper-lab",
    version,
    about = "Injects faults into lock services, and counts lost updates",
    after_help = "\
Examples:
  lockkeeper-lab run pause --engine redis               with a gate and without, and the timelines
  lockkeeper-lab run pause --engine cell --fenced --report ./lab-report
  lockkeeper-lab run clock-jump --engine redlock --output json
  lockkeeper-lab all --matrix docs/lab.md               everything, in less than 20 minutes
  lockkeeper-lab compare                                all engines and their peers side by side

Starts real servers and real client processes on this machine, on loopback addresses and in temporary folders, and stops
them afterwards. Reports servers that are not installed, with the package that contains them.

Exit codes: 0 done; 1 a claim is broken, such as an update that was lost behind a gate, or a run failed; 64 wrong usage.",
    subcommand_value_name = "VERB",
    subcommand_help_heading = "Verbs",
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

fn main() -> ExitCode {
    let result = match Arguments::try_parse() {
        Ok(arguments) => arguments.verb.run(),
        Err(error) => {
            // A closed stdout is not an error.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(verbs::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Failure { exit, message }) => {
            eprintln!("lockkeeper-lab: {message}");
            ExitCode::from(exit)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Arguments;

    #[test]
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }
}
