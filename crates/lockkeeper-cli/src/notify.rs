//! What systemd wants to know of a service of `Type=notify`: that it is ready, that it stops, that it lives.
//!
//! Without `NOTIFY_SOCKET` nothing of this does anything. See sd_notify(3).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Where messages to the service manager go, if there is one.
#[derive(Debug)]
pub(crate) struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl Notify {
    pub(crate) fn from_environment() -> Notify {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Notify { socket: None };
        };
        let address = match name.as_encoded_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&name),
        };
        let socket = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            // A manager that does not read must not keep a node from its work.
            socket.set_nonblocking(true)?;
            Ok((socket, address))
        });
        match socket {
            Ok(socket) => Notify { socket: Some(socket) },
            Err(error) => {
                tracing::warn!(?name, %error, "NOTIFY_SOCKET cannot be used: the service manager learns nothing");
                Notify { socket: None }
            }
        }
    }

    /// It leads or follows: whoever waited for it may go on.
    pub(crate) fn ready(&self, address: &str) {
        self.say(&format!("READY=1\nSTATUS=serves on {address}"));
    }

    /// It was asked to stop, and does.
    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=stopping");
    }

    /// Says again and again that it lives, if the manager asked for it. Runs on the thread that does the node's work:
    /// if that one hangs, so does this.
    pub(crate) async fn live(&self) {
        let Some(every) = self.watchdog() else { return std::future::pending().await };
        let mut ticks = tokio::time::interval(every);
        loop {
            ticks.tick().await;
            self.say("WATCHDOG=1");
        }
    }

    /// Half of the time after which the manager would take it for dead.
    fn watchdog(&self) -> Option<Duration> {
        self.socket.as_ref()?;
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let for_another = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
        let micros = number("WATCHDOG_USEC").filter(|micros| *micros > 1 && !for_another)?;
        Some(Duration::from_micros(micros / 2))
    }

    fn say(&self, message: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!(%error, "the service manager cannot be told: {}", message.lines().next().unwrap_or(""));
        }
    }
}
