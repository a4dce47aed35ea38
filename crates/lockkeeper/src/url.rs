//! Which engine an URL means.

use std::path::PathBuf;

use crate::error::Error;

/// The port of a cell if the URL names none.
pub(crate) const DEFAULT_PORT: u16 = 7420;

/// The schemes that exist, in the words of error messages.
const SCHEMES: &str = "lockkeeper://host:port,... (a cell), embedded: or embedded:/path (in this process), redis://, \
                       redlock://, etcd://, zookeeper://, consul://, postgres://";

/// An engine and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EngineUrl {
    /// The nodes of a cell, each as host:port.
    Cell(Vec<String>),
    /// In this process; in a folder or in memory.
    Embedded(Option<PathBuf>),
}

impl EngineUrl {
    pub(crate) fn parse(url: &str) -> Result<EngineUrl, Error> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::invalid(format!("\"{url}\" is no engine URL: use one of {SCHEMES}")));
        };
        match scheme {
            "lockkeeper" => hosts(url, rest).map(EngineUrl::Cell),
            "embedded" => Ok(EngineUrl::Embedded((!rest.is_empty()).then(|| PathBuf::from(rest)))),
            "redis" | "rediss" | "redlock" | "etcd" | "zookeeper" | "consul" | "postgres" | "postgresql" => {
                Err(Error::unsupported(format!(
                    "the engine {scheme} is not built into this version: use lockkeeper:// or embedded:"
                )))
            }
            other => Err(Error::invalid(format!("there is no engine \"{other}\": use one of {SCHEMES}"))),
        }
    }
}

fn hosts(url: &str, rest: &str) -> Result<Vec<String>, Error> {
    let wrong = |why: &str| {
        Error::invalid(format!(
            "\"{url}\" {why}: write lockkeeper://host:port, or several with commas, such as \
             lockkeeper://10.0.0.1:7420,10.0.0.2:7420"
        ))
    };
    let rest = rest.strip_prefix("//").ok_or_else(|| wrong("has no //"))?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#', '@']) || rest.contains(char::is_whitespace) {
        return Err(wrong("has more than hosts and ports in it"));
    }
    rest.split(',')
        .map(|host| match host {
            "" => Err(wrong("names an empty host")),
            // A bare IPv6 address is in brackets; what follows them is the port.
            host => match host.rsplit_once(':') {
                Some((_, port)) if !port.ends_with(']') => match port.parse::<u16>() {
                    Ok(_) => Ok(host.to_owned()),
                    Err(_) => Err(wrong("names a port that is no number below 65536")),
                },
                _ => Ok(format!("{host}:{DEFAULT_PORT}")),
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(hosts: &[&str]) -> EngineUrl {
        EngineUrl::Cell(hosts.iter().map(|&host| host.to_owned()).collect())
    }

    #[test]
    fn urls_of_the_contract() {
        assert_eq!(EngineUrl::parse("lockkeeper://a:1,b:2").unwrap(), cell(&["a:1", "b:2"]));
        assert_eq!(
            EngineUrl::parse("lockkeeper://a,[::1],[::1]:9/").unwrap(),
            cell(&["a:7420", "[::1]:7420", "[::1]:9"])
        );
        assert_eq!(EngineUrl::parse("embedded:").unwrap(), EngineUrl::Embedded(None));
        assert_eq!(EngineUrl::parse("embedded:/var/x").unwrap(), EngineUrl::Embedded(Some("/var/x".into())));
    }

    #[test]
    fn an_unknown_scheme_names_those_that_exist() {
        let error = EngineUrl::parse("mysql://x").unwrap_err();
        assert_eq!(error.code(), "invalid");
        for scheme in ["lockkeeper://", "embedded:", "redis://", "redlock://", "etcd://", "postgres://"] {
            assert!(error.to_string().contains(scheme), "{error}");
        }
        assert_eq!(EngineUrl::parse("127.0.0.1").unwrap_err().code(), "invalid");
    }

    #[test]
    fn engines_to_come_are_unsupported() {
        for url in
            ["redis://h", "redlock://h", "etcd://h", "zookeeper://h/x", "consul://h", "postgres://h/db"]
        {
            let error = EngineUrl::parse(url).unwrap_err();
            assert_eq!(error.code(), "unsupported", "{url}: {error}");
        }
    }

    #[test]
    fn broken_hosts_are_told() {
        for url in [
            "lockkeeper:h:1",
            "lockkeeper://",
            "lockkeeper://a:x",
            "lockkeeper://a:70000",
            "lockkeeper://a,,b",
            "lockkeeper://u@h:1",
        ] {
            assert_eq!(EngineUrl::parse(url).unwrap_err().code(), "invalid", "{url}");
        }
    }
}
