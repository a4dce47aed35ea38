//! One Consul server that keeps everything on disk.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Process, Site, free_addresses};

pub(crate) struct Consul {
    folder: TempDir,
    pub(crate) address: SocketAddr,
    ports: [u16; 2],
    more: String,
    pub(crate) process: Option<Process>,
}

/// The program, built once into a cache folder.
fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/consul");
        let output = Command::new(script).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "there is no Consul to test with: {text}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

impl Consul {
    /// With more settings: JSON that goes before the closing brace.
    pub(crate) fn with(more: &str) -> Consul {
        let [address, server, serf] = free_addresses();
        let (folder, ports) = (tempfile::tempdir().unwrap(), [server.port(), serf.port()]);
        let mut consul = Consul { folder, address, ports, more: more.to_owned(), process: None };
        consul.restart();
        consul
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.ask("GET", path)
    }

    pub(crate) fn put(&self, path: &str) -> String {
        self.ask("PUT", path)
    }

    fn is_ready(&self) -> bool {
        let leader = self.get("/v1/status/leader").contains("127.0.0.1");
        // With access rules the catalogue is closed to us.
        leader && (!self.more.is_empty() || self.get("/v1/catalog/node/one").contains("127.0.0.1"))
    }

    fn ask(&self, method: &str, path: &str) -> String {
        let url = format!("http://{}{path}", self.address);
        let output = Command::new("curl").args(["-s", "-m", "10", "-X", method, &url]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Site for Consul {
    /// Consul allows no shorter one.
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
        self.process = None;
    }

    fn restart(&mut self) {
        let [server, serf] = self.ports;
        let config = format!(
            r#"{{"server": true, "bootstrap": true, "node_name": "one", "data_dir": "{}", "bind_addr": "127.0.0.1",
                "client_addr": "127.0.0.1", "disable_update_check": true, "log_level": "WARN",
                "performance": {{"raft_multiplier": 1}}, "limits": {{"http_max_conns_per_client": 10000}},
                "connect": {{"enabled": false}},
                "ports": {{"http": {}, "server": {server}, "serf_lan": {serf}, "serf_wan": -1, "dns": -1, "grpc": -1,
                "grpc_tls": -1}} {}}}"#,
            self.folder.path().join("data").display(),
            self.address.port(),
            self.more,
        );
        let file = self.folder.path().join("config.json");
        std::fs::write(&file, config).unwrap();
        let log = self.folder.path().join("log");
        let arguments = ["agent", "-config-file", &file.to_string_lossy()];
        let process = Process::start(program(), &arguments, &log).until_it_listens(self.address, &log);
        self.process = Some(process);
        let until = Instant::now() + Duration::from_secs(60);
        // Sessions hang on a node: it must be in the catalogue.
        while !self.is_ready() {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(&log).unwrap_or_default());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sessions, and keys that are locked: the keys of locks stay, with their counters.
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
