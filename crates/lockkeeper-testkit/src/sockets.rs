//! The connections that this process has, as the kernel tells them.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// How many open connections this process has to an address; `None` if the kernel does not tell.
pub fn connections_to(address: SocketAddr) -> Option<usize> {
    let ours = inodes_of_ours()?;
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let wanted = as_in_table(address)?;
    let to_it = table.lines().skip(1).filter(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(2) == Some(&wanted.as_str()) && words.get(9).is_some_and(|inode| ours.contains(*inode))
    });
    Some(to_it.count())
}

fn inodes_of_ours() -> Option<HashSet<String>> {
    let files = std::fs::read_dir("/proc/self/fd").ok()?;
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let inodes =
        links.filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()));
    Some(inodes.collect())
}

/// The bytes of the host from the last to the first, as the kernel of a little-endian machine prints them.
fn as_in_table(address: SocketAddr) -> Option<String> {
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
