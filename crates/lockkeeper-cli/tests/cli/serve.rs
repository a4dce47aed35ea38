//! Start-up errors of a node, and its state after a restart.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Output;

use rustix::process::Signal;

use crate::support::{Server, lockkeeper, text, until};

/// Runs `serve`, which must refuse to start.
fn assert_refused(data_dir: &Path, words: &[&str]) -> (Output, String) {
    let output = lockkeeper()
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .args(words)
        // Only the error itself.
        .env("LOCKKEEPER_LOG", "error")
        .output()
        .unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(stderr.starts_with("lockkeeper: "), "{stderr}");
    (output, stderr)
}

#[test]
fn second_process_on_the_same_folder_is_refused() {
    let server = Server::start();
    let (_, stderr) = assert_refused(&server.data_dir(), &[]);
    assert!(
        stderr.contains("is in use by another process (process ") && stderr.contains("--data-dir"),
        "{stderr}"
    );
    // The folder is named even if the port is taken as well.
    let output = lockkeeper()
        .args(["serve", "--listen", &server.address, "--data-dir"])
        .arg(server.data_dir())
        .output()
        .unwrap();
    assert!(text(&output.stderr).contains("data folder"), "{output:?}");
    assert_eq!(server.who("job")["waiting"], 0, "the first one still serves");
}

#[test]
fn port_in_use_is_refused() {
    let server = Server::start();
    let output = lockkeeper()
        .args(["serve", "--listen", &server.address, "--data-dir"])
        .arg(server.path("other"))
        .env("LOCKKEEPER_LOG", "error")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains(&format!("{} is in use by another process", server.address))
            && stderr.contains("--listen"),
        "{stderr}"
    );
}

#[test]
fn folder_of_another_node_is_refused() {
    let mut server = Server::start();
    server.kill();
    let (_, stderr) = assert_refused(&server.data_dir(), &["--node-id", "2"]);
    assert!(
        stderr.contains("belongs to node 1, not to node 2") && stderr.contains("--node-id 1"),
        "{stderr}"
    );
}

#[test]
fn unwritable_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [&file.join("below"), Path::new("/proc/lockkeeper")] {
        let (_, stderr) = assert_refused(path, &[]);
        assert!(stderr.contains("cannot be used") && stderr.contains("--data-dir"), "{stderr}");
    }
}

#[test]
fn damaged_log_is_refused_or_loses_nothing() {
    let mut server = Server::start();
    for _ in 0..5 {
        assert_eq!(server.run("job", &[], "true").status().unwrap().code(), Some(0));
    }
    let last_token = server.who("job")["last_token"].as_u64().unwrap();
    server.kill();
    let log = server.data_dir().join("log");
    let (file, used) = newest_written(&log);
    let whole = fs::read(&file).unwrap();
    let mut refusals = 0;
    for part in 0..6 {
        let mut bytes = whole.clone();
        bytes[used * part / 6] ^= 0x10;
        fs::write(&file, &bytes).unwrap();
        let output = std::process::Command::new("timeout")
            .args(["2", crate::support::BINARY, "serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(server.data_dir())
            .env("LOCKKEEPER_LOG", "error")
            .output()
            .unwrap();
        if output.status.code() == Some(1) {
            let stderr = text(&output.stderr);
            assert!(stderr.contains("the log is damaged: ") && stderr.contains("backup"), "{stderr}");
            assert!(fs::read(&file).unwrap() == bytes, "the file was changed");
            refusals += 1;
        } else {
            server.restart();
            assert!(
                server.who("job")["last_token"].as_u64().unwrap() >= last_token,
                "byte {} of {used}",
                used * part / 6
            );
            server.kill();
            // The node has written to the log since.
            break;
        }
        fs::write(&file, &whole).unwrap();
    }
    assert!(refusals > 0, "no damage was noticed");
}

/// The newest log file with entries, and its used length.
fn newest_written(log: &Path) -> (std::path::PathBuf, usize) {
    let mut files: Vec<_> = fs::read_dir(log)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    files.sort();
    files
        .into_iter()
        .rev()
        .find_map(|path| {
            let used =
                fs::read(&path).unwrap().iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            (used > 4_096).then_some((path, used))
        })
        .expect("a log that was written")
}

#[test]
fn damaged_snapshot_is_refused() {
    let mut server = Server::start();
    server.kill();
    fs::write(server.data_dir().join("snapshot/table.snapshot"), b"LKSNAP1\nno snapshot at all").unwrap();
    let (_, stderr) = assert_refused(&server.data_dir(), &[]);
    assert!(stderr.contains("the snapshot") && stderr.contains("damaged"), "{stderr}");
}

#[test]
fn tokens_keep_rising_after_a_kill() {
    let mut server = Server::start();
    let token = |server: &Server| -> u64 {
        let output = server.run("job", &[], "echo $LOCKKEEPER_TOKEN").output().unwrap();
        text(&output.stdout).trim().parse().unwrap()
    };
    let first = token(&server);
    server.kill();
    server.restart();
    assert!(token(&server) > first);
}

#[test]
fn term_and_int_stop_the_node_with_code_0() {
    let folder = tempfile::tempdir().unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let mut process = crate::support::Process::spawn(
            lockkeeper()
                .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
                .arg(folder.path())
                .env("LOCKKEEPER_LOG", "error")
                .stdout(fs::File::create(folder.path().join("stdout")).unwrap()),
        );
        crate::support::until_line(&folder.path().join("stdout"));
        process.signal(signal);
        assert_eq!(process.code(), 0);
    }
}

/// Posts without a client library.
fn post(server: &Server, path: &str, body: &str) -> String {
    let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json"
    );
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Truncates the write of a value, like a power failure in the middle of it.
fn tear(log: &Path, value: &[u8]) {
    const SECTOR: usize = 512;
    for entry in fs::read_dir(log).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let first = bytes.windows(value.len()).position(|some| some == value);
        if let Some(at) = first {
            bytes[(at / SECTOR + 1) * SECTOR..].fill(0);
            fs::write(&path, bytes).unwrap();
            return;
        }
    }
    panic!("the value was not found in {}", log.display());
}

#[test]
fn startup_logs_the_recovered_state() {
    let mut server = Server::start_with(&["--snapshot-every", "50", "--snapshot-behind", "5"]);
    let log = |server: &Server| fs::read_to_string(server.path("data.stderr")).unwrap();
    assert!(log(&server).contains("no snapshot yet"), "{}", log(&server));
    for number in 0..200 {
        post(&server, "/v1/value/put", &format!("{{\"key\": \"k{number}\", \"value\": \"v\"}}"));
    }
    until("the log to be cut", || (server.json(&["status"])["purged_index"].as_u64()? > 0).then_some(()));
    server.kill();
    server.restart();
    let found = log(&server);
    assert!(found.contains("snapshot read") && found.contains("log read"), "{found}");
    assert!(!found.contains("cut short"), "{found}");
    assert_eq!(server.json(&["status"])["values"], 200, "all values are recovered");

    let long = "y".repeat(5_000);
    post(&server, "/v1/value/put", &format!("{{\"key\": \"torn\", \"value\": \"{long}\"}}"));
    server.kill();
    tear(&server.data_dir().join("log"), &[b'y'; 300]);
    server.restart();
    let found = log(&server);
    assert!(found.contains("snapshot read") && found.contains("log read"), "{found}");
    assert!(found.contains("a write that was cut short"), "{found}");
    assert_eq!(server.json(&["status"])["values"], 200, "a torn write is dropped");
}
