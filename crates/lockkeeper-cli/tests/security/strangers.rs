//! Where members have no certificates, anybody can claim to be one. What such a stranger says must not end the cell.

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

use crate::crowd::Plain;
use crate::harness::cell::Cell;
use crate::harness::http;
use crate::harness::until;

const FORMAT: u32 = 1;

/// A number as postcard writes it.
fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A vote: term, node, whether it is that of a leader.
fn vote(term: u64, node: u64, committed: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    varint(term, &mut bytes);
    varint(node, &mut bytes);
    bytes.push(u8::from(committed));
    bytes
}

/// The one of snapshots' names.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// Somebody who has asked a node who it is, and now claims to be another member of its cell.
struct Stranger {
    address: String,
    client: PeerClient<Channel>,
    header: peer::Header,
}

impl Stranger {
    async fn at(address: &str, data: &Path, from: u64) -> Stranger {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = PeerClient::new(endpoint.connect().await.unwrap());
        let hello = client.hello(peer::HelloRequest::default()).await.unwrap();
        let peer::HelloResponse { cell, member, members, .. } = hello.into_inner();
        let member = member.unwrap();
        // A formed cell does not tell a stranger who its members are. The data folder's id is in its file.
        assert_eq!((member.folder, member.peer.as_str(), members.len()), (0, "", 0));
        let identity: serde_json::Value =
            serde_json::from_slice(&std::fs::read(data.join("identity.json")).unwrap()).unwrap();
        let to_folder = identity["folder"].as_u64().unwrap();
        let header =
            peer::Header { format: FORMAT, cell, from, to: member.node_id, to_folder, ..Default::default() };
        Stranger { address: address.to_owned(), client, header }
    }

    /// The term in each message that members have for each other.
    async fn say_everything(&mut self, term: u64) -> Vec<(&'static str, Result<(), Status>)> {
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
            ("vote", self.ask(Kind::Vote(candidate.clone().into())).await),
            ("pre_vote", self.ask(Kind::PreVote(candidate.into())).await),
            ("heartbeat", self.ask(Kind::Heartbeat(append(0))).await),
            ("transfer_leader", self.ask(Kind::TransferLeader(handing_over.into())).await),
            ("goodbye", self.ask(Kind::Goodbye(vote(term, from, true).into())).await),
            ("snapshot", self.snapshot(term).await),
            ("append", self.ask(Kind::Append(append(1))).await),
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

    /// On a connection of its own.
    async fn ask(&self, kind: Kind) -> Result<(), Status> {
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

/// Also after a restart: what was persisted then would be read again.
#[tokio::test]
async fn a_cell_of_one_takes_no_members_message() {
    let mut plain = Plain::start(&[]).await;
    let address = plain.node.address.clone();
    for from in [1, 2, 9] {
        let mut stranger = Stranger::at(&address, &plain.node.data, from).await;
        for term in [u64::MAX, 1 << 62, 2, 100] {
            all_refused(stranger.say_everything(term).await);
        }
    }
    plain.works().await;
    let term = http::get(&address, "/v1/status").await.unwrap().ok()["term"].as_u64().unwrap();
    assert!(term < 100, "it is in term {term}");
    plain.node.kill();
    plain.node.spawn(&[]);
    until("the node to serve again", async || plain.node.leads().await).await;
    plain.works().await;
}

#[tokio::test]
async fn members_refuse_every_message_of_a_stranger() {
    let mut cell = Cell::start(3).await;
    for id in 1..=3 {
        let address = cell.node(id).listens.clone();
        // As one of its members: ids are no secret.
        let mut stranger = Stranger::at(&address, &cell.node(id).data, id % 3 + 1).await;
        for term in [u64::MAX, u64::MAX - 1, 1 << 62, 2_000_000, 3, 20] {
            all_refused(stranger.say_everything(term).await);
        }
        // Nor does a guessed proof help.
        stranger.header.proof = vec![7; 32].into();
        all_refused(stranger.say_everything(30).await);
        let joined = peer::JoinRequest { header: Some(stranger.header.clone()), secret: vec![7; 32].into() };
        let refused = stranger.client.join(joined).await.unwrap_err();
        assert!(refused.message().contains("does not know the secret"), "{refused:?}");
    }
    let leader = cell.leader().await;
    cell.kill(leader);
    cell.leader().await;
    let status = cell.ask("/v1/status", None).await;
    assert!(status["term"].as_u64().unwrap() < 1_000, "{status}");
}
