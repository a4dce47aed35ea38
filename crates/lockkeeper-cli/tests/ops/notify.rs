//! Notifications to the service manager, over a real datagram socket.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{BINARY, LONG, Process};

/// Reads messages until one has this line.
fn until_message(socket: &UnixDatagram, line: &str) -> String {
    let mut bytes = [0; 4096];
    loop {
        let count =
            socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{line} was not received: {error}"));
        let message = String::from_utf8(bytes[..count].to_vec()).unwrap();
        if message.lines().any(|found| found == line) {
            return message;
        }
    }
}

fn node(folder: &std::path::Path, socket: &str) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.join("data"))
        .current_dir(folder)
        .env("NOTIFY_SOCKET", socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

#[test]
fn systemd_is_notified_of_ready_alive_and_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify.sock");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let mut process =
        Process::spawn(node(folder.path(), path.to_str().unwrap()).env("WATCHDOG_USEC", "200000"));
    let ready = until_message(&socket, "READY=1");
    let address = ready.lines().find_map(|line| line.strip_prefix("STATUS=serving on ")).unwrap().to_owned();
    assert!(std::net::TcpStream::connect(&address).is_ok(), "ready was sent before the node served: {ready}");
    for _ in 0..3 {
        until_message(&socket, "WATCHDOG=1");
    }
    process.signal(Signal::TERM);
    until_message(&socket, "STOPPING=1");
    assert_eq!(process.code(), 0);
}

#[test]
fn abstract_sockets_work_and_watchdogs_of_other_processes_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("lockkeeper-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let mut process = Process::spawn(
        node(folder.path(), &format!("@{name}")).env("WATCHDOG_USEC", "2000").env("WATCHDOG_PID", "1"),
    );
    until_message(&socket, "READY=1");
    process.signal(Signal::TERM);
    let mut bytes = [0; 4096];
    let count = socket.recv(&mut bytes).unwrap();
    assert!(bytes[..count].starts_with(b"STOPPING=1"), "{:?}", String::from_utf8_lossy(&bytes[..count]));
    assert_eq!(process.code(), 0);
}

#[test]
fn dead_service_manager_does_not_stop_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::spawn(
        node(folder.path(), "/nowhere/notify.sock")
            .stdout(std::fs::File::create(folder.path().join("out")).unwrap()),
    );
    crate::support::until_line(&folder.path().join("out"));
    process.signal(Signal::TERM);
    assert_eq!(process.code(), 0);
}
