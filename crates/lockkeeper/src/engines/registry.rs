//! The entries of the registry of engines, [`ENGINES`](super::ENGINES): the single table with the name, URLs, feature and
//! constructor of each engine. URL parsing, the documentation, `lockkeeper doctor`, the lab and the benchmarks use it.

use std::future::Future;
use std::pin::Pin;

use super::{ENGINES, Engine};
use crate::capabilities::Capabilities;
use crate::error::Error;
use crate::options::Options;
use crate::url::EngineUrl;

/// Entry of the registry of engines, which lists all engines of this version, built in or not.
///
/// | URL | engine |
/// |---|---|
/// | `lockkeeper://h1:p,h2:p` | a cell |
/// | `embedded:` | a lock table in this process, in memory, shared by all keepers of the process |
/// | `embedded:/path` | the same, stored in a folder |
/// | `redis://user:password@h:p/db` | one Redis |
/// | `redlock://h1:p,h2:p,h3:p` | Redlock on several independent Redis servers |
/// | `etcd://h1:p,h2:p` | etcd |
/// | `zookeeper://h1:p,h2:p/chroot` | ZooKeeper |
/// | `consul://h:p` | Consul |
/// | `postgres://user:password@h:p/database` | advisory locks of PostgreSQL |
#[derive(Debug)]
#[non_exhaustive]
pub struct EngineInfo {
    /// The name, such as `etcd`, which is also the name of its feature.
    pub name: &'static str,
    /// The beginnings of its URLs, such as `etcd://`; the first is the preferred one.
    pub prefixes: &'static [&'static str],
    /// The default port; `None` if its URLs have no hosts.
    pub default_port: Option<u16>,
    /// An example URL.
    pub example: &'static str,
    /// The form of its URLs after the scheme.
    pub(crate) form: UrlForm,
    pub(super) built: Option<Built>,
}

/// Form of an engine's URL after the scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UrlForm {
    /// `//host:port,host:port`
    Hosts,
    /// A path, or nothing.
    Path,
    /// `//user:password@host:port,host:port/path?key=value`
    Server,
}

/// The part of an entry that exists only if the engine is built in.
#[derive(Debug)]
#[allow(dead_code, reason = "without engines, none is built in")]
pub(super) struct Built {
    pub(super) capabilities: &'static Capabilities,
    pub(super) open: Open,
}

/// Constructor of an engine.
///
/// The future is boxed here, not where it is awaited: otherwise the code of all engines would be generated again in every
/// crate that awaits it.
pub(super) type Open = for<'a> fn(EngineUrl, &'a Options) -> Opening<'a>;
pub(super) type Opening<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Engine>, Error>> + Send + 'a>>;

/// The part of an entry that needs the feature of the engine: `built!("feature", capabilities, open function)`.
macro_rules! built {
    ($feature:literal, $module:ident, |$url:ident, $options:ident| $open:expr) => {{
        #[cfg(feature = $feature)]
        {
            fn open(
                url: crate::url::EngineUrl,
                $options: &crate::options::Options,
            ) -> $crate::engines::registry::Opening<'_> {
                Box::pin(async move {
                    let $url = url;
                    Ok(Box::new($open.await?) as Box<dyn $crate::engines::Engine>)
                })
            }
            Some($crate::engines::registry::Built { capabilities: &$module::CAPABILITIES, open })
        }
        #[cfg(not(feature = $feature))]
        {
            None
        }
    }};
    ($feature:literal, $module:ident) => {
        built!($feature, $module, |url, options| $module::connect(url.server()?, options))
    };
}
pub(super) use built;

impl EngineInfo {
    /// Returns all engines of this version, in the order of the documentation.
    pub fn all() -> &'static [&'static EngineInfo] {
        ENGINES
    }

    /// Returns the engine with this name.
    pub fn by_name(name: &str) -> Option<&'static EngineInfo> {
        ENGINES.iter().copied().find(|engine| engine.name == name)
    }

    /// Returns the engine of a URL, by its scheme.
    pub fn by_url(url: &str) -> Option<&'static EngineInfo> {
        EngineInfo::by_scheme(url.split_once(':')?.0)
    }

    pub(crate) fn by_scheme(scheme: &str) -> Option<&'static EngineInfo> {
        let is_of = |prefix: &&str| prefix.split(':').next() == Some(scheme);
        ENGINES.iter().copied().find(|engine| engine.prefixes.iter().any(is_of))
    }

    /// Returns what the engine supports and guarantees; `None` if it is not built in.
    pub fn capabilities(&self) -> Option<&'static Capabilities> {
        self.built.as_ref().map(|built| built.capabilities)
    }

    /// Builds a URL from these hosts, each as host:port.
    pub fn url(&self, hosts: &[impl AsRef<str>]) -> String {
        let hosts: Vec<&str> = hosts.iter().map(AsRef::as_ref).collect();
        format!("{}{}", self.prefixes[0], hosts.join(","))
    }
}

/// Opens the engine of a URL.
pub(crate) fn open<'a>(url: &'a str, options: &'a Options) -> Opening<'a> {
    Box::pin(async move {
        let (engine, url) = EngineUrl::parse(url)?;
        let Some(built) = &engine.built else {
            return Err(Error::unsupported(format!(
                "the engine {name} is not built in: enable the feature \"{name}\" of the crate lockkeeper",
                name = engine.name
            )));
        };
        (built.open)(url, options).await
    })
}

/// The URLs of all engines, for error messages.
pub(crate) fn examples() -> String {
    ENGINES.iter().map(|engine| engine.example).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_prefixes_are_unique() {
        for &engine in ENGINES {
            assert!(std::ptr::eq(EngineInfo::by_name(engine.name).unwrap(), engine));
            for prefix in engine.prefixes {
                assert!(std::ptr::eq(EngineInfo::by_url(prefix).unwrap(), engine), "{prefix}");
            }
        }
    }

    #[test]
    fn entries_are_consistent() {
        for engine in ENGINES {
            assert!(engine.example.starts_with(engine.prefixes[0]), "{}", engine.example);
            assert_eq!(engine.default_port.is_none(), engine.form == UrlForm::Path, "{}", engine.name);
        }
    }
}
