//! Processes that the command leaves behind.

use crate::support::{Process, Server, is_alive, until, until_line};

#[test]
fn remaining_processes_are_ended_before_the_lock_is_released() {
    let server = Server::start();
    // One process ends on TERM, the other needs KILL.
    let script = "sleep 1000 & echo $! > soft; \
                  sh -c 'trap \"\" TERM; echo $$ > hard; while :; do sleep 0.02; done' & \
                  while ! [ -s hard ]; do sleep 0.01; done; exit 4";
    let mut run = Process::spawn(&mut server.run("job", &["--kill-after", "200ms"], script));
    assert_eq!(run.code(), 4);
    for file in ["soft", "hard"] {
        let pid = until_line(&server.path(file));
        assert!(!is_alive(&pid), "{file}");
    }
    assert_eq!(server.who("job")["holders"].as_array().unwrap().len(), 0);
}

#[test]
fn keep_group_leaves_remaining_processes_alive() {
    let server = Server::start();
    let mut run = Process::spawn(&mut server.run("job", &["--keep-group"], "sleep 1000 & echo $! > left"));
    assert_eq!(run.code(), 0);
    let pid = until_line(&server.path("left"));
    assert!(is_alive(&pid));
    assert_eq!(server.who("job")["holders"].as_array().unwrap().len(), 0);
    std::process::Command::new("kill").arg(&pid).status().unwrap();
    until("the process to end", || (!is_alive(&pid)).then_some(()));
}

#[test]
fn command_has_its_own_process_group() {
    let server = Server::start();
    let output = server.run("job", &[], "echo $$; cut -d' ' -f5 /proc/$$/stat").output().unwrap();
    let text = crate::support::text(&output.stdout);
    let (pid, group) = text.trim().split_once('\n').unwrap();
    assert_eq!(pid, group);
}

#[test]
fn command_starts_with_no_signal_blocked() {
    let server = Server::start();
    let output = server.run("job", &[], "grep SigBlk /proc/self/status").output().unwrap();
    assert_eq!(crate::support::text(&output.stdout), "SigBlk:\t0000000000000000\n");
}
