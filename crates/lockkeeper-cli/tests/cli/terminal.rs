//! `run` and `force-release` on a terminal, created by script(1).

use std::fs::File;
use std::process::{Command, Stdio};

use crate::support::{BINARY, Process, Server, until};

/// A session on its own terminal. Input is typed into it; the screen is in a file.
struct Session<'a> {
    process: Process,
    server: &'a Server,
}

impl Session<'_> {
    fn start<'a>(server: &'a Server, line: &str) -> Session<'a> {
        let mut script = Command::new("env");
        script
            .args(["--default-signal", "script", "-qefc", line, "/dev/null"])
            .env("LK", BINARY)
            .env("LOCKKEEPER_ENGINE", server.engine())
            .env("SHELL", "/bin/sh")
            .current_dir(server.path(""))
            .stdin(Stdio::piped())
            .stdout(File::create(server.path("screen")).unwrap());
        Session { process: Process::spawn(&mut script), server }
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.server.path("screen")).unwrap()).into_owned()
    }

    fn until_shown(&self, text: &str) {
        let screen = || self.screen();
        until(&format!("{text:?} on the screen"), || screen().contains(text).then_some(()));
    }
}

#[test]
fn command_reads_from_the_terminal() {
    let server = Server::start();
    let mut session =
        Session::start(&server, "$LK run job -- sh -c 'echo ask; read line; echo \"<$line>\"; exit 5'");
    session.until_shown("ask");
    session.process.write("hello\n");
    session.until_shown("<hello>");
    assert_eq!(session.process.code(), 5);
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let server = Server::start();
    let mut session = Session::start(
        &server,
        "$LK run job -- sh -c 'trap \"echo interrupted >> log; exit 5\" INT; echo ready; while :; do sleep 0.02; done'",
    );
    session.until_shown("ready");
    session.process.write("\x03");
    assert_eq!(session.process.code(), 5);
    assert_eq!(std::fs::read_to_string(server.path("log")).unwrap(), "interrupted\n");
}

#[test]
fn ctrl_z_does_not_suspend_the_command() {
    let server = Server::start();
    let mut session = Session::start(
        &server,
        // The command may start before `run` gives it the terminal, and until then Ctrl-Z does not reach it. So it waits
        // until its process group is in the foreground. It also must not fork while it is stopped: while a shell waits
        // for a child to exec (vfork), only the child stops, and the parent does not notice.
        "$LK run job -- sh -c 'sleep 100 & trap \"echo went on; kill $!; exit 0\" CONT; \
         until read -r _ _ _ _ group _ _ front _ < /proc/$$/stat && [ $group = $front ]; do sleep 0.02; done; \
         echo ready; wait'",
    );
    session.until_shown("ready");
    session.process.write("\x1a");
    session.until_shown("went on");
    assert_eq!(session.process.code(), 0);
}

#[test]
fn terminal_returns_to_the_shell() {
    let server = Server::start();
    let mut session = Session::start(
        &server,
        "$LK run job -- sh -c 'read a; echo \"<$a>\"'; echo again; read b; echo \"<$b>\"",
    );
    session.process.write("one\n");
    session.until_shown("<one>");
    session.until_shown("again");
    session.process.write("two\n");
    session.until_shown("<two>");
    assert_eq!(session.process.code(), 0);
}

#[test]
fn command_in_a_pipeline_gets_the_terminal_when_it_reads_from_it() {
    let server = Server::start();
    let mut session = Session::start(
        &server,
        "$LK run job -- sh -c 'echo ask; read line < /dev/tty; echo \"<$line>\"' < /dev/null | cat; read b; echo \"<$b>\"",
    );
    session.until_shown("ask");
    session.process.write("hello\n");
    session.until_shown("<hello>");
    session.process.write("after\n");
    session.until_shown("<after>");
    assert_eq!(session.process.code(), 0);
}

#[test]
fn wait_shows_progress_until_ctrl_c_ends_it() {
    let server = Server::start();
    let _holder = server.hold("job");
    let mut session = Session::start(&server, "$LK run job -- true");
    session.until_shown("waiting for \"job\", held by ");
    session.until_shown("position 1 of 1");
    session.process.write("\x03");
    assert_eq!(session.process.code(), 130);
    assert!(session.screen().ends_with("\r\x1b[K"), "{:?}", session.screen());
    assert_eq!(server.who("job")["waiting"], 0);
}

#[test]
fn force_release_asks_for_confirmation() {
    let server = Server::start();
    let mut holder = server.hold("job");
    let mut session = Session::start(&server, "$LK force-release job");
    session.until_shown("\"job\" is held by ");
    session.process.write("n\n");
    assert_eq!(session.process.code(), 1);
    assert!(session.screen().contains("nothing was done"));
    assert_eq!(server.who("job")["holders"].as_array().unwrap().len(), 1);

    let mut session = Session::start(&server, "$LK force-release job");
    session.until_shown("Force-release it? [y/N]");
    session.process.write("y\n");
    assert_eq!(session.process.code(), 0);
    assert_eq!(holder.code(), 70);
}
