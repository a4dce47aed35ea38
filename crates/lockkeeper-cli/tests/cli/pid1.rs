//! `run` as process 1 of a container.

use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::skip::skip_or_fail;
use crate::support::{BINARY, Process, Server, text, until_line};

const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// `lockkeeper run` as process 1. None if the user may not create a PID namespace.
fn as_process_one(server: &Server, script: &str) -> Option<Command> {
    let trial = Command::new(UNSHARE[0]).args(&UNSHARE[1..]).arg("true").output();
    if !trial.as_ref().is_ok_and(|trial| trial.status.success()) {
        skip_or_fail(
            &format!("this user may not create a PID namespace: {trial:?}"),
            "install util-linux and run the tests as root",
        );
        return None;
    }
    let mut command = Command::new(UNSHARE[0]);
    command
        .args(&UNSHARE[1..])
        .args([BINARY, "run", "job", "--engine", &server.engine(), "--", "sh", "-c", script])
        .current_dir(server.path(""))
        .stdin(Stdio::null());
    Some(command)
}

#[test]
fn process_one_reaps_orphans_and_returns_the_commands_code() {
    let server = Server::start();
    // The parent of each orphan, a subshell, has ended. The orphan records who adopted it, and ends; the command waits until
    // no zombie is left.
    let script = "cat /proc/1/comm; \
        for i in 1 2 3; do (sh -c 'while ! [ -e go ]; do sleep 0.01; done; grep PPid /proc/$$/status >> parents; echo $$ >> orphans' &); done; \
        sleep 0.1; touch go; \
        while ! [ \"$(cat orphans 2>/dev/null | wc -l)\" = 3 ]; do sleep 0.01; done; \
        for pid in $(cat orphans); do while [ -e /proc/$pid ]; do sleep 0.01; done; done; \
        cat parents; grep -l 'State:.Z' /proc/[0-9]*/status; exit 7";
    let Some(mut command) = as_process_one(&server, script) else { return };
    let mut run = Process::spawn(command.stdout(Stdio::piped()));
    assert_eq!(run.code(), 7);
    assert_eq!(run.stdout_text(), "lockkeeper\nPPid:\t1\nPPid:\t1\nPPid:\t1\n");
}

#[test]
fn process_one_handles_signals() {
    let server = Server::start();
    let script = "trap 'exit 8' TERM; echo ready > ready; while :; do sleep 0.02; done";
    let Some(mut command) = as_process_one(&server, script) else { return };
    let mut run = Process::spawn(&mut command);
    until_line(&server.path("ready"));
    // The child of unshare is process 1 of the namespace.
    let children = Command::new("pgrep").args(["-P", &run.id().to_string()]).output().unwrap();
    let one: i32 = text(&children.stdout).trim().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(one).unwrap(), Signal::TERM).unwrap();
    assert_eq!(run.code(), 8);
    assert_eq!(server.who("job")["holders"].as_array().unwrap().len(), 0);
}
