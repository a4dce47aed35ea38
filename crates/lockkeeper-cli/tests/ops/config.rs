//! Precedence of settings (flag > environment > file > default), and their error messages.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{lockkeeper, text};

/// The binary in its own folder, without settings from outside.
fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = lockkeeper();
    command.args(words).current_dir(folder);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LOCKKEEPER_")) {
        command.env_remove(name);
    }
    command
}

fn shown(command: &mut Command) -> Value {
    let output = command.args(["--output", "json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn assert_refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    text(&output.stderr)
}

#[test]
fn flags_override_the_environment_which_overrides_the_file_which_overrides_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lockkeeper.toml");
    fs::write(&file, "listen = \"127.0.0.1:1\"\nslow_acquire = \"1s\"\nlog_format = \"json\"\nnode_id = 2\n")
        .unwrap();
    let settings = shown(
        command(folder.path(), &["config", "show", "--listen", "127.0.0.1:3"])
            .env("LOCKKEEPER_LISTEN", "127.0.0.1:2")
            .env("LOCKKEEPER_SLOW_ACQUIRE", "2s"),
    );
    for (key, value, from) in [
        ("listen", "127.0.0.1:3", "flag"),
        ("slow_acquire", "2s", "environment LOCKKEEPER_SLOW_ACQUIRE"),
        ("log_format", "json", "file lockkeeper.toml"),
        ("node_id", "2", "file lockkeeper.toml"),
        ("data_dir", "./lockkeeper-data", "default"),
    ] {
        assert_eq!(settings[key]["value"], value, "{key}: {settings}");
        assert_eq!(settings[key]["from"], from, "{key}: {settings}");
    }
    assert_eq!(settings["peer_listen"]["value"], Value::Null);
    let table = command(folder.path(), &["config", "show"]).output().unwrap();
    assert!(text(&table.stdout).starts_with("SETTING"), "{table:?}");
}

#[test]
fn file_is_found_by_flag_then_environment_then_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    for (name, port) in [("lockkeeper.toml", 1), ("two.toml", 2), ("three.toml", 3)] {
        fs::write(folder.path().join(name), format!("listen = \"127.0.0.1:{port}\"\n")).unwrap();
    }
    let show = || command(folder.path(), &["config", "show"]);
    assert_eq!(shown(&mut show())["listen"]["value"], "127.0.0.1:1");
    assert_eq!(shown(show().env("LOCKKEEPER_CONFIG", "two.toml"))["listen"]["value"], "127.0.0.1:2");
    let both = shown(show().env("LOCKKEEPER_CONFIG", "two.toml").args(["--config", "three.toml"]));
    assert_eq!(both["listen"]["value"], "127.0.0.1:3");
    let error = assert_refused(show().args(["--config", "none.toml"]));
    assert!(error.contains("none.toml does not exist") && error.contains("--config"), "{error}");
}

#[test]
fn members_can_be_a_string_a_list_or_a_table() {
    let folder = tempfile::tempdir().unwrap();
    for cell in [
        "cell = \"1=a:1,2=b:2,3=c:3\"",
        "cell = [\"1=a:1\", \"2=b:2\", \"3=c:3\"]",
        "cell = { 1 = \"a:1\", 2 = \"b:2\", 3 = \"c:3\" }",
        "[cell]\n1 = \"a:1\"\n2 = \"b:2\"\n3 = \"c:3\"",
    ] {
        fs::write(folder.path().join("lockkeeper.toml"), cell).unwrap();
        let settings = shown(&mut command(folder.path(), &["config", "show"]));
        assert_eq!(settings["cell"]["value"], "1=a:1,2=b:2,3=c:3", "{cell}");
    }
}

#[test]
fn errors_name_the_source_of_a_setting() {
    let folder = tempfile::tempdir().unwrap();
    for (content, words) in [
        ("data-dir = \"x\"", &["lockkeeper.toml", "unknown setting data-dir", "did you mean data_dir?"][..]),
        ("lisen = \"x\"", &["did you mean listen?"]),
        ("qqqq = 1", &["unknown setting qqqq", "the settings are listen, data_dir"]),
        ("slow_acquire = \"5\"", &["lockkeeper.toml: slow_acquire", "5s"]),
        ("node_id = \"one\"", &["lockkeeper.toml: node_id", "one"]),
        ("cell = [\"nonsense\"]", &["lockkeeper.toml: cell", "id=host:port"]),
        ("log_format = \"xml\"", &["lockkeeper.toml: log_format", "xml"]),
        ("log = \"lockkeeper=loud\"", &["lockkeeper.toml: log"]),
        ("listen = 2020-01-01", &["listen", "a string, a number"]),
        ("listen = ", &["lockkeeper.toml is not valid TOML"]),
    ] {
        fs::write(folder.path().join("lockkeeper.toml"), content).unwrap();
        for verb in [&["serve"][..], &["config", "show"]] {
            let error = assert_refused(&mut command(folder.path(), verb));
            assert!(words.iter().all(|word| error.contains(word)), "{content}: {error}");
        }
    }
    fs::remove_file(folder.path().join("lockkeeper.toml")).unwrap();
    let error = assert_refused(command(folder.path(), &["serve"]).env("LOCKKEEPER_NODE_ID", "one"));
    assert!(error.contains("LOCKKEEPER_NODE_ID"), "{error}");
    let error = assert_refused(
        command(folder.path(), &["config", "show", "--output=json", "--config=no"]).stdin(Stdio::null()),
    );
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["error"]["code"], "invalid");
}

#[test]
fn example_file_is_valid_and_commented_out() {
    let folder = tempfile::tempdir().unwrap();
    let example = text(&command(folder.path(), &["config", "example"]).output().unwrap().stdout);
    let bare = shown(&mut command(folder.path(), &["config", "show"]));
    for key in bare.as_object().unwrap().keys() {
        assert!(example.contains(&format!("\n# {key} = ")), "{key} is not in the example: {example}");
    }
    let path = folder.path().join("lockkeeper.toml");
    fs::write(&path, &example).unwrap();
    assert_eq!(shown(&mut command(folder.path(), &["config", "show"])), bare, "the example is commented out");
    let used = example.replace("# listen = \"127.0.0.1:7420\"", "listen = \"127.0.0.1:9\"");
    fs::write(&path, used).unwrap();
    assert_eq!(shown(&mut command(folder.path(), &["config", "show"]))["listen"]["value"], "127.0.0.1:9");
}

#[test]
fn node_serves_with_settings_from_a_file_and_logs_json() {
    use std::io::{BufRead, BufReader, Read};

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.toml");
    fs::write(
        &file,
        "listen = \"127.0.0.1:0\"\ndata_dir = \"here\"\nlog_format = \"json\"\nlog = \"info\"\n",
    )
    .unwrap();
    let mut process = crate::support::Process::spawn(
        command(folder.path(), &["serve", "--config", "own.toml"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("lockkeeper serves on 127.0.0.1:"), "{line}");
    assert!(folder.path().join("here/identity.json").exists());
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.code(), 0);
    let mut logged = String::new();
    process.stderr.take().unwrap().read_to_string(&mut logged).unwrap();
    assert!(!logged.is_empty());
    for line in logged.lines() {
        let entry: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(entry["fields"]["message"].is_string(), "{line}");
    }
}
