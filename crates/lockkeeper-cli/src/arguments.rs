//! The words of a command line, before clap parses them.

use std::ffi::{OsStr, OsString};

/// Options of client verbs that are also accepted before the verb.
const CLIENT_OPTIONS: &[&str] = &["--engine", "--output", "-o"];

/// Moves client options from before the verb to after it: `lockkeeper -o json who x` is `lockkeeper who -o json x`. Clap knows
/// them as options of the verbs that use them, so other verbs still refuse them.
pub(crate) fn move_client_options(command: &clap::Command, words: Vec<OsString>) -> Vec<OsString> {
    let mut rest = words.into_iter().peekable();
    let mut moved: Vec<OsString> = rest.by_ref().take(1).collect();
    let mut options = Vec::new();
    while let Some(option) = rest.next_if(|word| is_client_option(word)) {
        let needs_value = CLIENT_OPTIONS.iter().any(|name| option == *name);
        options.push(option);
        if needs_value {
            options.extend(rest.next());
        }
    }
    let mut command = command;
    while let Some(verb) = rest.peek().and_then(|word| command.find_subcommand(word)) {
        command = verb;
        moved.extend(rest.next());
    }
    moved.extend(options);
    moved.extend(rest);
    moved
}

fn is_client_option(word: &OsStr) -> bool {
    let word = word.to_string_lossy();
    let name = word.split_once('=').map_or(&*word, |(name, _)| name);
    CLIENT_OPTIONS.contains(&name) || (word.starts_with("-o") && !word.starts_with("--"))
}

/// Whether a command line that could not be parsed asks for JSON. Words after `--` belong to the child.
pub(crate) fn requests_json(words: &[OsString]) -> bool {
    let ours: Vec<&OsStr> = words.iter().map(AsRef::as_ref).take_while(|word| *word != "--").collect();
    let attached = ["--output=json", "-ojson", "-o=json"];
    ours.iter().any(|word| attached.iter().any(|form| word == form))
        || ours.windows(2).any(|pair| (pair[0] == "--output" || pair[0] == "-o") && pair[1] == "json")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Arguments;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(Into::into).collect()
    }

    fn moved(text: &str) -> String {
        let words = move_client_options(&Arguments::command(), words(text));
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn client_options_before_the_verb_move_after_it() {
        assert_eq!(moved("lockkeeper -o json who x"), "lockkeeper who -o json x");
        assert_eq!(moved("lockkeeper --engine=redis://h ls"), "lockkeeper ls --engine=redis://h");
        assert_eq!(
            moved("lockkeeper --engine embedded: -ojson access grant ci a/ read"),
            "lockkeeper access grant --engine embedded: -ojson ci a/ read"
        );
        for unchanged in ["lockkeeper who x -o json", "lockkeeper --version", "lockkeeper", "lockkeeper -o"] {
            assert_eq!(moved(unchanged), unchanged);
        }
    }

    #[test]
    fn output_flag_after_the_double_dash_belongs_to_the_command() {
        for json in ["lockkeeper ls --output json", "lockkeeper ls --output=json x", "lockkeeper ls -o json"]
        {
            assert!(requests_json(&words(json)), "{json}");
        }
        assert!(!requests_json(&words("lockkeeper run x -- aws --output json")));
    }
}
