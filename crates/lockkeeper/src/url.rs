//! Parses the URLs of engines.

use std::path::PathBuf;

use crate::engines::registry::{self, EngineInfo, UrlForm};
use crate::error::Error;

/// A parsed engine URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EngineUrl {
    /// The hosts, each as host:port.
    Hosts(Vec<String>),
    /// The folder, if there is one.
    Path(Option<PathBuf>),
    Server(ServerUrl),
}

/// `scheme://user:password@host:port,host:port/path?key=value&key=value`, with all parts but the hosts optional.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    /// As written: `rediss` and `redis` are the same engine.
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Each as host:port.
    pub(crate) hosts: Vec<String>,
    /// Without the leading slash; empty if there is none.
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
}

/// Hides the password: URLs get into logs.
impl std::fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}/{}", self.scheme, self.hosts.join(","), self.path)
    }
}

#[cfg_attr(not(feature = "_servers"), allow(dead_code))]
impl ServerUrl {
    /// The value of a query option.
    pub(crate) fn option(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Rejects options that the engine does not know.
    pub(crate) fn allow_options(&self, known: &[&str]) -> Result<(), Error> {
        match self.query.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) if known.is_empty() => {
                Err(Error::invalid(format!("{}:// has no option \"{key}\": leave it out", self.scheme)))
            }
            Some((key, _)) => Err(Error::invalid(format!(
                "{}:// has no option \"{key}\": use {}",
                self.scheme,
                known.join(", ")
            ))),
        }
    }

    /// The hosts, without user and password, for messages.
    pub(crate) fn address(&self) -> String {
        self.hosts.join(",")
    }
}

impl EngineUrl {
    /// Parses a URL into its engine and its parts.
    pub(crate) fn parse(url: &str) -> Result<(&'static EngineInfo, EngineUrl), Error> {
        let Some((scheme, rest)) = url.split_once(':') else {
            let examples = registry::examples();
            return Err(Error::invalid(format!("\"{url}\" is not an engine URL: use one of {examples}")));
        };
        let Some(engine) = EngineInfo::by_scheme(scheme) else {
            let examples = registry::examples();
            return Err(Error::invalid(format!("there is no engine \"{scheme}\": use one of {examples}")));
        };
        let port = engine.default_port.unwrap_or_default();
        let url = match engine.form {
            UrlForm::Hosts => EngineUrl::Hosts(hosts(url, scheme, port, rest)?),
            UrlForm::Path => EngineUrl::Path((!rest.is_empty()).then(|| PathBuf::from(rest))),
            UrlForm::Server => EngineUrl::Server(server(scheme, port, rest)?),
        };
        Ok((engine, url))
    }
}

/// Each engine takes the form that its registry entry names.
#[allow(dead_code, reason = "without its engines, a form is unused")]
impl EngineUrl {
    pub(crate) fn hosts(self) -> Result<Vec<String>, Error> {
        if let EngineUrl::Hosts(hosts) = self { Ok(hosts) } else { Err(form_mismatch()) }
    }

    pub(crate) fn path(self) -> Result<Option<PathBuf>, Error> {
        if let EngineUrl::Path(path) = self { Ok(path) } else { Err(form_mismatch()) }
    }

    pub(crate) fn server(self) -> Result<ServerUrl, Error> {
        if let EngineUrl::Server(url) = self { Ok(url) } else { Err(form_mismatch()) }
    }
}

fn form_mismatch() -> Error {
    Error::Fatal(
        "the registry has another form of URL than the engine expects: please report this bug".into(),
    )
}

fn server(scheme: &str, default_port: u16, rest: &str) -> Result<ServerUrl, Error> {
    // The message does not quote the URL: it may contain a password.
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
    let decoded = |text: &str| percent_decoded(text).ok_or_else(|| wrong("has an invalid percent-encoding"));
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
                _ => Err(wrong("names a port that is not a number below 65536")),
            },
            _ => Ok(format!("{host}:{}", default_port)),
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

fn hosts(url: &str, scheme: &str, default_port: u16, rest: &str) -> Result<Vec<String>, Error> {
    let wrong = |why: &str| {
        Error::invalid(format!(
            "\"{url}\" {why}: write {scheme}://host:port, or several with commas, such as \
             {scheme}://10.0.0.1:{default_port},10.0.0.2:{default_port}"
        ))
    };
    let rest = rest.strip_prefix("//").ok_or_else(|| wrong("has no //"))?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#', '@']) || rest.contains(char::is_whitespace) {
        return Err(wrong("contains more than hosts and ports"));
    }
    rest.split(',')
        .map(|host| match host {
            "" => Err(wrong("names an empty host")),
            // An IPv6 address is in brackets, followed by the port.
            host => match host.rsplit_once(':') {
                Some((_, port)) if !port.ends_with(']') => match port.parse::<u16>() {
                    Ok(_) => Ok(host.to_owned()),
                    Err(_) => Err(wrong("names a port that is not a number below 65536")),
                },
                _ => Ok(format!("{host}:{default_port}")),
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts_of(url: &str) -> (&'static str, Vec<String>) {
        let (engine, url) = EngineUrl::parse(url).unwrap();
        (engine.name, url.hosts().unwrap())
    }

    fn path_of(url: &str) -> (&'static str, Option<PathBuf>) {
        let (engine, url) = EngineUrl::parse(url).unwrap();
        (engine.name, url.path().unwrap())
    }

    #[test]
    fn cell_and_embedded_urls_are_parsed() {
        let cell = |hosts: &[&str]| ("cell", hosts.iter().map(|&host| host.to_owned()).collect());
        assert_eq!(hosts_of("lockkeeper://a:1,b:2"), cell(&["a:1", "b:2"]));
        assert_eq!(hosts_of("lockkeeper://a,[::1],[::1]:9/"), cell(&["a:7420", "[::1]:7420", "[::1]:9"]));
        assert_eq!(path_of("embedded:"), ("embedded", None));
        assert_eq!(path_of("embedded:/var/x"), ("embedded", Some("/var/x".into())));
    }

    #[test]
    fn unknown_scheme_error_lists_the_known_ones() {
        let error = EngineUrl::parse("mysql://x").unwrap_err();
        assert_eq!(error.code(), "invalid");
        for scheme in ["lockkeeper://", "embedded:", "redis://", "redlock://", "etcd://", "postgres://"] {
            assert!(error.to_string().contains(scheme), "{error}");
        }
        assert_eq!(EngineUrl::parse("127.0.0.1").unwrap_err().code(), "invalid");
    }

    fn parsed(url: &str) -> ServerUrl {
        EngineUrl::parse(url).unwrap().1.server().unwrap()
    }

    #[test]
    fn each_engine_has_a_default_port() {
        for (url, name, host) in [
            ("redis://h", "redis", "h:6379"),
            ("rediss://h:1", "redis", "h:1"),
            ("redlock://h", "redlock", "h:6379"),
            ("etcd://h", "etcd", "h:2379"),
            ("zookeeper://[::1]", "zookeeper", "[::1]:2181"),
            ("consul://h", "consul", "h:8500"),
            ("postgresql://h", "postgres", "h:5432"),
        ] {
            assert_eq!(EngineUrl::parse(url).unwrap().0.name, name, "{url}");
            assert_eq!(parsed(url).hosts, [host], "{url}");
        }
    }

    #[test]
    fn every_part_of_a_server_url_is_parsed() {
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
    fn password_is_not_in_errors_or_debug_output() {
        assert!(!format!("{:?}", parsed("redis://me:secret@h")).contains("secret"));
        let error = EngineUrl::parse("redis://me:secret@h:x").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn malformed_urls_are_rejected() {
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
