//! An ensemble of ZooKeeper servers that keep everything on disk.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::clock;
use crate::error::ServerError;
use crate::free_address;
use crate::process::{Process, Program, find_program, folder};

/// Where the packages of Debian put the parts of the server.
const CLASSES: &str = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar";
const JAR: &str = "/usr/share/java/zookeeper.jar";
const ADVICE: &str = "apt-get install zookeeper";

#[derive(Debug)]
struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    process: Option<Process>,
}

/// One or three servers.
#[derive(Debug)]
pub struct Zookeeper {
    folder: TempDir,
    members: Vec<Member>,
    environment: Vec<(String, String)>,
}

impl Zookeeper {
    /// Starts an ensemble.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(count: usize) -> Result<Zookeeper, ServerError> {
        Zookeeper::build(count, Vec::new())
    }

    /// One server whose wall clock is ahead of the machine's.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or libfaketime is missing.
    pub fn start_ahead(by: Duration) -> Result<Zookeeper, ServerError> {
        Zookeeper::build(1, clock::ahead(by)?)
    }

    fn build(count: usize, environment: Vec<(String, String)>) -> Result<Zookeeper, ServerError> {
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
                "tickTime=500\ninitLimit=20\nsyncLimit=10\ndataDir={}\nclientPort={}\nclientPortAddress={}\n\
                 maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{}",
                data.display(),
                member.client.port(),
                member.client.ip(),
                if count > 1 { &all } else { "" },
            );
            std::fs::create_dir_all(&data)
                .and_then(|()| std::fs::write(data.join("myid"), (number + 1).to_string()))
                .and_then(|()| std::fs::write(folder.path().join(format!("{number}.cfg")), config))
                .map_err(ServerError::io("the settings of ZooKeeper cannot be written"))?;
        }
        let mut zookeeper = Zookeeper { folder, members, environment };
        zookeeper.restart()?;
        Ok(zookeeper)
    }

    /// Its version, by the name of the archive that lies beside the one without a version.
    pub fn version() -> Option<String> {
        let names = std::fs::read_dir(Path::new(JAR).parent()?)
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.file_name()));
        names.filter_map(|name| version_of(&name.to_string_lossy())).max()
    }

    /// Where clients go.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.client).collect()
    }

    /// Ends all servers with SIGKILL.
    pub fn kill(&mut self) {
        self.members.iter_mut().for_each(|member| member.process = None);
    }

    /// Starts all servers that do not run, with what they kept on disk.
    ///
    /// # Errors
    ///
    /// If one cannot be started.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        let java = find_program("java", &[], "apt-get install zookeeper, which brings a Java")?;
        for (number, member) in self.members.iter_mut().enumerate() {
            if member.process.is_some() {
                continue;
            }
            let config = self.folder.path().join(format!("{number}.cfg")).to_string_lossy().into_owned();
            let arguments = [
                "-Xmx128m",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Dzookeeper.forceSync=no",
                "-Dznode.container.checkIntervalMs=1000",
                "-cp",
                CLASSES,
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                &config,
            ];
            let log = self.folder.path().join(format!("log-{number}"));
            let mut program = Program::new(&java, &arguments, log);
            program.environment.clone_from(&self.environment);
            member.process = Some(program.start()?);
        }
        for member in &mut self.members {
            let address = member.client;
            if let Some(process) = &mut member.process {
                process.until(&format!("ZooKeeper at {address}"), || {
                    command(address, "srvr").contains("Mode:")
                })?;
            }
        }
        Ok(())
    }

    fn leader(&self) -> Option<usize> {
        self.members.iter().position(|member| {
            member.process.is_some() && command(member.client, "srvr").contains("Mode: leader")
        })
    }

    /// Ends the leader with SIGKILL; false if there is none.
    pub fn kill_leader(&mut self) -> bool {
        let leader = self.leader();
        if let Some(number) = leader {
            self.members[number].process = None;
        }
        leader.is_some()
    }

    /// How many packets of clients it has worked on.
    pub fn requests(&self) -> Option<u64> {
        let mut sum = 0;
        for member in &self.members {
            let text = command(member.client, "mntr");
            let line = text.lines().find_map(|line| line.strip_prefix("zk_packets_received"))?;
            sum += line.trim().parse::<f64>().ok()? as u64;
        }
        Some(sum)
    }
}

/// One of the commands of four letters.
pub fn command(address: SocketAddr, word: &str) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
        // One that is just starting may take the question and never answer it.
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
    fn the_archive_names_its_version() {
        assert_eq!(version_of("zookeeper-3.8.0.jar").as_deref(), Some("ZooKeeper 3.8.0"));
        assert_eq!(version_of("zookeeper-jute-3.8.0.jar"), None);
        assert_eq!(version_of("zookeeper.jar"), None);
    }
}
