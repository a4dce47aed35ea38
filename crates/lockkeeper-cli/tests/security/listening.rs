//! A port that other machines can reach needs TLS and authentication, or --insecure.

use std::process::{Output, Stdio};
use std::time::Duration;

use crate::certificates::Authority;
use crate::fixture::ROOT_TOKEN;
use crate::harness::node::{free_address, lockkeeper};
use crate::harness::write_secret;

/// Runs `serve` with arguments. It is killed once it serves, which counts as success.
async fn serve(folder: &std::path::Path, words: &[&str]) -> Result<(), String> {
    let data = folder.join("data");
    let _ = std::fs::remove_dir_all(&data);
    let mut command = tokio::process::Command::from(lockkeeper());
    command
        .args(["serve", "--data-dir"])
        .arg(&data)
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = tokio::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let read = tokio::io::AsyncBufReadExt::read_line(&mut first, &mut line);
    tokio::time::timeout(Duration::from_secs(30), read).await.expect("an end or a line").unwrap();
    if line.contains("serves on") {
        child.kill().await.unwrap();
        return Ok(());
    }
    let Output { stderr, .. } = child.wait_with_output().await.unwrap();
    Err(String::from_utf8_lossy(&stderr).into_owned())
}

#[tokio::test]
async fn reachable_port_needs_tls_and_authentication_or_insecure() {
    let folder = tempfile::tempdir().unwrap();
    let (nodes, clients) = (Authority::new(folder.path(), "nodes"), Authority::new(folder.path(), "clients"));
    let own = nodes.issue("node", &["127.0.0.1:1"]);
    let token = folder.path().join("root.token");
    write_secret(&token, ROOT_TOKEN);
    let short = folder.path().join("short.token");
    write_secret(&short, "hunter2");
    let text = |path: &std::path::Path| path.display().to_string();
    let (certificate, key) = (text(&own.certificate), text(&own.key));
    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    let (token, short, ca) = (text(&token), text(&short), text(&clients.file));
    let (nodes_ca, own_address) = (text(&nodes.file), free_address(7420));
    let open = ["--listen", "0.0.0.0:0"];
    let local = ["--listen", "127.0.0.1:0"];
    let other = free_address(7420);
    let list = format!("1={own_address},2={other}");

    for (words, must_say) in [
        (vec![&open[..]], "--insecure"),
        (vec![&open[..], &tls], "callers are not authenticated"),
        (vec![&open[..], &["--root-token-file", &token]], "not encrypted"),
        (vec![&local[..], &["--client-ca", &ca]], "--tls-cert"),
        (vec![&local[..], &["--root-token-file", &short]], "shorter than 32"),
        (vec![&local[..], &["--root-token-file", "/no/such/file"]], "/no/such/file"),
        (vec![&local[..], &tls, &["--root-name", "ada"]], "--client-ca"),
        (vec![&local[..], &tls, &["--client-ca", &ca, "--peer-ca", &ca]], "every client could vote"),
        (vec![&local[..], &["--tls-cert", &key, "--tls-key", &key]], "failed to read a certificate"),
        (vec![&local[..], &["--tls-cert", &nodes_ca, "--tls-key", &key]], "do not match"),
        (
            vec![
                &["--listen", &own_address, "--cell", &list, "--node-id", "1"],
                &["--root-token-file", &token],
            ],
            "--peer-ca",
        ),
    ] {
        let words: Vec<&str> = words.concat();
        let Err(said) = serve(folder.path(), &words).await else { panic!("{words:?} serves") };
        assert!(said.contains(must_say), "{words:?}: {said}");
    }
    for words in [
        vec![&local[..]],
        vec![&open[..], &["--insecure"]],
        vec![&open[..], &tls, &["--root-token-file", &token]],
        vec![&open[..], &tls, &["--client-ca", &ca]],
        vec![&open[..], &tls, &["--client-ca", &ca, "--root-name", "ada"]],
        vec![&local[..], &["--root-token-file", &token]],
    ] {
        let words: Vec<&str> = words.concat();
        if let Err(said) = serve(folder.path(), &words).await {
            panic!("{words:?}: {said}");
        }
    }
}
