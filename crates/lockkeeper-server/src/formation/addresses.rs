//! The addresses at which others reach this node.

use std::net::SocketAddr;

use crate::raft::types::Member;

/// Returns the addresses of this node, from its entry in `--cell` and its listen addresses. With a separate port for
/// the members, the entry may name either of the two ports.
pub(crate) fn own(entry: Option<&str>, listens: Option<SocketAddr>, peers: Option<SocketAddr>) -> Member {
    let text = |address: Option<SocketAddr>| address.map(|a| a.to_string()).unwrap_or_default();
    let (client, peer) = match (entry, peers) {
        (None, None) => (text(listens), text(listens)),
        (None, Some(_)) => (text(listens), text(peers)),
        (Some(entry), None) => (entry.to_owned(), entry.to_owned()),
        (Some(entry), Some(peers)) => {
            let (host, port) = entry.rsplit_once(':').unwrap_or((entry, ""));
            if port == peers.port().to_string() {
                let client = listens.map(|address| format!("{host}:{}", address.port()));
                (client.unwrap_or_default(), entry.to_owned())
            } else {
                (entry.to_owned(), format!("{host}:{}", peers.port()))
            }
        }
    };
    Member { client, peer, folder: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(entry: Option<&str>, listens: &str, peers: Option<&str>) -> (String, String) {
        let parse = |text: &str| text.parse().expect("an address");
        let member = own(entry, Some(parse(listens)), peers.map(parse));
        (member.client, member.peer)
    }

    #[test]
    fn one_port_serves_both() {
        let one = addresses(Some("db1:7420"), "0.0.0.0:7420", None);
        assert_eq!(one, ("db1:7420".to_owned(), "db1:7420".to_owned()));
        let alone = addresses(None, "127.0.0.1:7420", None);
        assert_eq!(alone, ("127.0.0.1:7420".to_owned(), "127.0.0.1:7420".to_owned()));
    }

    #[test]
    fn the_entry_may_name_the_peer_port_or_the_client_port() {
        let expected = ("db1:7420".to_owned(), "db1:7421".to_owned());
        assert_eq!(addresses(Some("db1:7421"), "0.0.0.0:7420", Some("0.0.0.0:7421")), expected);
        assert_eq!(addresses(Some("db1:7420"), "0.0.0.0:7420", Some("0.0.0.0:7421")), expected);
    }
}
