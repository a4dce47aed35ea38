//! Real packet loss between members. Each node has a network namespace of its own; that of the test routes between them and drops
//! packets, so that the kernel's TCP has to retransmit.

use std::process::{Child, Command, Stdio};

use crate::harness::cell::Cell;
use crate::harness::client::Load;
use crate::harness::node::Node;
use crate::harness::skip::skip_or_fail;
use crate::latency::{REPEATED_WITH_LOSS_MAX, assert_no_election};

/// Set in the process that runs inside the namespace of the routes.
const INSIDE: &str = "LOCKKEEPER_TEST_NETWORK_NAMESPACE";
/// The name of the test below, which starts itself again.
const NAME: &str = "packet_loss::default_timing_is_stable_when_packets_are_lost";
/// Packets per thousand between nodes. Those between clients and nodes are not dropped.
const LOST_PER_MILLE: u64 = 30;
const PORT: u16 = 7420;

fn run(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// A network namespace, which ends with its process.
struct Namespace(Child);

impl Namespace {
    /// Creates the namespace of a node and its route through ours.
    fn create(node: u64) -> Result<Namespace, String> {
        let words =
            ["--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"];
        let mut command = Command::new("setpriv");
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("setpriv (util-linux): {error}"))?;
        // Only then the namespace exists.
        let mut ready = [0; 5];
        let stdout = process.stdout.as_mut().expect("a pipe");
        let exists = std::io::Read::read_exact(stdout, &mut ready);
        let namespace = Namespace(process);
        exists.map_err(|error| format!("unshare: {error}"))?;
        let (here, process) = (format!("node-{node}"), namespace.process().to_string());
        run("ip", &["link", "add", &here, "type", "veth", "peer", "name", "eth0", "netns", &process])?;
        run("ip", &["address", "add", &format!("{}/24", gateway(node)), "dev", &here])?;
        run("ip", &["link", "set", &here, "up"])?;
        let inside = |words: &[&str]| {
            let net = format!("--net=/proc/{process}/ns/net");
            run("nsenter", &[&[net.as_str(), "ip"], words].concat())
        };
        inside(&["link", "set", "lo", "up"])?;
        inside(&["address", "add", &format!("{}/24", address(node)), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        inside(&["route", "add", "default", "via", &gateway(node)])?;
        Ok(namespace)
    }

    fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn address(node: u64) -> String {
    format!("10.77.{node}.2")
}

/// Our end of the link to a node.
fn gateway(node: u64) -> String {
    format!("10.77.{node}.1")
}

/// Drops a share of the packets between nodes.
fn drop_packets() -> Result<(), String> {
    run("nft", &["add", "table", "inet", "loss"])?;
    run("nft", &["add", "chain", "inet", "loss", "forward", "{ type filter hook forward priority 0; }"])?;
    let below = LOST_PER_MILLE.to_string();
    let rule = ["numgen", "random", "mod", "1000", "<", &below, "counter", "drop"];
    run("nft", &[&["add", "rule", "inet", "loss", "forward"][..], &rule].concat()).map(drop)
}

/// The number of dropped packets.
fn dropped() -> u64 {
    let rules = run("nft", &["list", "table", "inet", "loss"]).unwrap();
    let count = rules.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.unwrap_or_else(|| panic!("no counter: {rules}"))
}

/// Whether this user may do all that the test needs, in a namespace that is discarded.
fn may_create_namespaces() -> bool {
    let script = "ip link add name veth0 type veth peer name veth1 && nft add table inet t && echo 1 > /proc/sys/net/ipv4/ip_forward";
    let trial = run("unshare", &["--net", "sh", "-c", script]);
    if let Err(why) = &trial {
        skip_or_fail(
            &format!("network namespaces with packet loss: {why}"),
            "install iproute2, nftables and util-linux, and run the tests as root",
        );
    }
    trial.is_ok()
}

#[tokio::test]
async fn default_timing_is_stable_when_packets_are_lost() {
    if std::env::var_os(INSIDE).is_some() {
        return lose_packets().await;
    }
    if !may_create_namespaces() {
        return;
    }
    // No other cell runs meanwhile.
    let _alone = Cell::plan(0);
    let tests = std::env::current_exe().unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net"]).arg(tests).args([
        "--exact",
        NAME,
        "--nocapture",
    ]);
    let output = command.env(INSIDE, "1").stderr(Stdio::inherit()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    // Not as it is: scripts count the results of test programs.
    for line in stdout.lines() {
        println!("inside: {line}");
    }
    assert!(output.status.success() && stdout.contains("1 passed"), "the test inside failed");
}

/// Runs inside a network namespace of its own.
async fn lose_packets() {
    run("ip", &["link", "set", "lo", "up"]).unwrap();
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    let mut cell = Cell::plan(0);
    let mut namespaces = Vec::new();
    for id in 1..=3 {
        let namespace = Namespace::create(id).unwrap();
        let address = format!("{}:{PORT}", address(id));
        let mut node = Node::new(id, address.clone(), address, cell.folder());
        node.namespace_of = Some(namespace.process());
        cell.nodes.push(node);
        namespaces.push(namespace);
    }
    let list = cell.list();
    for id in 1..=3 {
        cell.spawn_with(id, &["--cell", &list, "--insecure"]);
    }
    cell.until_agreed().await;
    drop_packets().unwrap();
    let mut load = Load::start(&cell, 3).await;
    assert_no_election(&cell, REPEATED_WITH_LOSS_MAX).await;
    load.until_more(100).await;
    let (done, lost) = (load.end().await, dropped());
    println!("{done} pairs of acquire and release, none failed; {lost} packets were lost");
    assert!(lost > 100, "{lost} packets were lost");
    cell.until_in_sync(&[1, 2, 3]).await;
}
