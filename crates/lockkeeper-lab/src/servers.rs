//! The servers of one engine, with the URL by which clients reach them.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use lockkeeper::EngineInfo;

/// The servers of one engine.
pub(crate) struct Servers {
    /// The engine's name in the registry, or the scheme of a control without an engine.
    engine: &'static str,
    servers: Box<dyn lockkeeper_testkit::Servers>,
}

impl Servers {
    pub(crate) fn new(engine: &'static str, servers: impl lockkeeper_testkit::Servers) -> Servers {
        Servers::of(engine, Box::new(servers))
    }

    pub(crate) fn of(engine: &'static str, servers: Box<dyn lockkeeper_testkit::Servers>) -> Servers {
        Servers { engine, servers }
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(&self.addresses())
    }

    /// The URL of the servers behind proxies at these addresses.
    pub(crate) fn url_at(&self, addresses: &[SocketAddr]) -> String {
        let (before, after) = self.servers.url_parts();
        let hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let hosts = [format!("{before}{}{after}", hosts.join(","))];
        match EngineInfo::by_name(self.engine) {
            Some(engine) => engine.url(&hosts),
            None => format!("{}://{}", self.engine, hosts[0]),
        }
    }

    /// Returns the servers as those of a specific program, if they are that.
    pub(crate) fn downcast<T: lockkeeper_testkit::Servers>(&self) -> Option<&T> {
        (&*self.servers as &dyn std::any::Any).downcast_ref()
    }
}

impl Deref for Servers {
    type Target = dyn lockkeeper_testkit::Servers;

    fn deref(&self) -> &Self::Target {
        &*self.servers
    }
}

impl DerefMut for Servers {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.servers
    }
}
