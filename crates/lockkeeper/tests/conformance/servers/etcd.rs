//! One etcd member that keeps everything on disk.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Process, Site, find_program, free_addresses};

pub(crate) struct Etcd {
    folder: TempDir,
    pub(crate) address: SocketAddr,
    peers: SocketAddr,
    pub(crate) process: Option<Process>,
}

impl Etcd {
    /// The JSON gateway of etcd: what our client is not needed for is asked without it.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        let output = Command::new("curl")
            .args(["-s", "-m", "10", "-d", body, &format!("http://{}{path}", self.address)])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Site for Etcd {
    fn start() -> Etcd {
        let (folder, [address, peers]) = (tempfile::tempdir().unwrap(), free_addresses());
        let mut etcd = Etcd { folder, address, peers, process: None };
        etcd.restart();
        etcd
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("etcd://{}", addresses[0])
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn restart(&mut self) {
        let data = self.folder.path().join("data").to_string_lossy().into_owned();
        let (client, peer) = (format!("http://{}", self.address), format!("http://{}", self.peers));
        let cluster = format!("one={peer}");
        let arguments = [
            "--name",
            "one",
            "--data-dir",
            &data,
            "--log-level",
            "warn",
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &cluster,
            // Leases of one second instead of two.
            "--heartbeat-interval",
            "50",
            "--election-timeout",
            "500",
        ];
        let log = self.folder.path().join("log");
        let program = find_program("etcd", &[]);
        let process = Process::start(&program, &arguments, &log).until_it_listens(self.address, &log);
        self.process = Some(process);
        let until = Instant::now() + Duration::from_secs(30);
        while !self.post("/v3/kv/range", r#"{"key": "YQ=="}"#).contains("revision") {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(&log).unwrap_or_default());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Keys and leases.
    fn left_behind(&self) -> Vec<String> {
        let keys = self.post("/v3/kv/range", r#"{"key": "AA==", "range_end": "AA==", "keys_only": true}"#);
        let leases = self.post("/v3/lease/leases", "{}");
        let keys =
            keys.split("\"key\":\"").skip(1).map(|rest| rest.split('"').next().unwrap_or("").to_owned());
        let leases = leases
            .split("\"ID\":\"")
            .skip(1)
            .map(|rest| format!("lease {}", rest.split('"').next().unwrap_or("")));
        keys.chain(leases).collect()
    }
}
