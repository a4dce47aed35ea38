//! Services beside those for clients: health checks, reflection, and what members call.

use std::future::Future;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use futures_util::StreamExt;
use futures_util::future::join_all;
use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_client::PeerClient;
use lockkeeper_net::frame::{self, MEMBERS_GREETING};
use tokio::io::AsyncWriteExt;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;

use super::attacks::{Adversary, UNREAD_FOR};
use super::grpc::first;
use super::tally::Tally;

/// The protocol, as counted.
pub const OTHERS: &str = "other services";
/// Calls of these services, and whether a caller that is no member may make them.
pub const CALLS: [(&str, bool); 7] = [
    ("check", true),
    ("watch", true),
    ("reflection", true),
    ("hello", true),
    ("join", false),
    ("snapshot_offer", false),
    ("snapshot_send", false),
];
/// Concurrent calls of each kind.
const AT_ONCE: u64 = 30;
/// Questions on one stream.
const QUESTIONS: usize = 200;
/// Requests of a forged member on one connection.
const MEMBER_REQUESTS: u64 = 1_000;
const PAUSE: Duration = Duration::from_millis(100);

/// A question to reflection, as in its version 1: the file that defines a symbol.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Question {
    #[prost(string, tag = "4")]
    pub file_containing_symbol: String,
}

/// Its answer, of which only the name is needed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReflectionAnswer {
    #[prost(string, tag = "1")]
    valid_host: String,
}

fn add(tally: &Tally, call: &str, is_accepted: bool) {
    tally.add(OTHERS, call, is_accepted);
}

/// Reads the files of many symbols on one stream.
pub async fn reflect(channel: Channel) -> Result<(), Status> {
    let question = Question { file_containing_symbol: "lockkeeper.v1.Lockkeeper".into() };
    let questions = futures_util::stream::iter(vec![question; QUESTIONS]);
    let mut node = Grpc::new(channel);
    node.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo".parse().unwrap();
    let codec = ProstCodec::<Question, ReflectionAnswer>::default();
    let mut answers = node.streaming(Request::new(questions), path, codec).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

impl Adversary {
    pub async fn over_other_services(self) {
        loop {
            // A connection that carries other calls as well: without an identity it would be closed.
            let Ok(channel) = self.caller.channel().await else { continue };
            join_all((0..AT_ONCE).map(|number| self.call_services(channel.clone(), number))).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn call_services(&self, channel: Channel, number: u64) {
        let health = HealthClient::new(channel.clone());
        let peers = PeerClient::new(channel.clone());
        let question = HealthCheckRequest { service: String::new() };
        let header = peer::Header {
            format: 1,
            cell: "c".repeat(1_000),
            from: number,
            to: 1,
            to_folder: number,
            proof: vec![7; 32].into(),
        };
        let hello = peer::HelloRequest {
            node_id: number,
            cell: "c".repeat(1_000),
            folder: number,
            proof: vec![7; 32].into(),
        };
        let part = peer::SnapshotPart {
            header: Some(header.clone()),
            id: number,
            bytes: u64::MAX,
            data: vec![1; 60 << 10].into(),
            ..Default::default()
        };
        let parts = futures_util::stream::iter(vec![part; 16]).chain(futures_util::stream::pending());
        tokio::join!(
            self.limited("check", async { health.clone().check(question.clone()).await.map(drop) }),
            self.limited("watch", async {
                let answer = health.clone().watch(question.clone()).await;
                let answer = first(answer).await;
                tokio::time::sleep(UNREAD_FOR).await;
                answer.map(drop)
            }),
            self.limited("reflection", reflect(channel)),
            self.limited("hello", async { peers.clone().hello(hello).await.map(drop) }),
            self.limited("join", async {
                let request = peer::JoinRequest { header: Some(header.clone()), secret: vec![7; 32].into() };
                peers.clone().join(request).await.map(drop)
            }),
            self.limited("snapshot_offer", async {
                let offer =
                    peer::SnapshotOfferRequest { header: Some(header.clone()), id: number, bytes: u64::MAX };
                peers.clone().snapshot_offer(offer).await.map(drop)
            }),
            self.limited("snapshot_send", async { peers.clone().snapshot_send(parts).await.map(drop) }),
        );
    }

    async fn limited(&self, call: &str, answer: impl Future<Output = Result<(), Status>>) {
        if let Ok(answer) = tokio::time::timeout(10 * UNREAD_FOR, answer).await {
            add(&self.tally, call, answer.is_ok());
        }
    }

    /// Claims to be a member: many pings, then an incomplete frame.
    pub async fn over_member_frames(self) {
        let mut bytes = BytesMut::from(&MEMBERS_GREETING[..]);
        for id in 1..=MEMBER_REQUESTS {
            let header =
                peer::Header { format: 1, from: 2, to: 1, proof: vec![7; 32].into(), ..Default::default() };
            let kind = Some(peer::peer_request::Kind::Ping(peer::Ping {}));
            frame::encode(&peer::PeerRequest { header: Some(header), format: 1, id, kind }, &mut bytes);
        }
        bytes.put_u32(60 << 20);
        bytes.put_bytes(0x0a, 1 << 20);
        loop {
            let open = join_all((0..AT_ONCE).map(|_| async {
                let mut stream = self.connect().await;
                drop(tokio::time::timeout(UNREAD_FOR, stream.write_all(&bytes)).await);
                stream
            }));
            drop(open.await);
            tokio::time::sleep(PAUSE).await;
        }
    }
}
