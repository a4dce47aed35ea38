//! Signals are forwarded to the command's process group; before the command starts they end the wait.

use std::process::Stdio;

use rustix::process::Signal;

use crate::support::{Process, Server, until, until_line};

#[test]
fn signals_are_forwarded_to_the_whole_group() {
    let server = Server::start();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::ALARM, "ALRM"),
        (Signal::CONT, "CONT"),
        (Signal::WINCH, "WINCH"),
    ] {
        // A shell that was started in the background ignores INT and QUIT forever, so the grandchild is in the foreground.
        let script = format!(
            "trap 'echo child >> child-{name}; exit 9' {name}; \
             sh -c \"trap 'echo grandchild > grandchild-{name}; exit 0' {name}; \
                     echo ready > ready-{name}; while :; do sleep 0.02; done\""
        );
        let mut run = Process::spawn(&mut server.run("job", &[], &script));
        until_line(&server.path(&format!("ready-{name}")));
        run.signal(signal);
        assert_eq!(run.code(), 9, "{name}");
        assert_eq!(until_line(&server.path(&format!("child-{name}"))), "child");
        assert_eq!(until_line(&server.path(&format!("grandchild-{name}"))), "grandchild");
    }
}

#[test]
fn command_without_a_handler_is_killed_by_the_signal() {
    let server = Server::start();
    let mut run = Process::spawn(&mut server.run("job", &[], "echo > ready; exec sleep 1000"));
    until("the command", || server.path("ready").exists().then_some(()));
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
    assert_eq!(server.who("job")["holders"].as_array().unwrap().len(), 0, "and the lock is free at once");
}

#[test]
fn signal_while_waiting_leaves_the_queue() {
    let server = Server::start();
    let _holder = server.hold("job");
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::USR1, 138)] {
        let mut run = Process::spawn(server.run("job", &[], "touch ran").stderr(Stdio::null()));
        server.until_waiting("job", 1);
        // These do not end a wait.
        run.signal(Signal::WINCH);
        run.signal(Signal::CONT);
        run.signal(signal);
        assert_eq!(run.code(), code);
        assert_eq!(server.who("job")["waiting"], 0, "it has left the queue before it ended");
    }
    assert!(!server.path("ran").exists());
}

#[test]
fn signals_ignored_at_the_start_stay_ignored() {
    let server = Server::start();
    let script = "grep SigIgn /proc/self/status > mask; while ! [ -e go ]; do sleep 0.01; done";
    let mut shell = std::process::Command::new("sh");
    shell
        .args([
            "-c",
            "trap '' HUP; exec \"$@\"",
            "sh",
            crate::support::BINARY,
            "run",
            "job",
            "--",
            "sh",
            "-c",
            script,
        ])
        .env("LOCKKEEPER_ENGINE", server.engine())
        .current_dir(server.path(""));
    let mut run = Process::spawn(&mut shell);
    let mask = until_line(&server.path("mask"));
    let mask = u64::from_str_radix(mask.rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(mask & 1, 1, "the command ignores HUP too");
    run.signal(Signal::HUP);
    std::fs::write(server.path("go"), "").unwrap();
    assert_eq!(run.code(), 0);
}
