//! A cluster of etcd members that keep everything on disk.

use std::net::SocketAddr;

use tempfile::TempDir;

use crate::error::ServerError;
use crate::http::{get, post};
use crate::process::{Process, Program, find_program, first_line, folder};
use crate::{Signal, free_address};

const ADVICE: &str = "apt-get install etcd-server";

#[derive(Debug)]
struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    process: Option<Process>,
}

/// One, three or five members.
#[derive(Debug)]
pub struct Etcd {
    folder: TempDir,
    members: Vec<Member>,
}

impl Etcd {
    /// Starts a cluster.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(count: usize) -> Result<Etcd, ServerError> {
        let members = (0..count)
            .map(|_| Member { client: free_address(2379), peer: free_address(2380), process: None })
            .collect();
        let mut etcd = Etcd { folder: folder()?, members };
        etcd.restart()?;
        Ok(etcd)
    }

    /// Its version, in its own words.
    pub fn version() -> Option<String> {
        let line = first_line(&find_program("etcd", &[], ADVICE).ok()?, &["--version"]);
        line.strip_prefix("etcd Version: ").map(|version| format!("etcd {version}"))
    }

    /// Where clients go.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.client).collect()
    }

    /// Ends all members with SIGKILL.
    pub fn kill(&mut self) {
        self.members.iter_mut().for_each(|member| member.process = None);
    }

    /// Starts all members that do not run, with what they kept on disk, and waits for a leader.
    ///
    /// # Errors
    ///
    /// If one cannot be started.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        let path = find_program("etcd", &[], ADVICE)?;
        let cluster: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(number, member)| format!("m{number}=http://{}", member.peer))
            .collect();
        let cluster = cluster.join(",");
        for (number, member) in self.members.iter_mut().enumerate() {
            if member.process.is_some() {
                continue;
            }
            let data = self.folder.path().join(format!("data-{number}")).to_string_lossy().into_owned();
            let (name, client, peer) = (
                format!("m{number}"),
                format!("http://{}", member.client),
                format!("http://{}", member.peer),
            );
            // An election time-out of 500 ms instead of 1 s: leases of one second instead of two.
            let arguments = [
                ["--name", &name],
                ["--data-dir", &data],
                ["--log-level", "warn"],
                ["--listen-client-urls", &client],
                ["--advertise-client-urls", &client],
                ["--listen-peer-urls", &peer],
                ["--initial-advertise-peer-urls", &peer],
                ["--initial-cluster", &cluster],
                ["--heartbeat-interval", "50"],
                ["--election-timeout", "500"],
            ];
            let log = self.folder.path().join(format!("log-{number}"));
            member.process = Some(Program::new(&path, arguments.as_flattened(), log).start()?);
        }
        for member in &mut self.members {
            let address = member.client;
            if let Some(process) = &mut member.process {
                process.until(&format!("etcd at {address}"), || {
                    post(address, "/v3/kv/range", r#"{"key": "YQ=="}"#).contains("revision")
                })?;
            }
        }
        Ok(())
    }

    fn leader(&self) -> Option<usize> {
        self.members.iter().position(|member| {
            member.process.is_some() && get(member.client, "/metrics").contains("\netcd_server_is_leader 1")
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

    /// Sends the leader a signal.
    pub fn signal_leader(&self, signal: Signal) {
        if let Some(process) = self.leader().and_then(|number| self.members[number].process.as_ref()) {
            process.signal(signal);
        }
    }

    /// How many messages of clients it has worked on: calls, and what came and went on streams.
    pub fn requests(&self) -> Option<u64> {
        let mut sum = 0.0;
        for member in &self.members {
            let text = get(member.client, "/metrics");
            let lines = text.lines().filter(|line| line.starts_with("grpc_server_msg_received_total"));
            sum += lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
        }
        Some(sum as u64)
    }
}
