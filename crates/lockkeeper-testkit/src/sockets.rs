//! The TCP connections of this process, from /proc.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// Number of open connections of this process to an address; `None` if /proc cannot be read.
pub fn connections_to(address: SocketAddr) -> Option<usize> {
    let ours = own_sockets()?;
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let wanted = table_entry(address)?;
    let matching = table.lines().skip(1).filter(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(2) == Some(&wanted.as_str()) && words.get(9).is_some_and(|inode| ours.contains(*inode))
    });
    Some(matching.count())
}

fn own_sockets() -> Option<HashSet<String>> {
    let files = std::fs::read_dir("/proc/self/fd").ok()?;
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let inodes =
        links.filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()));
    Some(inodes.collect())
}

/// The address as /proc/net/tcp prints it: the bytes of the host in native order.
fn table_entry(address: SocketAddr) -> Option<String> {
    let IpAddr::V4(host) = address.ip() else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(host.octets()), address.port()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::connections_to;

    #[test]
    fn connections_are_counted_while_they_are_open() -> std::io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        assert_eq!(connections_to(address), Some(0));
        let two = (TcpStream::connect(address)?, TcpStream::connect(address)?);
        assert_eq!(connections_to(address), Some(2));
        drop(two);
        assert_eq!(connections_to(address), Some(0));
        Ok(())
    }
}
