//! The settings of `serve`: flag > environment > file > default.
//!
//! The flags of `serve` are the list of settings. A flag `--some-thing` is also the key `some_thing` of `lockkeeper.toml`
//! and the variable `LOCKKEEPER_SOME_THING`, with the same parser and help. Values of the file are inserted in front of the
//! command line's words unless a flag or variable overrides them, so a value means the same wherever it comes from.
//!
//! A secret is never a setting: a flag names the file that holds it.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::failure::Failure;

/// Default paths of the file: the first that exists is read.
const DEFAULT_PATHS: [&str; 2] = ["lockkeeper.toml", "/etc/lockkeeper/lockkeeper.toml"];
/// The verbs with settings, as words of the command line.
const VERBS: [&[&str]; 2] = [&["serve"], &["config", "show"]];
/// The flag that names the file. It is not a setting, because a file cannot name itself.
const CONFIG: &str = "config";
/// Flags that are not settings.
const NOT_SETTINGS: [&str; 4] = [CONFIG, "output", "help", "version"];
/// Similarity above which a key is suggested.
const SIMILARITY_MIN: f64 = 0.6;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Flag,
    Environment(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag => f.write_str("flag"),
            Source::Environment(variable) => write!(f, "environment {variable}"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Default => f.write_str("default"),
        }
    }
}

/// A setting with its effective value.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) key: String,
    /// None if it is not set and has no default.
    pub(crate) value: Option<String>,
    pub(crate) source: Source,
}

/// The file that was read.
#[derive(Debug, Default)]
pub(crate) struct File {
    path: PathBuf,
    /// Key and values, in the order of the file.
    values: Vec<(String, Vec<String>)>,
    /// The keys that nothing overrides.
    used: Vec<String>,
}

/// Adds the values of the file to the command line. A command line without settings is returned unchanged.
pub(crate) fn with_file(
    command: Command,
    words: &[OsString],
) -> Result<(Vec<OsString>, Option<File>), Failure> {
    let Some(verb) = VERBS.iter().find(|verb| is_verb(words, verb)) else {
        return Ok((words.to_vec(), None));
    };
    // Invalid arguments are reported later, when the command line is complete.
    let lenient = command.clone().ignore_errors(true);
    let Ok(matches) = lenient.try_get_matches_from(words) else { return Ok((words.to_vec(), None)) };
    let Some(own) = matches_of(&matches, verb) else { return Ok((words.to_vec(), None)) };
    let flags = flags_of(&command, verb);
    let Some(own_command) = verb.iter().try_fold(&command, |command, part| command.find_subcommand(part))
    else {
        return Ok((words.to_vec(), None));
    };
    for flag in &flags {
        if own.value_source(flag.get_id().as_str()) == Some(ValueSource::EnvVariable) {
            let variable = variable(flag);
            let value = std::env::var_os(&variable).unwrap_or_default();
            check(own_command, flag, &[value.to_string_lossy().into_owned()], &variable)?;
        }
    }
    let Some(path) = find_file(own.get_one::<PathBuf>(CONFIG).map(PathBuf::as_path))? else {
        return Ok((words.to_vec(), None));
    };
    let mut file = read(&path, own_command, &flags)?;
    let (before, after) = words.split_at(1 + verb.len());
    let mut all = before.to_vec();
    for (key, values) in &file.values {
        let Some(flag) = flags.iter().find(|flag| key_of(flag) == *key) else { continue };
        let origin = own.value_source(flag.get_id().as_str());
        if matches!(origin, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            continue;
        }
        all.extend(as_words(flag, values));
        file.used.push(key.clone());
    }
    all.extend_from_slice(after);
    Ok((all, Some(file)))
}

/// Adds an environment variable to each flag of `serve`.
pub(crate) fn with_variables(command: Command) -> Command {
    VERBS.iter().fold(command, |command, verb| add_variables(command, verb))
}

fn add_variables(command: Command, verb: &[&'static str]) -> Command {
    match verb {
        [] => command.mut_args(|arg| match arg.get_long().is_some() && !is_not_a_setting(&arg) {
            true => {
                let variable = variable(&arg);
                arg.env(variable)
            }
            false => arg,
        }),
        [first, rest @ ..] => command.mut_subcommand(*first, |command| add_variables(command, rest)),
    }
}

/// All settings with their effective values, for `config show`.
pub(crate) fn effective(command: &Command, matches: &ArgMatches, file: Option<&File>) -> Vec<Setting> {
    let verb = VERBS[1];
    let Some(own) = matches_of(matches, verb) else { return Vec::new() };
    flags_of(command, verb)
        .into_iter()
        .map(|flag| {
            let (key, id) = (key_of(&flag), flag.get_id().as_str());
            let value = own.get_raw(id).map(|values| {
                values.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>().join(",")
            });
            let source = match (own.value_source(id), file.filter(|file| file.used.contains(&key))) {
                (_, Some(file)) => Source::File(file.path.clone()),
                (Some(ValueSource::EnvVariable), None) => Source::Environment(variable(&flag)),
                (Some(ValueSource::CommandLine), None) => Source::Flag,
                _ => Source::Default,
            };
            Setting { key, value, source }
        })
        .collect()
}

/// An example file: all settings with help and default, commented out.
pub(crate) fn example(command: &Command) -> String {
    let mut text = String::from(
        "# Settings of `lockkeeper serve`. Flags and LOCKKEEPER_... variables override this file.\n\
         # `lockkeeper config show` shows the effective settings and their sources.\n",
    );
    for flag in flags_of(command, VERBS[0]) {
        let help = flag.get_help().map(|help| help.to_string()).unwrap_or_default();
        let key = key_of(&flag);
        let value = match (flag.get_default_values().first(), flag.get_action()) {
            (_, ArgAction::SetTrue) => "true".to_owned(),
            (Some(default), _) => format!("{:?}", default.to_string_lossy()),
            (None, _) => "\"...\"".to_owned(),
        };
        let example = match key.as_str() {
            "cell" => "{ 1 = \"10.0.0.1:7420\", 2 = \"10.0.0.2:7420\", 3 = \"10.0.0.3:7420\" }".to_owned(),
            "node_id" => "1".to_owned(),
            _ => value,
        };
        text.push_str(&format!("\n# {help}\n# {key} = {example}\n"));
    }
    text
}

fn is_verb(words: &[OsString], verb: &[&str]) -> bool {
    words.len() > verb.len() && words[1..].iter().zip(verb).all(|(word, part)| word == part)
}

fn matches_of<'a>(matches: &'a ArgMatches, verb: &[&str]) -> Option<&'a ArgMatches> {
    verb.iter().try_fold(matches, |matches, part| matches.subcommand_matches(part))
}

fn is_not_a_setting(arg: &Arg) -> bool {
    NOT_SETTINGS[1..].contains(&arg.get_id().as_str())
}

/// The flags of a verb that are settings.
fn flags_of(command: &Command, verb: &[&str]) -> Vec<Arg> {
    let own = verb.iter().try_fold(command, |command, part| command.find_subcommand(part));
    let arguments = own.into_iter().flat_map(Command::get_arguments);
    arguments
        .filter(|arg| arg.get_long().is_some() && !NOT_SETTINGS.contains(&arg.get_id().as_str()))
        // Hidden flags are for tests only.
        .filter(|arg| !arg.is_hide_set())
        .cloned()
        .collect()
}

/// The name of a setting: that of its flag, with underscores.
fn key_of(flag: &Arg) -> String {
    flag.get_long().unwrap_or_default().replace('-', "_")
}

fn variable(flag: &Arg) -> String {
    format!("LOCKKEEPER_{}", key_of(flag).to_uppercase())
}

/// The file to read, if there is one.
fn find_file(named: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    match named {
        Some(path) if path.is_file() => Ok(Some(path.to_owned())),
        Some(path) => Err(Failure::usage(format!(
            "{} does not exist: correct --config or LOCKKEEPER_CONFIG, or create a file with `lockkeeper config example`",
            path.display()
        ))),
        None => Ok(DEFAULT_PATHS.iter().map(PathBuf::from).find(|path| path.is_file())),
    }
}

fn read(path: &Path, verb: &Command, flags: &[Arg]) -> Result<File, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("failed to read {}: {error}. Check its permissions", path.display()))
    })?;
    let table: toml::Table = text
        .parse()
        .map_err(|error| Failure::usage(format!("{} is not valid TOML: {error}", path.display())))?;
    let mut values = Vec::new();
    for (key, value) in table {
        let Some(flag) = flags.iter().find(|flag| key_of(flag) == key) else {
            return Err(Failure::usage(format!("{}: {}", path.display(), unknown(&key, flags))));
        };
        let found = texts(&value).ok_or_else(|| {
            Failure::usage(format!(
                "{}: {key} has an unsupported type: use a string, a number, true or false, a list of strings, or a \
                 table of strings",
                path.display()
            ))
        })?;
        check(verb, flag, &found, &format!("{}: {key}", path.display()))?;
        values.push((key, found));
    }
    Ok(File { path: path.to_owned(), values, used: Vec::new() })
}

/// The strings that a command line would have for a value. A table is a list of name=value.
fn texts(value: &toml::Value) -> Option<Vec<String>> {
    let one = |value: &toml::Value| match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(word) => Some(word.to_string()),
        toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => None,
    };
    match value {
        toml::Value::Array(items) => items.iter().map(one).collect(),
        toml::Value::Table(table) => {
            table.iter().map(|(name, value)| Some(format!("{name}={}", one(value)?))).collect()
        }
        single => one(single).map(|text| vec![text]),
    }
}

/// The words of the command line for a value.
fn as_words(flag: &Arg, values: &[String]) -> Vec<OsString> {
    let long = flag.get_long().unwrap_or_default();
    match flag.get_action() {
        ArgAction::SetTrue if values == ["true"] => vec![format!("--{long}").into()],
        ArgAction::SetTrue => Vec::new(),
        _ if flag.get_value_delimiter().is_some() => vec![format!("--{long}={}", values.join(",")).into()],
        _ => values.iter().map(|value| format!("--{long}={value}").into()).collect(),
    }
}

/// Checks a value, and names its source in the error.
fn check(verb: &Command, flag: &Arg, values: &[String], place: &str) -> Result<(), Failure> {
    if matches!(flag.get_action(), ArgAction::SetTrue) {
        return match values {
            [word] if word == "true" || word == "false" => Ok(()),
            _ => Err(Failure::usage(format!("{place} must be true or false"))),
        };
    }
    let Err(error) = verb.clone().no_binary_name(true).try_get_matches_from(as_words(flag, values)) else {
        return Ok(());
    };
    // Other errors, such as a missing companion flag, are reported when the command line is complete.
    let argument = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => return Ok(()),
    };
    let of_value = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
    let long = format!("--{}", flag.get_long().unwrap_or_default());
    if !of_value || argument.split(' ').next() != Some(&long) {
        return Ok(());
    }
    let text = error.to_string();
    let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    Err(Failure::usage(format!("{place}: {}", message.replace(&format!(" for '{argument}'"), ""))))
}

fn unknown(key: &str, flags: &[Arg]) -> String {
    let known = || flags.iter().map(key_of);
    let near = known()
        .map(|other| (strsim::jaro_winkler(&key.replace('-', "_"), &other), other))
        .filter(|(similarity, _)| *similarity > SIMILARITY_MIN)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match near {
        Some((_, other)) => format!("unknown setting {key}: did you mean {other}?"),
        None => format!("unknown setting {key}: the settings are {}", known().collect::<Vec<_>>().join(", ")),
    }
}
