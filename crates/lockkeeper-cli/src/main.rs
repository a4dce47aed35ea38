//! The binary `lockkeeper`: parses the command line, runs a verb and returns its exit code. Each verb has its own file.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod access;
mod arguments;
mod bench;
mod child;
mod client;
mod completions;
mod config;
mod doctor;
mod duration;
mod elect;
mod escape;
mod explain;
mod failure;
mod force_release;
mod history;
mod logging;
mod ls;
mod man;
mod member;
mod notify;
mod observe;
#[cfg(feature = "otel")]
mod otel;
mod proxy;
mod run;
mod serve;
mod settings;
mod snapshot;
mod status;
mod table;
mod top;
mod who;

use client::Output;
use failure::Failure;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(
    name = "lockkeeper",
    version,
    about = "Distributed locks with fencing tokens",
    after_help = "\
Start here:
  lockkeeper serve                                    a durable lock service on 127.0.0.1:7420
  lockkeeper run nightly-report -- ./report.sh        run a command while holding a lock
  lockkeeper who nightly-report                       who holds it, and who waits

`lockkeeper VERB --help` explains each verb, with examples.

Exit codes: 0 success, 64 wrong usage, 69 no engine answers, 1 any other failure. `run` and `elect` have more: see `lockkeeper run --help`.",
    subcommand_value_name = "VERB",
    subcommand_help_heading = "Verbs",
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a node: durable, with a console, on 127.0.0.1:7420
    Serve(Box<serve::Serve>),
    /// Run a command while holding a lock
    Run(run::Run),
    /// Run a command while leading an election
    Elect(elect::Elect),
    /// Show the leader of an election, and every change
    Observe(observe::Observe),
    /// List the locks that are held or waited for
    Ls(ls::Ls),
    /// Show who holds a lock and who waits for it
    Who(who::Who),
    /// Explain why a request has to wait for a lock
    Explain(explain::Explain),
    /// Show the last events of a lock, or the audit trail
    History(history::History),
    /// Show contention: the most contended and longest-held locks, and the last hour; live
    Top(top::TopVerb),
    /// Show the state of the cell: members, leader, log, counts
    Status(status::StatusVerb),
    /// Release a lock regardless of its holder, and make its tokens stale
    ForceRelease(force_release::ForceRelease),
    /// Show, add and remove the members of a cell
    Member(member::MemberVerb),
    /// Manage access rules, access tokens and quotas
    Access(access::AccessVerb),
    /// Save the state of a cell, and restore it as a new cell
    Snapshot(snapshot::SnapshotVerb),
    /// Show the guarantees of an engine, and check its configuration for unsafe settings
    Doctor(doctor::Doctor),
    /// Run a fencing proxy in front of an HTTP service that cannot check tokens itself
    Proxy(proxy::Proxy),
    /// Show the settings of `serve`, and where each comes from
    Config(config::ConfigVerb),
    /// Print completions for bash, zsh or fish
    Completions(completions::Completions),
    /// Write the manual pages
    Man(man::ManVerb),
    /// Measure an engine, and the limits of this machine in the same run
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    // Internal calls: `run` starts its command and its sentinel through this binary.
    if words.get(1).is_some_and(|word| word == run::sentinel::VERB) {
        return ExitCode::from(run::sentinel::watch_over(&words[2..]));
    }
    if words.get(1).is_some_and(|word| word == child::VERB) {
        return ExitCode::from(child::exec_command(&words[2..]));
    }
    let json = arguments::requests_json(&words);
    let command = settings::with_variables(Arguments::command());
    let words = arguments::move_client_options(&command, words);
    let (words, file) = match settings::with_file(command.clone(), &words) {
        Ok(found) => found,
        Err(failure) => {
            failure.print(if json { Output::Json } else { Output::Table });
            return ExitCode::from(failure.exit);
        }
    };
    let parsed = command.clone().try_get_matches_from(&words);
    let parsed = parsed.and_then(|matches| Ok((Arguments::from_arg_matches(&matches)?, matches)));
    let (arguments, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return usage(&error, json),
    };
    let (output, result) = match arguments.verb {
        Verb::Serve(verb) => (Output::Table, verb.run()),
        Verb::Run(verb) => {
            let _logging = logging::start_silent();
            (verb.output(), verb.run())
        }
        Verb::Elect(verb) => {
            let _logging = logging::start_silent();
            (verb.output(), verb.run())
        }
        Verb::Observe(verb) => (verb.client.output, verb.run()),
        Verb::Ls(verb) => (verb.client.output, verb.run()),
        Verb::Who(verb) => (verb.client.output, verb.run()),
        Verb::Explain(verb) => (verb.client.output, verb.run()),
        Verb::History(verb) => (verb.client.output, verb.run()),
        Verb::Top(verb) => (verb.client.output, verb.run()),
        Verb::Status(verb) => (verb.client.output, verb.run()),
        Verb::ForceRelease(verb) => (verb.client.output, verb.run()),
        Verb::Member(verb) => (verb.output(), verb.run()),
        Verb::Access(verb) => (verb.output(), verb.run()),
        Verb::Snapshot(verb) => (verb.output(), verb.run()),
        Verb::Doctor(verb) => (verb.client.output, verb.run()),
        Verb::Proxy(verb) => (Output::Table, verb.run()),
        Verb::Config(verb) => {
            let settings = settings::effective(&command, &matches, file.as_ref());
            (verb.output(), verb.run(&command, &settings))
        }
        Verb::Completions(verb) => (Output::Table, verb.run(command)),
        Verb::Man(verb) => (Output::Table, verb.run(command)),
        Verb::Bench(verb) => (verb.output(), verb.run()),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print(output);
            ExitCode::from(failure.exit)
        }
    }
}

/// Prints clap's message and returns our exit code. Help and version are not errors.
fn usage(error: &clap::Error, json: bool) -> ExitCode {
    if !error.use_stderr() {
        // A closed stdout is not an error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if json {
        let text = error.to_string();
        Failure::usage(text.trim_start_matches("error: ").trim_end()).print(Output::Json);
    } else {
        let _ = error.print();
    }
    ExitCode::from(failure::USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        settings::with_variables(Arguments::command()).debug_assert();
    }

    #[test]
    fn no_setting_holds_a_secret() {
        let command = Arguments::command();
        let serve = command.find_subcommand("serve").expect("serve is a verb");
        for flag in serve.get_arguments() {
            let long = flag.get_long().unwrap_or_default();
            let secret = ["password", "secret", "token", "key"].iter().any(|word| long.contains(word));
            // A switch has no value.
            let secret = secret && flag.get_action().takes_values();
            let names_a_file =
                flag.get_value_parser().type_id() == std::any::TypeId::of::<std::path::PathBuf>();
            assert!(!secret || names_a_file, "--{long} would put a secret into a process list: name a file");
        }
    }
}
