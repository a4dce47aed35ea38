//! Members authenticate each other by certificates: others cannot vote, append or say hello.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper::Keeper;
use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_client::PeerClient;
use lockkeeper_net::frame::{self, MEMBERS_GREETING};
use lockkeeper_server::raft::TimingPreset;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::certificates::Authority;
use crate::fixture::{Caller, ROOT_TOKEN};
use crate::harness::network::{Delay, Network};
use crate::harness::node::{Node, free_address};
use crate::harness::{attempts, until, write_secret};

async fn peer(caller: &Caller) -> Result<PeerClient<Channel>, String> {
    caller.channel().await.map(PeerClient::new)
}

/// Sends entries like a leader. A refused caller does not even get a greeting.
async fn append(caller: &Caller) -> Result<(), Status> {
    let mut stream = caller.credentials().connect(&caller.address, None, |_| Ok(())).await?;
    stream.write_all(MEMBERS_GREETING).await?;
    stream.flush().await?;
    let mut greeting = [0; MEMBERS_GREETING.len()];
    if stream.read_exact(&mut greeting).await.is_err() {
        return Err(Status::permission_denied("not greeted"));
    }
    let mut bytes = BytesMut::new();
    frame::encode(&peer::PeerRequest::default(), &mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    bytes.clear();
    loop {
        if let Some(answer) = frame::decode::<peer::PeerAnswer>(&mut bytes, 1 << 20).unwrap() {
            return match answer.refused.is_empty() {
                true => Ok(()),
                false => Err(Status::new(Code::from_i32(answer.code), answer.refused)),
            };
        }
        assert_ne!(stream.read_buf(&mut bytes).await?, 0, "ended without an answer");
    }
}

/// Makes every call between members, with empty bodies.
async fn call_all(caller: &Caller) -> Vec<Result<(), Status>> {
    let mut client = peer(caller).await.unwrap();
    let parts = || tonic::Request::new(futures_util::stream::iter([peer::SnapshotPart::default()]));
    vec![
        append(caller).await,
        client.hello(peer::HelloRequest::default()).await.map(|_| ()),
        client.snapshot_offer(peer::SnapshotOfferRequest::default()).await.map(|_| ()),
        client.snapshot_send(parts()).await.map(|_| ()),
    ]
}

struct SecureCell {
    nodes: Vec<Node>,
    /// Arguments of each node.
    words: Vec<Vec<String>>,
    nodes_ca: Authority,
    clients_ca: Authority,
    members_ca: Authority,
    folder: tempfile::TempDir,
}

impl SecureCell {
    /// Three nodes; `apart` gives the members a port of their own.
    async fn start(separate_ports: bool) -> SecureCell {
        SecureCell::start_with(separate_ports, None, &[]).await
    }

    /// The same with a network between the peer ports, and more settings.
    async fn start_with(separate_ports: bool, network: Option<&Network>, more: &[&str]) -> SecureCell {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let (nodes_ca, clients_ca) = (Authority::new(path, "nodes"), Authority::new(path, "clients"));
        let members_ca = Authority::new(path, "members");
        let token = path.join("root.token");
        write_secret(&token, ROOT_TOKEN);
        let addresses: Vec<(String, String)> = (0..3)
            .map(|_| {
                let address = free_address(7420);
                let members = if separate_ports { free_address(7421) } else { address.clone() };
                (address, members)
            })
            .collect();
        let list: Vec<_> =
            addresses.iter().enumerate().map(|(at, (_, members))| format!("{}={members}", at + 1)).collect();
        let list = list.join(",");
        let (mut nodes, mut all_words) = (Vec::new(), Vec::new());
        for (at, (address, members)) in addresses.iter().enumerate() {
            let own = nodes_ca.issue(&format!("node-{at}"), &[address]);
            // On a shared port, clients and members get the same certificate.
            let shown = match separate_ports {
                true => members_ca.issue(&format!("node-{at}"), &[members]),
                false => members_ca.issue(&format!("node-{at}"), &[address]),
            };
            let text = |path: &Path| path.display().to_string();
            let served = if separate_ports { &own } else { &shown };
            let mut words = vec![
                "--cell".to_owned(),
                list.clone(),
                "--tls-cert".to_owned(),
                text(&served.certificate),
                "--tls-key".to_owned(),
                text(&served.key),
                "--peer-ca".to_owned(),
                text(&members_ca.file),
                "--client-ca".to_owned(),
                text(&clients_ca.file),
                "--root-token-file".to_owned(),
                text(&token),
            ];
            words.extend(more.iter().map(|word| (*word).to_owned()));
            let id = at as u64 + 1;
            if separate_ports {
                // Behind the network, the node listens at a different address than the others use.
                let listen_addr = match network {
                    Some(network) => {
                        let real = free_address(7421);
                        network.proxy(id, members, &real).await;
                        real
                    }
                    None => members.clone(),
                };
                words.extend(["--peer-listen".to_owned(), listen_addr]);
                words.extend(["--peer-cert".to_owned(), text(&shown.certificate)]);
                words.extend(["--peer-key".to_owned(), text(&shown.key)]);
            }
            let mut node = Node::new(id, address.clone(), members.clone(), path);
            let given = words.iter().map(String::as_str).collect::<Vec<_>>();
            match network {
                Some(network) => network.start(id, || node.spawn(&given)),
                None => drop(node.spawn(&given)),
            }
            nodes.push(node);
            all_words.push(words);
        }
        let cell = SecureCell { nodes, words: all_words, nodes_ca, clients_ca, members_ca, folder };
        cell.leader().await;
        cell
    }

    /// A root caller that trusts the certificates of the client port.
    fn root(&self, node: &Node, separate_ports: bool) -> Caller {
        let ca = if separate_ports { &self.nodes_ca.file } else { &self.members_ca.file };
        let (address, ca) = (node.listen_addr.clone(), Some(ca.clone()));
        Caller { address, ca, own: None, token: Some(ROOT_TOKEN.to_owned()) }
    }

    fn has_separate_ports(&self) -> bool {
        self.nodes[0].listen_addr != self.nodes[0].address
    }

    async fn leader(&self) -> usize {
        until("a leader", async || {
            for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_running()) {
                let caller = self.root(node, self.has_separate_ports());
                if let Ok((200, _)) = caller.get("/v1/lock?name=is-there-a-leader").await {
                    return Some(at);
                }
            }
            None
        })
        .await
    }

    async fn assert_works(&self) {
        let leader = self.leader().await;
        let root = self.root(&self.nodes[leader], self.has_separate_ports());
        let hosts: Vec<_> = self.nodes.iter().map(|node| node.listen_addr.clone()).collect();
        let url = format!("lockkeeper://{}", hosts.join(","));
        let keeper: Keeper = root.builder().connect(&url).await.unwrap();
        keeper.lock("orders/1").acquire().await.unwrap().release().await.unwrap();
    }

    async fn term(&self) -> u64 {
        let leader = self.leader().await;
        let status = self.root(&self.nodes[leader], self.has_separate_ports()).read("/v1/status").await.ok();
        status["term"].as_u64().unwrap()
    }
}

/// Lost packets per thousand.
const LOST_PER_MILLE: u64 = 5;
/// Several observations, so that packets are lost also where round trips are long and messages are few.
const LOST_MIN: u64 = 3;
const OBSERVATIONS_MAX: usize = 20;

/// Requires that a cell with TLS between distant members keeps its leader and fails no request although packets are lost.
async fn assert_stable(round_trip_ms: u64, preset: TimingPreset) {
    let network = Network::new();
    network.delay(Some(Delay::of_round_trip(round_trip_ms, LOST_PER_MILLE)));
    let cell = SecureCell::start_with(true, Some(&network), &["--timing", preset.name()]).await;
    let before = network.lost();
    for _ in 0..OBSERVATIONS_MAX {
        observe_stable(&cell, &network).await;
        if network.lost() - before >= LOST_MIN {
            return;
        }
    }
    panic!("only {} packets were lost", network.lost() - before);
}

async fn observe_stable(cell: &SecureCell, network: &Network) {
    // A busy machine can delay heartbeats for too long now and then.
    attempts(3, async || {
        let (leader, term) = (cell.leader().await, cell.term().await);
        let root = cell.root(&cell.nodes[leader], true);
        let keeper: Keeper = root.builder().connect(&format!("lockkeeper://{}", root.address)).await.unwrap();
        let (began, mut pairs) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(6) {
            keeper.lock("far").acquire().await.unwrap().release().await.unwrap();
            pairs += 1;
        }
        println!("{pairs} pairs in {:?}, {} lost packets", began.elapsed(), network.lost());
        let after = (cell.leader().await, cell.term().await);
        match after == (leader, term) {
            true => Ok(()),
            false => Err(format!("leader and term {:?} became {after:?}", (leader, term))),
        }
    })
    .await;
}

#[tokio::test]
async fn default_timing_is_stable_at_50_ms_with_tls_and_packet_loss() {
    assert_stable(50, TimingPreset::Lan).await;
}

#[tokio::test]
async fn region_timing_is_stable_with_tls_and_packet_loss() {
    assert_stable(150, TimingPreset::Region).await;
}

/// TLS handshakes take four round trips.
#[tokio::test]
async fn global_timing_is_stable_with_tls_and_packet_loss() {
    assert_stable(400, TimingPreset::Global).await;
}

async fn assert_outsiders_are_refused(cell: &SecureCell) {
    let node = &cell.nodes[0];
    let member_ca = Some(cell.members_ca.file.clone());
    let at = |own| Caller { address: node.address.clone(), ca: member_ca.clone(), own, token: None };
    let term = cell.term().await;
    // A member certificate is accepted; then the requests are validated.
    let member = at(Some(cell.members_ca.issue("node-9", &[])));
    let answers = call_all(&member).await;
    assert!(answers[1].is_ok(), "{:?}", answers[1]);
    let appended = answers[0].as_ref().unwrap_err();
    assert_eq!((appended.code(), appended.message()), (Code::InvalidArgument, "the message has no header"));
    for answer in answers {
        let code = answer.err().map_or(Code::Ok, |status| status.code());
        assert!(!matches!(code, Code::PermissionDenied | Code::Unauthenticated), "{code:?}");
    }
    let strangers = Authority::new(cell.folder.path(), "strangers");
    let outside = [
        ("no certificate", at(None)),
        ("a client's", at(Some(cell.clients_ca.issue("ada", &[])))),
        ("the wrong authority", at(Some(strangers.issue("stranger", &[])))),
        ("expired", at(Some(cell.members_ca.issue_expired("late", &[])))),
        ("the root token", at(None).token(ROOT_TOKEN)),
    ];
    for (what, caller) in &outside {
        // Refused by the handshake, or by authentication.
        let Ok(mut client) = peer(caller).await else { continue };
        let hello = client.hello(peer::HelloRequest::default()).await;
        let Err(refused) = hello else { panic!("{what} may say hello") };
        if refused.code() != Code::PermissionDenied {
            continue;
        }
        for answer in call_all(caller).await {
            assert_eq!(answer.unwrap_err().code(), Code::PermissionDenied, "{what}");
        }
    }
    let mut plain = at(None);
    plain.ca = None;
    assert!(plain.get("/livez").await.is_err(), "without TLS nothing is answered");
    assert_eq!(cell.term().await, term, "an election was caused");
    cell.assert_works().await;
}

#[tokio::test]
async fn outsiders_cannot_vote_or_append_on_the_shared_port() {
    let mut cell = SecureCell::start(false).await;
    assert_outsiders_are_refused(&cell).await;
    // A cell with TLS survives its leader, and its rules are on every node.
    let leader = cell.leader().await;
    let root = cell.root(&cell.nodes[leader], false);
    root.post("/v1/access/grant", json!({"identity": "ci", "prefix": "builds/", "rights": ["acquire"]}))
        .await
        .ok();
    let made = root.post("/v1/access/token/create", json!({"identity": "ci"})).await.ok();
    cell.nodes[leader].kill();
    let next = cell.leader().await;
    assert_ne!(next, leader);
    let ci = cell.root(&cell.nodes[next], false).token(made["token"].as_str().unwrap());
    let session = ci.session().await;
    ci.acquire(&session, "builds/1").await.ok();
    ci.acquire(&session, "orders/1").await.assert_refused(403, "forbidden");
    // The audit trail of the next leader names who changed them.
    let acts = cell.root(&cell.nodes[next], false).read("/v1/audit").await.ok()["acts"].clone();
    let granted =
        acts.as_array().unwrap().iter().find(|act| act["change"].as_str().unwrap().contains("acquire"));
    assert!(granted.is_some_and(|act| act["what"] == "access" && act["by"] == "root"), "{acts}");
}

#[tokio::test]
async fn outsiders_cannot_vote_or_append_on_a_separate_peer_port() {
    let cell = SecureCell::start(true).await;
    assert_outsiders_are_refused(&cell).await;
}

/// The authority of the members is replaced in a running cell: first both are trusted, then each node presents a certificate
/// of the new one, then the old one is no longer trusted.
#[tokio::test]
async fn member_authority_is_replaced_without_a_restart() {
    let mut cell = SecureCell::start(true).await;
    let next = Authority::new(cell.folder.path(), "next-members");
    let at = |node: &Node, trusted: &Authority, own| {
        let (address, ca) = (node.address.clone(), Some(trusted.file.clone()));
        Caller { address, ca, own: Some(own), token: None }
    };
    let says_hello = async |caller: &Caller| match peer(caller).await {
        Ok(mut client) => client.hello(peer::HelloRequest::default()).await.is_ok(),
        Err(_) => false,
    };
    let old_member = cell.members_ca.issue("old", &[]);
    let new_member = next.issue("new", &[]);
    assert!(!says_hello(&at(&cell.nodes[0], &cell.members_ca, new_member.clone())).await);

    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let (old_text, new_text) = (read(&cell.members_ca.file), read(&next.file));
    replace(&cell.members_ca.file, &format!("{old_text}{new_text}"));
    for node in &cell.nodes {
        let caller = at(node, &cell.members_ca, new_member.clone());
        until("both authorities to be trusted", async || says_hello(&caller).await.then_some(())).await;
    }
    for (at, node) in cell.nodes.iter().enumerate() {
        let renewed = next.issue(&format!("node-{at}"), &[&node.address]);
        let shown = cell.folder.path().join(format!("members-ca-node-{at}"));
        std::fs::rename(&renewed.certificate, shown.with_extension("pem")).unwrap();
        std::fs::rename(&renewed.key, shown.with_extension("key")).unwrap();
    }
    for node in &cell.nodes {
        let caller = at(node, &next, new_member.clone());
        until("the new certificate", async || says_hello(&caller).await.then_some(())).await;
    }
    replace(&cell.members_ca.file, &new_text);
    for node in &cell.nodes {
        let caller = at(node, &next, old_member.clone());
        until("the old authority to be forgotten", async || (!says_hello(&caller).await).then_some(())).await;
    }
    cell.assert_works().await;

    // A restarted node trusts only the new authority. The others, never restarted, connect to it with their reloaded
    // certificates.
    let leader = cell.leader().await;
    cell.nodes[leader].kill();
    cell.assert_works().await;
    let words: Vec<_> = cell.words[leader].iter().map(String::as_str).collect();
    cell.nodes[leader].spawn(&words);
    let back = cell.root(&cell.nodes[leader], true);
    until("the node to follow", async || back.get("/readyz").await.ok().filter(|(status, _)| *status == 200))
        .await;
    cell.assert_works().await;
}

/// Writes beside and renames, like a renewal.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("beside");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, path).unwrap();
}
