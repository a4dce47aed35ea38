//! A durable Consul server.

use std::net::SocketAddr;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::error::ServerError;
use crate::http::get;
use crate::process::{Process, Program, first_line, folder};
use crate::{Servers, free_address};

const ADVICE: &str = "Debian has no package of it: put it on the PATH, or run scripts/consul of the source, which builds it once with Go";

/// A Consul server.
#[derive(Debug)]
pub struct Consul {
    folder: TempDir,
    /// The address for clients.
    pub address: SocketAddr,
    settings: String,
    process: Option<Process>,
}

/// Finds the program on the PATH, or where `scripts/consul` put it.
fn program() -> Result<PathBuf, ServerError> {
    let cache = std::env::var_os("LOCKKEEPER_CACHE").map(PathBuf::from).or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        cache.map(|cache| cache.join("lockkeeper"))
    });
    let entries = cache.and_then(|cache| std::fs::read_dir(cache).ok());
    let mut built: Vec<PathBuf> =
        entries.into_iter().flatten().flatten().map(|entry| entry.path().join("consul")).collect();
    built.retain(|path| path.exists());
    built.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|place| place.join("consul")).find(|path| path.exists());
    on_path.or_else(|| built.pop()).ok_or(ServerError::Missing { program: "Consul", advice: ADVICE })
}

impl Consul {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn start() -> Result<Consul, ServerError> {
        Consul::with("")
    }

    /// Starts a server with additional settings: JSON for the end of the configuration object, with a leading comma.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn with(settings: &str) -> Result<Consul, ServerError> {
        let (folder, address) = (folder()?, free_address(8500));
        let mut consul = Consul { folder, address, settings: settings.to_owned(), process: None };
        consul.restart()?;
        Ok(consul)
    }

    /// Name and version, as the program prints it.
    pub fn version() -> Option<String> {
        let line = first_line(&program().ok()?, &["version"]);
        (!line.is_empty()).then(|| line.replace(" v", " "))
    }
}

impl Servers for Consul {
    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn restart(&mut self) -> Result<(), ServerError> {
        let (host, port) = (self.address.ip(), self.address.port());
        let config = format!(
            r#"{{"server": true, "bootstrap": true, "node_name": "one", "data_dir": "{}", "bind_addr": "{host}",
                "client_addr": "{host}", "disable_update_check": true, "log_level": "WARN",
                "performance": {{"raft_multiplier": 1}}, "limits": {{"http_max_conns_per_client": 10000}},
                "connect": {{"enabled": false}}, "telemetry": {{"prometheus_retention_time": "1h"}},
                "ports": {{"http": {port}, "server": {}, "serf_lan": {}, "serf_wan": -1, "dns": -1, "grpc": -1,
                "grpc_tls": -1}} {}}}"#,
            self.folder.path().join("data").display(),
            port + 1,
            port + 2,
            self.settings,
        );
        let file = self.folder.path().join("config.json");
        std::fs::write(&file, config)
            .map_err(ServerError::io("failed to write the configuration of Consul"))?;
        let arguments = ["agent", "-config-file", &file.to_string_lossy()];
        let mut process = Program::new(program()?, &arguments, self.folder.path().join("log")).start()?;
        let address = self.address;
        // Sessions belong to a node, which must be in the catalogue. With access rules the catalogue is not readable.
        let is_open = self.settings.is_empty();
        process.wait_until(&format!("Consul at {address}"), || {
            get(address, "/v1/status/leader").contains(':')
                && (!is_open || get(address, "/v1/catalog/node/one").contains("\"Address\""))
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Number of requests that it has processed.
    fn requests(&self) -> Option<u64> {
        let text = get(self.address, "/v1/agent/metrics?format=prometheus");
        let counts = text.lines().filter(|line| line.starts_with("consul_api_http_count"));
        let counts = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        (!text.is_empty()).then(|| counts.sum::<f64>() as u64)
    }

    fn request_unit(&self) -> &'static str {
        "HTTP requests, by Consul's metrics"
    }
}
