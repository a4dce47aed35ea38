//! Without member certificates, any caller can claim to be a member. Its messages must not harm the cell.

use std::path::Path;

use bytes::BytesMut;
use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_client::PeerClient;
use lockkeeper_api::peer::peer_request::Kind;
use lockkeeper_net::frame::{self, MEMBERS_GREETING};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::connections::TestNode;
use crate::harness::cell::Cell;
use crate::harness::http;
use crate::harness::until;

const FORMAT: u32 = 1;

/// Encodes a number like postcard.
fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Encodes a vote: term, node, and whether it is a leader's.
fn vote(term: u64, node: u64, committed: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    varint(term, &mut bytes);
    varint(node, &mut bytes);
    bytes.push(u8::from(committed));
    bytes
}

/// The CRC of snapshot ids.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// A caller that has queried a node's identity and claims to be another member of its cell.
struct ForgedMember {
    address: String,
    client: PeerClient<Channel>,
    header: peer::Header,
}

impl ForgedMember {
    async fn at(address: &str, data: &Path, from: u64) -> ForgedMember {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = PeerClient::new(endpoint.connect().await.unwrap());
        let hello = client.hello(peer::HelloRequest::default()).await.unwrap();
        let peer::HelloResponse { cell, member, members, .. } = hello.into_inner();
        let member = member.unwrap();
        // A formed cell does not disclose its members. The id of the data folder is read from its file.
        assert_eq!((member.folder, member.peer.as_str(), members.len()), (0, "", 0));
        let identity: serde_json::Value =
            serde_json::from_slice(&std::fs::read(data.join("identity.json")).unwrap()).unwrap();
        let to_folder = identity["folder"].as_u64().unwrap();
        let header =
            peer::Header { format: FORMAT, cell, from, to: member.node_id, to_folder, ..Default::default() };
        ForgedMember { address: address.to_owned(), client, header }
    }

    /// Sends every kind of member message with this term.
    async fn send_every_message(&mut self, term: u64) -> Vec<(&'static str, Result<(), Status>)> {
        let from = self.header.from;
        // No last log id, no transfer.
        let candidate = [vote(term, from, false), vec![0, 0]].concat();
        // No previous entry, no entries, nothing committed.
        let leader = [vote(term, from, true), vec![0, 0, 0]].concat();
        let mut handing_over = vote(term, from, true);
        varint(self.header.to, &mut handing_over);
        handing_over.push(0);
        let append =
            |stream| peer::AppendRequest { body: leader.clone().into(), stream, ..Default::default() };
        vec![
            ("vote", self.call(Kind::Vote(candidate.clone().into())).await),
            ("pre_vote", self.call(Kind::PreVote(candidate.into())).await),
            ("heartbeat", self.call(Kind::Heartbeat(append(0))).await),
            ("transfer_leader", self.call(Kind::TransferLeader(handing_over.into())).await),
            ("goodbye", self.call(Kind::Goodbye(vote(term, from, true).into())).await),
            ("snapshot", self.snapshot(term).await),
            ("append", self.call(Kind::Append(append(1))).await),
        ]
    }

    async fn snapshot(&mut self, term: u64) -> Result<(), Status> {
        // No last log id, no membership, an empty name.
        let meta: Vec<u8> = vec![0, 0, 0, 0, 0];
        let part = peer::SnapshotPart {
            header: Some(self.header.clone()),
            vote: vote(term, self.header.from, true).into(),
            id: u64::from(crc32(&meta)) << 32,
            meta: meta.into(),
            ..Default::default()
        };
        let parts = tonic::Request::new(futures_util::stream::iter([part]));
        self.client.snapshot_send(parts).await.map(drop)
    }

    /// Sends a request on a new connection.
    async fn call(&self, kind: Kind) -> Result<(), Status> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let mut bytes = BytesMut::from(&MEMBERS_GREETING[..]);
        let request =
            peer::PeerRequest { header: Some(self.header.clone()), format: FORMAT, id: 1, kind: Some(kind) };
        frame::encode(&request, &mut bytes);
        stream.write_all(&bytes).await?;
        stream.read_exact(&mut [0; MEMBERS_GREETING.len()]).await?;
        bytes.clear();
        loop {
            if let Some(answer) = frame::decode::<peer::PeerAnswer>(&mut bytes, 1 << 20).unwrap() {
                return match answer.refused.is_empty() {
                    true => Ok(()),
                    false => Err(Status::new(Code::from_i32(answer.code), answer.refused)),
                };
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Err(Status::unavailable("ended without an answer"));
            }
        }
    }
}

#[track_caller]
fn all_refused(answers: Vec<(&'static str, Result<(), Status>)>) {
    for (what, answer) in answers {
        let Err(status) = answer else { panic!("{what} is answered") };
        assert_eq!(status.code(), Code::FailedPrecondition, "{what}: {status:?}");
    }
}

/// Also after a restart, which would reload persisted state.
#[tokio::test]
async fn single_node_cell_refuses_member_messages() {
    let mut plain = TestNode::start(&[]).await;
    let address = plain.node.address.clone();
    for from in [1, 2, 9] {
        let mut forged = ForgedMember::at(&address, &plain.node.data, from).await;
        for term in [u64::MAX, 1 << 62, 2, 100] {
            all_refused(forged.send_every_message(term).await);
        }
    }
    plain.assert_works().await;
    let term = http::get(&address, "/v1/status").await.unwrap().ok()["term"].as_u64().unwrap();
    assert!(term < 100, "the term rose to {term}");
    plain.node.kill();
    plain.node.spawn(&[]);
    until("the node to serve again", async || plain.node.leading_term().await).await;
    plain.assert_works().await;
}

#[tokio::test]
async fn members_refuse_every_forged_message() {
    let mut cell = Cell::start(3).await;
    for id in 1..=3 {
        let address = cell.node(id).listen_addr.clone();
        // Claims to be one of its members: ids are not secret.
        let mut forged = ForgedMember::at(&address, &cell.node(id).data, id % 3 + 1).await;
        for term in [u64::MAX, u64::MAX - 1, 1 << 62, 2_000_000, 3, 20] {
            all_refused(forged.send_every_message(term).await);
        }
        // A guessed proof is refused as well.
        forged.header.proof = vec![7; 32].into();
        all_refused(forged.send_every_message(30).await);
        let joined = peer::JoinRequest { header: Some(forged.header.clone()), secret: vec![7; 32].into() };
        let refused = forged.client.join(joined).await.unwrap_err();
        assert!(refused.message().contains("does not know the secret"), "{refused:?}");
    }
    let leader = cell.leader().await;
    cell.kill(leader);
    cell.leader().await;
    let status = cell.call("/v1/status", None).await;
    assert!(status["term"].as_u64().unwrap() < 1_000, "{status}");
}
