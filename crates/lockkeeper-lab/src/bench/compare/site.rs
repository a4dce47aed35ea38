//! The servers of a target, in a temporary folder and on free ports.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkeeper::{Keeper, Unfenced};
use tempfile::TempDir;

use super::super::contender::{BenchError, Contender};
use super::bare_etcd::BareEtcd;
use super::bare_redis::CrateRedis;
use super::process::{Process, command_as, find, free_ports};
use super::target::Target;

/// A busy machine takes its time to start a JVM three times.
const START_WITHIN: Duration = Duration::from_secs(90);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const MEMBERS: usize = 3;
const ZOOKEEPER: &str = "/usr/share/java/zookeeper.jar";

/// What is running.
pub(super) struct Site {
    pub(super) target: Target,
    pub(super) url: String,
    /// Where clients connect to, one for each process.
    pub(super) addresses: Vec<String>,
    pub(super) processes: Vec<Process>,
    shared: Option<Keeper<Unfenced>>,
    // Dropped last: the processes work in it.
    folder: TempDir,
}

fn failed(error: std::io::Error) -> BenchError {
    BenchError::Server(format!("the folder of a server cannot be prepared: {error}"))
}

fn words<W: Into<OsString>>(words: impl IntoIterator<Item = W>) -> Vec<OsString> {
    words.into_iter().map(Into::into).collect()
}

impl Site {
    /// Starts the servers of a target. `binary` is this program.
    pub(super) async fn start(target: Target, binary: &Path, scratch: &Path) -> Result<Site, BenchError> {
        let folder =
            tempfile::Builder::new().prefix("lockkeeper-compare-").tempdir_in(scratch).map_err(failed)?;
        let mut site = Site {
            target,
            url: String::new(),
            addresses: Vec::new(),
            processes: Vec::new(),
            shared: None,
            folder,
        };
        match target {
            Target::Cell => site.cell(binary, 1)?,
            Target::Cell3 => site.cell(binary, MEMBERS)?,
            Target::Embedded => site.url = format!("embedded:{}", site.path("data").display()),
            Target::Redis | Target::RedisBare => {
                site.redis(1, &["--appendonly", "yes", "--appendfsync", "always"])?
            }
            Target::RedisMemoryBare => site.redis(1, &["--appendonly", "no"])?,
            Target::Redlock => site.redis(MEMBERS, &["--appendonly", "no"])?,
            Target::Etcd | Target::EtcdBare => site.etcd()?,
            Target::Zookeeper => site.zookeeper()?,
            Target::Consul => site.consul()?,
            Target::Postgres => site.postgres()?,
        }
        site.until_it_grants().await?;
        Ok(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ports(&mut self, count: usize) -> Result<Vec<u16>, BenchError> {
        let ports = free_ports(count)?;
        self.addresses = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        Ok(ports)
    }

    fn cell(&mut self, binary: &Path, nodes: usize) -> Result<(), BenchError> {
        self.ports(nodes)?;
        let cell: Vec<String> = self.addresses.iter().zip(1..).map(|(at, id)| format!("{id}={at}")).collect();
        for (id, address) in self.addresses.clone().iter().enumerate() {
            let mut arguments = words(["serve", "--listen", address, "--data-dir"]);
            arguments.push(self.path(&format!("node{id}")).into());
            if nodes > 1 {
                arguments.extend(words(["--node-id", &(id + 1).to_string(), "--cell", &cell.join(",")]));
            }
            self.processes.push(Process::start(binary, arguments, self.path(&format!("log{id}")))?);
        }
        self.url = format!("lockkeeper://{}", self.addresses.join(","));
        Ok(())
    }

    fn redis(&mut self, servers: usize, durability: &[&str]) -> Result<(), BenchError> {
        let program = find("redis-server", &[], "apt install redis-server")?;
        for (number, port) in self.ports(servers)?.into_iter().enumerate() {
            let folder = self.path(&format!("redis{number}"));
            std::fs::create_dir(&folder).map_err(failed)?;
            let mut arguments =
                words(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]);
            arguments.push(folder.into());
            arguments.extend(words(durability));
            self.processes.push(Process::start(&program, arguments, self.path(&format!("log{number}")))?);
        }
        let scheme = if servers == 1 { "redis" } else { "redlock" };
        self.url = format!("{scheme}://{}", self.addresses.join(","));
        Ok(())
    }

    fn etcd(&mut self) -> Result<(), BenchError> {
        let program = find("etcd", &[], "apt install etcd-server")?;
        let ports = self.ports(2 * MEMBERS)?;
        self.addresses.truncate(MEMBERS);
        let at = |port: u16| format!("http://127.0.0.1:{port}");
        let (clients, peers) = ports.split_at(MEMBERS);
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(n, port)| format!("m{n}={}", at(*port))).collect();
        for number in 0..MEMBERS {
            let (client, peer) = (at(clients[number]), at(peers[number]));
            let mut arguments = words(["--name", &format!("m{number}"), "--log-level", "error"]);
            arguments.extend(words(["--initial-cluster", &cluster.join(",")]));
            arguments.extend(words(["--listen-client-urls", &client, "--advertise-client-urls", &client]));
            arguments.extend(words(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]));
            arguments.push("--data-dir".into());
            arguments.push(self.path(&format!("etcd{number}")).into());
            self.processes.push(Process::start(&program, arguments, self.path(&format!("log{number}")))?);
        }
        self.url = format!("etcd://{}", self.addresses.join(","));
        Ok(())
    }

    fn zookeeper(&mut self) -> Result<(), BenchError> {
        let java = find("java", &[], "apt install default-jre-headless")?;
        if !Path::new(ZOOKEEPER).exists() {
            return Err(BenchError::Server("ZooKeeper is not installed: apt install zookeeper".to_owned()));
        }
        let ports = self.ports(3 * MEMBERS)?;
        self.addresses.truncate(MEMBERS);
        let servers: String = (0..MEMBERS)
            .map(|n| {
                format!("server.{}=127.0.0.1:{}:{}\n", n + 1, ports[MEMBERS + n], ports[2 * MEMBERS + n])
            })
            .collect();
        for (number, client) in ports.iter().take(MEMBERS).enumerate() {
            let folder = self.path(&format!("zookeeper{number}"));
            std::fs::create_dir(&folder).map_err(failed)?;
            std::fs::write(folder.join("myid"), format!("{}\n", number + 1)).map_err(failed)?;
            let settings = self.path(&format!("zookeeper{number}.cfg"));
            let text = format!(
                "tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n\
                 4lw.commands.whitelist=srvr\ndataDir={}\nclientPort={client}\nclientPortAddress=127.0.0.1\n{servers}",
                folder.display()
            );
            std::fs::write(&settings, text).map_err(failed)?;
            let mut arguments = words(["-Xmx512m", "-cp", &format!("/etc/zookeeper/conf:{ZOOKEEPER}")]);
            arguments.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".into());
            arguments.push(settings.into());
            self.processes.push(Process::start(&java, arguments, self.path(&format!("log{number}")))?);
        }
        self.url = format!("zookeeper://{}/bench", self.addresses.join(","));
        Ok(())
    }

    fn consul(&mut self) -> Result<(), BenchError> {
        let program = find("consul", &consul_places(), "scripts/consul builds it")?;
        let ports = self.ports(3)?;
        self.addresses.truncate(1);
        let (data, settings) = (self.path("consul"), self.path("consul.json"));
        let text = serde_json::json!({
            "server": true, "bootstrap": true, "node_name": "one", "data_dir": data, "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1", "disable_update_check": true, "log_level": "ERROR",
            "performance": {"raft_multiplier": 1}, "limits": {"http_max_conns_per_client": 10_000},
            "connect": {"enabled": false},
            "ports": {"http": ports[0], "server": ports[1], "serf_lan": ports[2], "serf_wan": -1, "dns": -1,
                      "grpc": -1, "grpc_tls": -1},
        });
        std::fs::write(&settings, text.to_string()).map_err(failed)?;
        let mut arguments = words(["agent", "-config-file"]);
        arguments.push(settings.into());
        self.processes.push(Process::start(&program, arguments, self.path("log"))?);
        self.url = format!("consul://{}", self.addresses[0]);
        Ok(())
    }

    fn postgres(&mut self) -> Result<(), BenchError> {
        let places = postgres_places();
        let initdb = find("initdb", &places, "apt install postgresql")?;
        let postgres = find("postgres", &places, "apt install postgresql")?;
        // It does not run as root: the package brings a user of its own.
        let user = rustix::process::geteuid().is_root().then_some("postgres");
        if let Some(user) = user {
            let owned = std::process::Command::new("chown").arg(user).arg(self.folder.path()).status();
            owned.map_err(failed)?;
        }
        let data = self.path("postgres");
        let made = command_as(user, &initdb)
            .args(["--no-sync", "--auth", "trust", "--username", "postgres", "--encoding", "UTF8", "-D"])
            .arg(&data)
            .current_dir("/")
            .output()
            .map_err(failed)?;
        if !made.status.success() {
            let text = String::from_utf8_lossy(&made.stderr).into_owned();
            return Err(BenchError::Server(format!("initdb failed: {text}")));
        }
        let port = self.ports(1)?[0].to_string();
        let mut arguments =
            words(["-p", &port, "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=1000"]);
        arguments.extend(words(["-c", "unix_socket_directories=", "-D"]));
        arguments.push(data.into());
        self.processes.push(Process::start_family(user, &postgres, arguments, self.path("log"))?);
        self.url = format!("postgres://postgres@{}/postgres", self.addresses[0]);
        Ok(())
    }

    /// A keeper on the servers.
    pub(super) async fn keeper(&self) -> Result<Keeper<Unfenced>, BenchError> {
        Ok(Keeper::connect_unfenced(&self.url).await?)
    }

    /// Each on a connection of its own. In this process there are none: all share what is there.
    pub(super) async fn clients(&self, count: usize) -> Result<Vec<Contender>, BenchError> {
        let mut clients = Vec::with_capacity(count);
        for number in 0..count {
            let first = self.addresses.first().map_or("", String::as_str);
            clients.push(match (self.target, &self.shared) {
                (Target::RedisBare | Target::RedisMemoryBare, _) => {
                    Contender::CrateRedis(Box::new(CrateRedis::connect(first, number).await?))
                }
                (Target::EtcdBare, _) => Contender::Etcd(Box::new(BareEtcd::connect(first).await?)),
                (_, Some(shared)) => Contender::Shared(shared.clone()),
                _ => Contender::Keeper(self.keeper().await?),
            });
        }
        Ok(clients)
    }

    /// They are ready when a lock can be taken.
    async fn until_it_grants(&mut self) -> Result<(), BenchError> {
        let began = Instant::now();
        loop {
            let Err(error) = self.first_grant().await else { return Ok(()) };
            if began.elapsed() > START_WITHIN {
                let told: Vec<String> = self.processes.iter().map(Process::last_words).collect();
                return Err(BenchError::Server(format!(
                    "{} does not grant a lock: {error}\n{}",
                    self.target.name(),
                    told.join("\n")
                )));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn first_grant(&mut self) -> Result<(), BenchError> {
        let keeper = self.keeper().await?;
        keeper.lock("bench/ready").acquire().await?.release().await?;
        if self.target == Target::Embedded {
            self.shared = Some(keeper);
        } else {
            keeper.close().await?;
        }
        Ok(())
    }
}

/// Where scripts/consul puts it.
fn consul_places() -> Vec<PathBuf> {
    let cache = std::env::var_os("LOCKKEEPER_CACHE").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home).map(|cache| cache.join("lockkeeper"))
    });
    let Some(Ok(entries)) = cache.map(std::fs::read_dir) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| path.join("consul").exists()).collect()
}

/// Debian has its programs outside the usual path.
fn postgres_places() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/usr/lib/postgresql") else { return Vec::new() };
    let mut places: Vec<PathBuf> = entries.flatten().map(|entry| entry.path().join("bin")).collect();
    places.sort();
    places.reverse();
    places
}
