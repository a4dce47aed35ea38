//! The names by which callers may address a node.
//!
//! A web page can make its own name resolve to this node (DNS rebinding), and a browser then takes the node for that
//! page's own site. The `Host` header still carries the page's name, so a node that does not authenticate its callers
//! serves known names only.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

/// Allows every name in the setting.
const ANY: &str = "*";

/// The names by which callers may address a node, besides IP addresses and the names of the loopback interface.
#[derive(Debug, Clone, Default)]
pub struct AllowedHosts {
    /// Callers are authenticated, or the setting allows every name.
    any: bool,
    names: BTreeSet<String>,
}

impl AllowedHosts {
    /// The names of the setting `--allowed-hosts`. Where callers are authenticated every name is allowed: a web page
    /// has nothing to authenticate with.
    pub(crate) fn new(setting: &[String], callers_authenticated: bool) -> AllowedHosts {
        let any = callers_authenticated || setting.iter().any(|name| name == ANY);
        AllowedHosts { any, names: setting.iter().map(|name| normalize(host_of(name))).collect() }
    }

    /// Allows the hosts of these `host:port` addresses.
    pub(crate) fn add_addresses<'a>(&mut self, addresses: impl IntoIterator<Item = &'a String>) {
        self.names.extend(addresses.into_iter().map(|address| normalize(host_of(address))));
    }

    /// Whether a request may name this host, given as `host` or `host:port`.
    pub(crate) fn allow(&self, authority: &str) -> bool {
        let host = normalize(host_of(authority));
        self.any || is_address(&host) || is_loopback_name(&host) || self.names.contains(&host)
    }
}

/// The host of `host`, `host:port` or `[v6]:port`.
pub(crate) fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        // The colon may be inside a bare or bracketed IPv6 address.
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !is_bare_v6(authority) => {
            host
        }
        _ => authority,
    }
}

fn is_bare_v6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

/// Lower case, without the dot that ends an absolute DNS name.
pub(crate) fn normalize(host: &str) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    host.to_ascii_lowercase()
}

/// An IP address is not resolved, so DNS rebinding cannot use it.
fn is_address(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok()
}

/// RFC 6761: these names always resolve to the loopback interface.
fn is_loopback_name(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_loopback_names_and_known_names_are_allowed() {
        let mut hosts = AllowedHosts::new(&["locks.example".to_owned(), "b.example:7420".to_owned()], false);
        hosts.add_addresses(&["node1:7420".to_owned(), "[::1]:7420".to_owned()]);
        for allowed in [
            "127.0.0.1",
            "127.0.0.1:7420",
            "10.0.0.7:80",
            "[::1]:7420",
            "[fe80::1]",
            "::1",
            "localhost",
            "LOCALHOST:1",
            "a.localhost",
            "localhost.",
            "locks.example",
            "Locks.Example.:7420",
            "b.example",
            "node1",
            "node1:99",
        ] {
            assert!(hosts.allow(allowed), "{allowed}");
        }
        for other in [
            "evil.example",
            "evil.example:7420",
            "locks.example.evil.example",
            "node2:7420",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "",
            ":7420",
            "node1:x",
            "127.0.0.1:7420:1",
        ] {
            assert!(!hosts.allow(other), "{other}");
        }
    }

    #[test]
    fn every_name_is_allowed_where_callers_are_authenticated_or_the_setting_says_so() {
        assert!(AllowedHosts::new(&[], true).allow("evil.example"));
        assert!(AllowedHosts::new(&["*".to_owned()], false).allow("evil.example"));
        assert!(!AllowedHosts::new(&[], false).allow("evil.example"));
    }
}
