//! One durable Consul server.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

use lockkeeper_testkit::consul::Consul as Server;
use lockkeeper_testkit::{Servers as _, connections_to, http};

use super::Site;

pub(crate) struct Consul {
    pub(crate) address: SocketAddr,
    server: Server,
}

/// Builds Consul once, into a cache folder.
fn build() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/consul");
        let output = Command::new(script).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "failed to build Consul: {text}");
    });
}

impl Consul {
    /// Starts Consul with additional settings: JSON that is inserted before the closing brace.
    pub(crate) fn with(settings: &str) -> Consul {
        build();
        let server = Server::with(settings).unwrap();
        Consul { address: server.address, server }
    }

    pub(crate) fn get(&self, path: &str) -> String {
        http::get(self.address, path)
    }

    pub(crate) fn put(&self, path: &str) -> String {
        http::request(self.address, "PUT", path, "")
    }
}

impl Site for Consul {
    const FINDINGS: &'static [&'static str] = &["single-node"];

    /// The shortest that Consul allows.
    const TTL: Duration = Duration::from_secs(10);

    fn start() -> Consul {
        Consul::with("")
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("consul://{}", addresses[0])
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart().unwrap();
    }

    fn connections(&self) -> Option<usize> {
        connections_to(self.address)
    }

    /// Sessions and locked keys. The keys of free locks are kept, because they hold the token counters.
    fn left_behind(&self) -> Vec<String> {
        let sessions = self.get("/v1/session/list");
        let keys = self.get("/v1/kv/?recurse");
        let sessions = sessions
            .split("\"ID\":\"")
            .skip(1)
            .map(|rest| format!("session {}", rest.split('"').next().unwrap_or("")));
        let locked = keys
            .split("\"Session\":\"")
            .skip(1)
            .map(|rest| format!("locked by {}", rest.split('"').next().unwrap_or("")));
        sessions.chain(locked).collect()
    }
}
