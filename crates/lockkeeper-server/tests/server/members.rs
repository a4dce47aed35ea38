//! Messages of a caller that knows the secret of the cell: implausible terms and nodes that are not members are refused even
//! then, before anything is persisted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_client::PeerClient;
use lockkeeper_api::peer::peer_request::Kind;
use lockkeeper_net::frame::{self, MEMBERS_GREETING};
use lockkeeper_server::raft::log::{self, LogConfig, RealDisk};
use lockkeeper_server::raft::types::{Entry, LogId, SnapshotMeta, TypeConfig, Vote};
use lockkeeper_server::{Node, NodeConfig};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest, VoteRequest};
use ring::hmac;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::support::{LONG, PATIENT, addresses, leader, start_cell, until};

/// More than a million above the term of the cell, and below the highest possible one.
const IMPLAUSIBLE: u64 = 1 << 40;

fn identity(data: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(data.join("identity.json")).unwrap()).unwrap()
}

/// A header from `from` to the node with this folder, with a valid proof of the cell secret.
fn signed_header(data: &Path, from: u64) -> peer::Header {
    let identity = identity(data);
    let (cell, secret) = (identity["cell"].as_str().unwrap(), identity["secret"].as_str().unwrap());
    let to = identity["node_id"].as_u64().unwrap();
    let to_folder = identity["folder"].as_u64().unwrap();
    let digits = |at| u8::from_str_radix(&secret[at..at + 2], 16).unwrap();
    let secret: Vec<u8> = (0..secret.len()).step_by(2).map(digits).collect();
    let parties = [from, to, to_folder].map(u64::to_le_bytes);
    let signed = [b"lockkeeper member 1", parties.as_flattened(), cell.as_bytes()].concat();
    let proof = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), &signed);
    let proof = Bytes::copy_from_slice(proof.as_ref());
    peer::Header { format: 1, cell: cell.to_owned(), from, to, to_folder, proof }
}

fn encoded(message: &impl Serialize) -> Bytes {
    postcard::to_stdvec(message).unwrap().into()
}

/// A caller that claims to be a member and can prove it.
struct Member {
    address: String,
    header: peer::Header,
}

impl Member {
    /// Sends a request on a new connection. Returns the code of the refusal, or `Ok`.
    async fn call(&self, kind: Kind) -> Code {
        self.call_on(&mut self.connect().await, kind).await
    }

    async fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(MEMBERS_GREETING).await.unwrap();
        stream.read_exact(&mut [0; MEMBERS_GREETING.len()]).await.unwrap();
        stream
    }

    /// Opens a connection and proves the membership on it.
    async fn connect_admitted(&self) -> TcpStream {
        let mut stream = self.connect().await;
        assert_eq!(self.call_on(&mut stream, Kind::Ping(peer::Ping {})).await, Code::Ok);
        stream
    }

    async fn call_on(&self, stream: &mut TcpStream, kind: Kind) -> Code {
        let mut bytes = BytesMut::new();
        let header = Some(self.header.clone());
        frame::encode(&peer::PeerRequest { header, format: 1, id: 1, kind: Some(kind) }, &mut bytes);
        stream.write_all(&bytes).await.unwrap();
        bytes.clear();
        loop {
            if let Some(answer) = frame::decode::<peer::PeerAnswer>(&mut bytes, 1 << 20).unwrap() {
                return if answer.refused.is_empty() { Code::Ok } else { Code::from_i32(answer.code) };
            }
            let read = tokio::time::timeout(LONG, stream.read_buf(&mut bytes)).await.expect("an answer");
            assert_ne!(read.unwrap(), 0, "the connection ended without an answer");
        }
    }

    async fn send_snapshot(&self, vote: Vote, meta: SnapshotMeta) -> Code {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let mut client = PeerClient::new(endpoint.connect().await.unwrap());
        let meta = encoded(&meta);
        let part = peer::SnapshotPart {
            header: Some(self.header.clone()),
            vote: encoded(&vote),
            id: u64::from(crc32fast::hash(&meta)) << 32,
            meta,
            ..Default::default()
        };
        let parts = tonic::Request::new(futures_util::stream::iter([part]));
        client.snapshot_send(parts).await.map_or_else(|status| status.code(), |_| Code::Ok)
    }
}

fn id(term: u64) -> LogId {
    openraft::testing::log_id::<TypeConfig>(term, 3, 1)
}

/// Leaders' requests with an implausible term in each place that has one.
fn implausible_appends(term: u64) -> Vec<(&'static str, AppendEntriesRequest<TypeConfig>)> {
    let plain = || AppendEntriesRequest::<TypeConfig> {
        vote: Vote::new_committed(term, 3),
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
    };
    let high = Some(id(IMPLAUSIBLE));
    vec![
        ("vote", AppendEntriesRequest { vote: Vote::new_committed(IMPLAUSIBLE, 3), ..plain() }),
        ("previous entry", AppendEntriesRequest { prev_log_id: high, ..plain() }),
        ("commit", AppendEntriesRequest { leader_commit: high, ..plain() }),
        (
            "entry",
            AppendEntriesRequest {
                entries: vec![Entry::new(id(IMPLAUSIBLE), EntryPayload::Blank)],
                ..plain()
            },
        ),
    ]
}

/// Sends every kind of message with an implausible term. Returns what was not refused.
async fn send_implausible_terms(member: &Member, term: u64) -> Vec<String> {
    let mut accepted = Vec::new();
    let mut note = |what: String, code| {
        if code != Code::FailedPrecondition {
            accepted.push(format!("{what}: {code:?}"));
        }
    };
    for (place, request) in implausible_appends(term) {
        let append = |stream| peer::AppendRequest { body: encoded(&request), stream, majority: None };
        note(format!("append, {place}"), member.call(Kind::Append(append(1))).await);
        note(format!("heartbeat, {place}"), member.call(Kind::Heartbeat(append(0))).await);
    }
    for (place, vote, last) in [
        ("vote", Vote::new(IMPLAUSIBLE, 3), None),
        ("last entry", Vote::new(term + 1, 3), Some(id(IMPLAUSIBLE))),
    ] {
        let request = encoded(&VoteRequest::<TypeConfig>::new(vote, last));
        note(format!("vote, {place}"), member.call(Kind::Vote(request.clone())).await);
        note(format!("pre-vote, {place}"), member.call(Kind::PreVote(request)).await);
    }
    for (place, vote, last) in [
        ("vote", Vote::new_committed(IMPLAUSIBLE, 3), None),
        ("last entry", Vote::new_committed(term, 3), Some(id(IMPLAUSIBLE))),
    ] {
        let transfer = encoded(&TransferLeaderRequest::<TypeConfig>::new(vote, member.header.to, last));
        note(format!("transfer, {place}"), member.call(Kind::TransferLeader(transfer)).await);
        let meta = SnapshotMeta { last_log_id: last, ..SnapshotMeta::default() };
        note(format!("snapshot, {place}"), member.send_snapshot(vote, meta).await);
    }
    let goodbye = encoded(&Vote::new_committed(IMPLAUSIBLE, 3));
    note("goodbye".to_owned(), member.call(Kind::Goodbye(goodbye)).await);
    accepted
}

/// Reads the term of the vote on disk.
fn term_on_disk(data: &Path) -> u64 {
    let disk = RealDisk::open(data.join("log")).unwrap();
    let (log, _) = log::open(Arc::new(disk), LogConfig::default()).unwrap();
    log.vote().unwrap().map_or(0, |vote| vote.leader_id.term)
}

#[tokio::test(flavor = "current_thread")]
async fn implausible_terms_of_a_member_are_refused_and_not_persisted() {
    let folder = tempfile::tempdir().unwrap();
    let data = |id: u64| folder.path().join(id.to_string());
    let durable =
        |id, config: NodeConfig| NodeConfig { data_dir: Some(data(id)), log: LogConfig::default(), ..config };
    let mut nodes = start_cell(durable).await;
    leader(&nodes).await;
    let third = nodes.pop().unwrap();
    third.stop().await;
    leader(&nodes).await;
    let addresses: Vec<_> = nodes.iter().map(|node| node.address().unwrap().to_string()).collect();
    let term = nodes[0].api().status().term;
    for (address, id) in addresses.into_iter().zip(1..) {
        let member = Member { address, header: signed_header(&data(id), 3) };
        assert_eq!(member.call(Kind::Ping(peer::Ping {})).await, Code::Ok, "node {id} accepts its proof");
        let plausible = encoded(&VoteRequest::<TypeConfig>::new(Vote::new(term + 1, 3), None));
        assert_eq!(member.call(Kind::PreVote(plausible)).await, Code::Ok, "a plausible term is answered");
        let accepted = send_implausible_terms(&member, term).await;
        assert!(accepted.is_empty(), "node {id}: {accepted:?}");
    }
    leader(&nodes).await;
    for (node, id) in nodes.into_iter().zip(1..) {
        node.stop().await;
        assert!(term_on_disk(&data(id)) < 1_000, "node {id} has persisted {}", term_on_disk(&data(id)));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn cell_of_one_refuses_a_node_that_is_not_a_member_even_with_its_secret() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::start(NodeConfig::durable(folder.path())).await.unwrap();
    let address = node.listen("127.0.0.1:0").await.unwrap().to_string();
    let term = node.api().status().term;
    // Its own id is refused like an unknown one: it sends no messages to itself.
    for from in [2, 1] {
        let member = Member { address: address.clone(), header: signed_header(folder.path(), from) };
        let vote = VoteRequest::<TypeConfig>::new(Vote::new(term + 1, from), None);
        for kind in [Kind::Ping(peer::Ping {}), Kind::Vote(encoded(&vote)), Kind::PreVote(encoded(&vote))] {
            assert_eq!(member.call(kind.clone()).await, Code::FailedPrecondition, "{kind:?} from {from}");
        }
        let vote = Vote::new_committed(term + 1, from);
        let refused = member.send_snapshot(vote, SnapshotMeta::default()).await;
        assert_eq!(refused, Code::FailedPrecondition, "snapshot from {from}");
    }
    assert_eq!(node.api().status().term, term);
    node.stop().await;
    assert_eq!(term_on_disk(folder.path()), term);
}

/// A node of a cell of four, on disk.
async fn open_node(id: u64, data: &Path, members: &BTreeMap<u64, String>) -> Node {
    let config = NodeConfig {
        node_id: Some(id),
        listen: Some(members[&id].clone()),
        members: members.clone(),
        timing: PATIENT,
        data_dir: Some(data.to_owned()),
        log: LogConfig::default(),
        ..NodeConfig::in_memory()
    };
    Node::open(config).await.unwrap()
}

/// Every request of a member that openraft understands, from node 4 in this term.
fn requests_of_node_4(term: u64, to: u64) -> Vec<(&'static str, Kind)> {
    let (candidate, leads) = (Vote::new(term, 4), Vote::new_committed(term, 4));
    let vote = encoded(&VoteRequest::<TypeConfig>::new(candidate, None));
    let append = AppendEntriesRequest::<TypeConfig> {
        vote: leads,
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
    };
    let append = |stream| peer::AppendRequest { body: encoded(&append), stream, majority: None };
    vec![
        ("ping", Kind::Ping(peer::Ping {})),
        ("vote", Kind::Vote(vote.clone())),
        ("pre-vote", Kind::PreVote(vote)),
        ("append", Kind::Append(append(1))),
        ("heartbeat", Kind::Heartbeat(append(0))),
        ("goodbye", Kind::Goodbye(encoded(&leads))),
        (
            "transfer",
            Kind::TransferLeader(encoded(&TransferLeaderRequest::<TypeConfig>::new(leads, to, None))),
        ),
    ]
}

/// Waits until the other members refuse node 4, which then sends every request on connections that it had opened before, and
/// on new ones.
async fn assert_all_refused(before: Vec<(Member, Vec<TcpStream>)>, term: u64) {
    for (member, streams) in before {
        until("the removal to be applied", async || {
            (member.call(Kind::Ping(peer::Ping {})).await == Code::FailedPrecondition).then_some(())
        })
        .await;
        let to = member.header.to;
        for ((what, kind), mut stream) in requests_of_node_4(term, to).into_iter().zip(streams) {
            let code = member.call_on(&mut stream, kind.clone()).await;
            assert_eq!(code, Code::FailedPrecondition, "node {to}: {what} on an open connection");
            assert_eq!(member.call(kind).await, Code::FailedPrecondition, "node {to}: {what}");
        }
        let snapshot = member.send_snapshot(Vote::new_committed(term, 4), SnapshotMeta::default()).await;
        assert_eq!(snapshot, Code::FailedPrecondition, "node {to}: snapshot");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn removed_member_is_refused_until_it_is_added_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = |id: u64| folder.path().join(id.to_string());
    let members = addresses(1..=4).await;
    let mut nodes = Vec::new();
    for id in 1..=4 {
        nodes.push(open_node(id, &data(id), &members).await);
    }
    leader(&nodes).await;
    let mut before = Vec::new();
    for id in 1..=3 {
        let member = Member { address: members[&id].clone(), header: signed_header(&data(id), 4) };
        let mut streams = Vec::new();
        for _ in requests_of_node_4(1, id) {
            streams.push(member.connect_admitted().await);
        }
        before.push((member, streams));
    }
    nodes.pop().unwrap().stop().await;
    let leads = leader(&nodes).await;
    nodes[leads].api().remove_member(4).await.unwrap();
    let term = nodes[leads].api().status().term;
    assert_all_refused(before, term + 1).await;

    // Also after a restart of a member.
    let id = 1 + (leads as u64 + 1) % 3;
    let restarted = usize::try_from(id - 1).unwrap();
    nodes.remove(restarted).stop().await;
    nodes.insert(restarted, open_node(id, &data(id), &members).await);
    let member = Member { address: members[&id].clone(), header: signed_header(&data(id), 4) };
    assert_eq!(member.call(Kind::Ping(peer::Ping {})).await, Code::FailedPrecondition, "after a restart");

    // Added again with an empty folder.
    std::fs::remove_dir_all(data(4)).unwrap();
    nodes.push(open_node(4, &data(4), &members).await);
    let leads = leader(&nodes).await;
    nodes[leads].api().add_member(4, &members[&4]).await.unwrap();
    until("the return to be applied", async || {
        (member.call(Kind::Ping(peer::Ping {})).await == Code::Ok).then_some(())
    })
    .await;
    for node in nodes {
        node.stop().await;
    }
}
