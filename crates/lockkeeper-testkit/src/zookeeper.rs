//! A ZooKeeper ensemble.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::clock;
use crate::error::ServerError;
use crate::process::{Process, Program, find_program, folder};
use crate::{Servers, Tuning, free_address};

/// Class path of the Debian packages.
const CLASSES: &str = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar";
const JAR: &str = "/usr/share/java/zookeeper.jar";
const ADVICE: &str = "apt-get install zookeeper";

#[derive(Debug)]
struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    process: Option<Process>,
}

/// An ensemble of one or three members.
#[derive(Debug)]
pub struct Zookeeper {
    folder: TempDir,
    members: Vec<Member>,
    environment: Vec<(String, String)>,
    tuning: Tuning,
}

impl Zookeeper {
    /// Starts an ensemble.
    ///
    /// # Errors
    ///
    /// If a member does not start.
    pub fn start(count: usize) -> Result<Zookeeper, ServerError> {
        Zookeeper::start_tuned(count, Tuning::Tests)
    }

    /// Starts an ensemble with this tuning.
    ///
    /// # Errors
    ///
    /// If a member does not start.
    pub fn start_tuned(count: usize, tuning: Tuning) -> Result<Zookeeper, ServerError> {
        Zookeeper::build(count, tuning, Vec::new())
    }

    /// Starts one server whose wall clock is ahead of the machine's.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or libfaketime is missing.
    pub fn start_ahead(by: Duration) -> Result<Zookeeper, ServerError> {
        Zookeeper::build(1, Tuning::Tests, clock::ahead(by)?)
    }

    fn build(
        count: usize,
        tuning: Tuning,
        environment: Vec<(String, String)>,
    ) -> Result<Zookeeper, ServerError> {
        if !Path::new(JAR).exists() {
            return Err(ServerError::Missing { program: "ZooKeeper", advice: ADVICE });
        }
        let members: Vec<Member> = (0..count)
            .map(|_| Member { client: free_address(2181), peer: free_address(2888), process: None })
            .collect();
        let folder = folder()?;
        let all: String = members
            .iter()
            .enumerate()
            .map(|(number, member)| {
                let host = member.peer.ip();
                format!("server.{}={host}:{}:{}\n", number + 1, member.peer.port(), member.peer.port() + 1000)
            })
            .collect();
        for (number, member) in members.iter().enumerate() {
            let data = folder.path().join(format!("data-{number}"));
            let config = format!(
                "{}\ndataDir={}\nclientPort={}\nclientPortAddress={}\n\
                 maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{}",
                match tuning {
                    Tuning::Tests => "tickTime=500\ninitLimit=20\nsyncLimit=10",
                    Tuning::Defaults => "tickTime=2000\ninitLimit=10\nsyncLimit=5",
                },
                data.display(),
                member.client.port(),
                member.client.ip(),
                if count > 1 { &all } else { "" },
            );
            std::fs::create_dir_all(&data)
                .and_then(|()| std::fs::write(data.join("myid"), (number + 1).to_string()))
                .and_then(|()| std::fs::write(folder.path().join(format!("{number}.cfg")), config))
                .map_err(ServerError::io("failed to write the configuration of ZooKeeper"))?;
        }
        let mut zookeeper = Zookeeper { folder, members, environment, tuning };
        zookeeper.restart()?;
        Ok(zookeeper)
    }

    /// Name and version, from the name of the versioned archive beside the unversioned one.
    pub fn version() -> Option<String> {
        let names = std::fs::read_dir(Path::new(JAR).parent()?)
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.file_name()));
        names.filter_map(|name| version_of(&name.to_string_lossy())).max()
    }

    fn leader(&self) -> Option<usize> {
        self.members.iter().position(|member| {
            member.process.is_some() && command(member.client, "srvr").contains("Mode: leader")
        })
    }
}

impl Servers for Zookeeper {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.client).collect()
    }

    fn url_parts(&self) -> (&'static str, &'static str) {
        ("", "/lab")
    }

    fn kill(&mut self) {
        self.members.iter_mut().for_each(|member| member.process = None);
    }

    fn restart(&mut self) -> Result<(), ServerError> {
        let java = find_program("java", &[], "apt-get install zookeeper, which installs Java")?;
        for (number, member) in self.members.iter_mut().enumerate() {
            if member.process.is_some() {
                continue;
            }
            let config = self.folder.path().join(format!("{number}.cfg")).to_string_lossy().into_owned();
            let mut arguments = match self.tuning {
                Tuning::Tests => vec![
                    "-Xmx128m",
                    "-XX:TieredStopAtLevel=1",
                    "-XX:+UseSerialGC",
                    "-Dzookeeper.forceSync=no",
                    "-Dznode.container.checkIntervalMs=1000",
                ],
                Tuning::Defaults => vec!["-Xmx512m"],
            };
            arguments.extend(["-cp", CLASSES, "org.apache.zookeeper.server.quorum.QuorumPeerMain", &config]);
            let log = self.folder.path().join(format!("log-{number}"));
            let mut program = Program::new(&java, &arguments, log);
            program.environment.clone_from(&self.environment);
            member.process = Some(program.start()?);
        }
        for member in &mut self.members {
            let address = member.client;
            if let Some(process) = &mut member.process {
                process.wait_until(&format!("ZooKeeper at {address}"), || {
                    command(address, "srvr").contains("Mode:")
                })?;
            }
        }
        Ok(())
    }

    fn kill_leader(&mut self) -> Option<Instant> {
        let leader = self.leader()?;
        let killed_at = Instant::now();
        self.members[leader].process = None;
        Some(killed_at)
    }

    /// Number of packets that it received from clients.
    fn requests(&self) -> Option<u64> {
        let mut sum = 0;
        for member in &self.members {
            let text = command(member.client, "mntr");
            let line = text.lines().find_map(|line| line.strip_prefix("zk_packets_received"))?;
            sum += line.trim().parse::<f64>().ok()? as u64;
        }
        Some(sum)
    }

    fn request_unit(&self) -> &'static str {
        "packets, by ZooKeeper's mntr"
    }
}

/// Sends a four-letter command and returns the answer.
pub fn command(address: SocketAddr, word: &str) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
        // A member that is starting may accept the connection and never answer.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let _ = stream.write_all(word.as_bytes());
        let _ = stream.read_to_string(&mut text);
    }
    text
}

fn version_of(archive: &str) -> Option<String> {
    let version = archive.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
    version.starts_with(|first: char| first.is_ascii_digit()).then(|| format!("ZooKeeper {version}"))
}

#[cfg(test)]
mod tests {
    use super::version_of;

    #[test]
    fn archive_name_contains_the_version() {
        assert_eq!(version_of("zookeeper-3.8.0.jar").as_deref(), Some("ZooKeeper 3.8.0"));
        assert_eq!(version_of("zookeeper-jute-3.8.0.jar"), None);
        assert_eq!(version_of("zookeeper.jar"), None);
    }
}
