//! Notifies systemd (`Type=notify`) when the service is ready, stopping or alive.
//!
//! Does nothing without `NOTIFY_SOCKET`. See sd_notify(3).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The socket of the service manager, if there is one.
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
            // A manager that does not read must not block the node.
            socket.set_nonblocking(true)?;
            Ok((socket, address))
        });
        match socket {
            Ok(socket) => Notify { socket: Some(socket) },
            Err(error) => {
                tracing::warn!(?name, %error, "failed to open NOTIFY_SOCKET: the service manager is not notified");
                Notify { socket: None }
            }
        }
    }

    /// Reports that the node leads or follows.
    pub(crate) fn ready(&self, address: &str) {
        self.send(&format!("READY=1\nSTATUS=serving on {address}"));
    }

    /// Reports that the node is stopping.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Sends watchdog messages if the manager expects them. Runs on the main thread of the node, so that they stop when
    /// that thread hangs.
    pub(crate) async fn send_watchdog(&self) {
        let Some(every) = self.watchdog() else { return std::future::pending().await };
        let mut ticks = tokio::time::interval(every);
        loop {
            ticks.tick().await;
            self.send("WATCHDOG=1");
        }
    }

    /// Half of the watchdog interval.
    fn watchdog(&self) -> Option<Duration> {
        self.socket.as_ref()?;
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let for_another = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
        let micros = number("WATCHDOG_USEC").filter(|micros| *micros > 1 && !for_another)?;
        Some(Duration::from_micros(micros / 2))
    }

    fn send(&self, message: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!(%error, "failed to notify the service manager: {}", message.lines().next().unwrap_or(""));
        }
    }
}
