//! One ZooKeeper server that keeps everything on disk.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Process, Site, find_program, free_address};

/// Where the packages of Debian put the parts of the server.
const CLASSES: &str = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar";

pub(crate) struct Zookeeper {
    folder: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) process: Option<Process>,
}

impl Zookeeper {
    /// One of the commands of four letters.
    pub(crate) fn command(&self, word: &str) -> String {
        let mut text = String::new();
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            // One that is just starting may take the question and never answer it.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            let _ = stream.write_all(word.as_bytes());
            let _ = stream.read_to_string(&mut text);
        }
        text
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("log")
    }
}

impl Site for Zookeeper {
    fn start() -> Zookeeper {
        let (folder, address) = (tempfile::tempdir().unwrap(), free_address());
        let config = format!(
            "tickTime=500\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\n",
            folder.path().join("data").display(),
            address.port()
        );
        std::fs::write(folder.path().join("zoo.cfg"), config).unwrap();
        let mut zookeeper = Zookeeper { folder, address, process: None };
        zookeeper.restart();
        zookeeper
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("zookeeper://{}/tests", addresses[0])
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn restart(&mut self) {
        let config = self.folder.path().join("zoo.cfg").to_string_lossy().into_owned();
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
        let log = self.log();
        let java = find_program("java", &[]);
        let process = Process::start(&java, &arguments, &log).until_it_listens(self.address, &log);
        self.process = Some(process);
        let until = Instant::now() + Duration::from_secs(30);
        while !self.command("srvr").contains("Mode:") {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(&log).unwrap_or_default());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn connections(&self) -> Option<usize> {
        // One of them is this one.
        Some(self.command("cons").lines().filter(|line| line.contains("127.0.0.1")).count().saturating_sub(1))
    }

    /// Ephemeral nodes, and those of locks.
    fn left_behind(&self) -> Vec<String> {
        let nodes = self.command("wchp");
        let sessions = self.command("dump");
        let entries = sessions.lines().filter(|line| line.trim_start().starts_with("/tests/"));
        let watches = nodes.lines().filter(|line| line.trim_start().starts_with("/tests/"));
        entries.chain(watches).map(|line| line.trim().to_owned()).collect()
    }
}
