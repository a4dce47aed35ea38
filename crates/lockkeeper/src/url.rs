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
    /// A server that others made; the engine is named by its scheme.
    Server(ServerUrl),
}

/// Servers that others made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Redis,
    Redlock,
    Etcd,
    Zookeeper,
    Consul,
    Postgres,
}

impl ServerKind {
    fn default_port(self) -> u16 {
        match self {
            ServerKind::Redis | ServerKind::Redlock => 6379,
            ServerKind::Etcd => 2379,
            ServerKind::Zookeeper => 2181,
            ServerKind::Consul => 8500,
            ServerKind::Postgres => 5432,
        }
    }
}

/// `scheme://user:password@host:port,host:port/path?key=value&key=value`, with all parts but the hosts optional.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    pub(crate) kind: ServerKind,
    /// As it was given: rediss and redis are the same kind.
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Each as host:port.
    pub(crate) hosts: Vec<String>,
    /// Without the slash at its begin; empty if there is none.
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
}

/// Never shows the password: URLs get into logs.
impl std::fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}/{}", self.scheme, self.hosts.join(","), self.path)
    }
}

#[cfg_attr(not(feature = "_servers"), allow(dead_code))]
impl ServerUrl {
    /// An option behind the question mark.
    pub(crate) fn option(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Nothing is ignored in silence: an option that the engine does not know is an error.
    pub(crate) fn allow_options(&self, known: &[&str]) -> Result<(), Error> {
        match self.query.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) if known.is_empty() => {
                Err(Error::invalid(format!("{}:// has no option \"{key}\": leave it out", self.scheme)))
            }
            Some((key, _)) => Err(Error::invalid(format!(
                "{}:// has no option \"{key}\": there are {}",
                self.scheme,
                known.join(", ")
            ))),
        }
    }

    /// Where it is, for texts; without user and password.
    pub(crate) fn address(&self) -> String {
        self.hosts.join(",")
    }
}

impl EngineUrl {
    pub(crate) fn parse(url: &str) -> Result<EngineUrl, Error> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::invalid(format!("\"{url}\" is no engine URL: use one of {SCHEMES}")));
        };
        let kind = match scheme {
            "lockkeeper" => return hosts(url, rest).map(EngineUrl::Cell),
            "embedded" => {
                return Ok(EngineUrl::Embedded((!rest.is_empty()).then(|| PathBuf::from(rest))));
            }
            "redis" | "rediss" => ServerKind::Redis,
            "redlock" => ServerKind::Redlock,
            "etcd" => ServerKind::Etcd,
            "zookeeper" => ServerKind::Zookeeper,
            "consul" => ServerKind::Consul,
            "postgres" | "postgresql" => ServerKind::Postgres,
            other => {
                return Err(Error::invalid(format!("there is no engine \"{other}\": use one of {SCHEMES}")));
            }
        };
        server(kind, scheme, rest).map(EngineUrl::Server)
    }
}

fn server(kind: ServerKind, scheme: &str, rest: &str) -> Result<ServerUrl, Error> {
    // The text is not shown: there may be a password in it.
    let wrong = |why: &str| {
        Error::invalid(format!("the URL {why}: write {scheme}://user:password@host:port/path?option=value"))
    };
    let rest = rest.strip_prefix("//").ok_or_else(|| wrong("has no //"))?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, list) = match authority.rsplit_once('@') {
        Some((login, list)) => (Some(login), list),
        None => (None, authority),
    };
    let decoded = |text: &str| percent_decoded(text).ok_or_else(|| wrong("has a broken % in it"));
    let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
        Some((user, password)) => (Some(decoded(user)?), Some(decoded(password)?)),
        None => (None, None),
    };
    let hosts = list
        .split(',')
        .map(|host| match host.rsplit_once(':') {
            _ if host.is_empty() || host.contains(char::is_whitespace) => Err(wrong("names an empty host")),
            Some((name, port)) if !port.ends_with(']') => match port.parse::<u16>() {
                Ok(_) if !name.is_empty() => Ok(host.to_owned()),
                _ => Err(wrong("names a port that is no number below 65536")),
            },
            _ => Ok(format!("{host}:{}", kind.default_port())),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let query = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded(key)?, decoded(value)?))
        })
        .collect::<Result<Vec<_>, Error>>()?;
    Ok(ServerUrl {
        kind,
        scheme: scheme.to_owned(),
        user: user.filter(|user| !user.is_empty()),
        password: password.filter(|password| !password.is_empty()),
        hosts,
        path: decoded(path)?,
        query,
    })
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let high = char::from(rest.next()?).to_digit(16)?;
                let low = char::from(rest.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
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

    fn parsed(url: &str) -> ServerUrl {
        match EngineUrl::parse(url).unwrap() {
            EngineUrl::Server(server) => server,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn servers_of_others_have_a_port_of_their_own() {
        for (url, kind, host) in [
            ("redis://h", ServerKind::Redis, "h:6379"),
            ("rediss://h:1", ServerKind::Redis, "h:1"),
            ("redlock://h", ServerKind::Redlock, "h:6379"),
            ("etcd://h", ServerKind::Etcd, "h:2379"),
            ("zookeeper://[::1]", ServerKind::Zookeeper, "[::1]:2181"),
            ("consul://h", ServerKind::Consul, "h:8500"),
            ("postgresql://h", ServerKind::Postgres, "h:5432"),
        ] {
            let server = parsed(url);
            assert_eq!((server.kind, server.hosts.as_slice()), (kind, &[host.to_owned()][..]), "{url}");
        }
    }

    #[test]
    fn every_part_of_a_servers_url_is_read() {
        let server = parsed("postgres://me:p%40ss%2F@a:1,b/db%20x?sslmode=require&level=transaction");
        assert_eq!((server.user.as_deref(), server.password.as_deref()), (Some("me"), Some("p@ss/")));
        assert_eq!((server.address().as_str(), server.path.as_str()), ("a:1,b:5432", "db x"));
        assert_eq!(server.option("level"), Some("transaction"));
        assert_eq!(server.allow_options(&["level"]).unwrap_err().code(), "invalid");
        assert!(server.allow_options(&["level", "sslmode"]).is_ok());
        let password_only = parsed("redis://:secret@h/3");
        assert_eq!((password_only.user, password_only.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn a_password_is_never_shown() {
        assert!(!format!("{:?}", parsed("redis://me:secret@h")).contains("secret"));
        let error = EngineUrl::parse("redis://me:secret@h:x").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
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
            "redis:h",
            "redis://",
            "etcd://a,,b",
            "consul://a:b",
            "postgres://h/%zz",
        ] {
            assert_eq!(EngineUrl::parse(url).unwrap_err().code(), "invalid", "{url}");
        }
    }
}
