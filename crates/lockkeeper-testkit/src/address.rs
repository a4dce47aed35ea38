//! Unused loopback addresses.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns an address with a loopback host of its own. While the server is down, no outgoing connection of another process
/// can take its port. The host is derived from our process id, so that concurrent test runs use different hosts.
pub fn free_address(port: u16) -> SocketAddr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id() % 30_000;
    let octets = [127, 130 + (process / 250) as u8, (process % 250) as u8, 1 + (count % 250) as u8];
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(octets), port + (count / 250) as u16 * 10))
}
