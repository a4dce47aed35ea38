//! A durable etcd cluster.

use std::net::SocketAddr;
use std::time::Instant;

use tempfile::TempDir;

use crate::error::ServerError;
use crate::http::{get, post};
use crate::process::{Process, Program, find_program, first_line, folder};
use crate::{Servers, Signal, Tuning, free_address};

const ADVICE: &str = "apt-get install etcd-server";

#[derive(Debug)]
struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    process: Option<Process>,
}

/// A cluster of one, three or five members.
#[derive(Debug)]
pub struct Etcd {
    folder: TempDir,
    members: Vec<Member>,
    tuning: Tuning,
}

impl Etcd {
    /// Starts a cluster.
    ///
    /// # Errors
    ///
    /// If a member does not start.
    pub fn start(count: usize) -> Result<Etcd, ServerError> {
        Etcd::start_tuned(count, Tuning::Tests)
    }

    /// Starts a cluster with this tuning.
    ///
    /// # Errors
    ///
    /// If a member does not start.
    pub fn start_tuned(count: usize, tuning: Tuning) -> Result<Etcd, ServerError> {
        let members = (0..count)
            .map(|_| Member { client: free_address(2379), peer: free_address(2380), process: None })
            .collect();
        let mut etcd = Etcd { folder: folder()?, members, tuning };
        etcd.restart()?;
        Ok(etcd)
    }

    /// Name and version, as the program prints it.
    pub fn version() -> Option<String> {
        let line = first_line(&find_program("etcd", &[], ADVICE).ok()?, &["--version"]);
        line.strip_prefix("etcd Version: ").map(|version| format!("etcd {version}"))
    }

    fn leader(&self) -> Option<usize> {
        self.members.iter().position(|member| {
            member.process.is_some() && get(member.client, "/metrics").contains("\netcd_server_is_leader 1")
        })
    }

    /// Sends the leader a signal.
    pub fn signal_leader(&self, signal: Signal) {
        if let Some(process) = self.leader().and_then(|number| self.members[number].process.as_ref()) {
            process.signal(signal);
        }
    }
}

impl Servers for Etcd {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.client).collect()
    }

    fn kill(&mut self) {
        self.members.iter_mut().for_each(|member| member.process = None);
    }

    fn restart(&mut self) -> Result<(), ServerError> {
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
            let mut arguments = vec![
                ["--name", &name],
                ["--data-dir", &data],
                ["--log-level", "warn"],
                ["--listen-client-urls", &client],
                ["--advertise-client-urls", &client],
                ["--listen-peer-urls", &peer],
                ["--initial-advertise-peer-urls", &peer],
                ["--initial-cluster", &cluster],
            ];
            if self.tuning == Tuning::Tests {
                // An election timeout of 500 ms instead of 1 s: leases of one second instead of two.
                arguments.extend([["--heartbeat-interval", "50"], ["--election-timeout", "500"]]);
            }
            let log = self.folder.path().join(format!("log-{number}"));
            member.process = Some(Program::new(&path, arguments.as_flattened(), log).start()?);
        }
        for member in &mut self.members {
            let address = member.client;
            if let Some(process) = &mut member.process {
                process.wait_until(&format!("etcd at {address}"), || {
                    post(address, "/v3/kv/range", r#"{"key": "YQ=="}"#).contains("revision")
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

    fn process_ids(&self) -> Vec<u32> {
        self.members.iter().filter_map(|member| Some(member.process.as_ref()?.id())).collect()
    }

    /// Number of messages that it received from clients, on calls and on streams.
    fn requests(&self) -> Option<u64> {
        let mut sum = 0.0;
        for member in &self.members {
            let text = get(member.client, "/metrics");
            let lines = text.lines().filter(|line| line.starts_with("grpc_server_msg_received_total"));
            sum += lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
        }
        Some(sum as u64)
    }

    fn request_unit(&self) -> &'static str {
        "messages, by etcd's metrics"
    }
}
