//! Attacks of the adversary on each protocol.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use futures_util::StreamExt;
use futures_util::future::join_all;
use lockkeeper_api::v1;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_net::frame::{self, GREETING};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::transport::Channel;

use super::operations::{self, CROWDED, VALUE, acquire, acquire_all, long};
use crate::fixture::Caller;
use crate::http2;

/// How long a connection with unread answers lasts.
const UNREAD_FOR: Duration = Duration::from_secs(1);
/// Concurrent requests on one HTTP/2 connection.
const STREAMS: u32 = 100;
/// Console pages that one identity may open.
const PAGES: usize = 64;
/// Connections with incomplete large messages.
const UNFINISHED: usize = 200;

/// An attacker with ordinary rights: all locks and values, no administration.
#[derive(Clone)]
pub struct Adversary {
    pub caller: Caller,
    pub session: String,
}

impl Adversary {
    /// Attacks all protocols at once.
    pub fn attack(&self, tasks: &mut JoinSet<()>) {
        for reads in [true, false, false] {
            tasks.spawn(self.clone().over_frames(reads));
        }
        tasks.spawn(self.clone().over_grpc_stream());
        tasks.spawn(self.clone().over_grpc());
        tasks.spawn(self.clone().over_http());
        for window in [0, 1 << 20] {
            tasks.spawn(self.clone().over_http2(window));
        }
        for reads in [true, false] {
            tasks.spawn(self.clone().over_console(reads));
        }
    }

    /// Exhausts the budget of its identity. Uses a separate identity, so that the reads of the other one stay expensive.
    pub fn exhaust_budget(&self, tasks: &mut JoinSet<()>) {
        tasks.spawn(self.clone().with_unfinished_messages());
    }

    fn token(&self) -> &str {
        self.caller.token.as_deref().unwrap_or_default()
    }

    async fn connect(&self) -> TcpStream {
        loop {
            match TcpStream::connect(&self.caller.address).await {
                Ok(stream) => return stream,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    async fn over_frames(self, reads: bool) {
        for round in 0.. {
            let mut stream = self.connect().await;
            let mut bytes = BytesMut::from(&GREETING[..]);
            frame::encode(&operations::frame(&self.session, self.token(), round), &mut bytes);
            drop(stream.write_all(&bytes).await);
            drop(tokio::time::timeout(UNREAD_FOR, drain(&mut stream, reads)).await);
        }
    }

    async fn over_grpc_stream(self) {
        for round in 0.. {
            let Ok(channel) = self.caller.channel().await else { continue };
            let mut node = self.client(channel);
            let frame = operations::frame(&self.session, self.token(), round);
            let frames = futures_util::stream::iter([frame]).chain(futures_util::stream::pending());
            let Ok(answers) = node.stream(self.request(frames)).await else { continue };
            let mut answers = answers.into_inner();
            let read = async { while answers.message().await.is_ok_and(|frame| frame.is_some()) {} };
            drop(tokio::time::timeout(UNREAD_FOR, read).await);
        }
    }

    fn client(&self, channel: Channel) -> LockkeeperClient<Channel> {
        LockkeeperClient::new(channel).max_decoding_message_size(64 << 20)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", format!("Bearer {}", self.token()).parse().unwrap());
        request.set_timeout(Duration::from_secs(2));
        request
    }

    async fn over_grpc(self) {
        let channel = self.caller.channel().await.unwrap();
        for round in 0.. {
            join_all((0..4).map(|number| self.every_call(channel.clone(), 4 * round + number))).await;
        }
    }

    /// Makes every call of the contract; administrators' calls are refused.
    async fn every_call(&self, channel: Channel, round: u64) {
        let node = self.client(channel);
        let session = self.session.clone();
        macro_rules! each {
            ($($call:ident($message:expr)),* $(,)?) => {
                tokio::join!($(async { drop(node.clone().$call(self.request($message)).await) }),*)
            };
        }
        let election = format!("adversary/{}", round % 10);
        let candidate = "candidate".repeat(400);
        each!(
            open_session(v1::OpenSessionRequest { ttl_ms: 1_000, owner: "o".repeat(500) }),
            keep_alive(v1::KeepAliveRequest { session: session.clone() }),
            close_session(v1::CloseSessionRequest { session: "0".repeat(32) }),
            acquire(v1::AcquireRequest { wait_ms: 1_000, ..acquire(&session, CROWDED) }),
            acquire_all(v1::AcquireAllRequest {
                wait_forever: false,
                request: String::new(),
                ..acquire_all(&session, round, "detect")
            }),
            release(v1::ReleaseRequest {
                session: session.clone(),
                lock: CROWDED.into(),
                token: 1,
                forget: true
            }),
            cancel(v1::CancelRequest { session: session.clone(), request: "none".into() }),
            get_lock(v1::GetLockRequest { lock: CROWDED.into() }),
            list_locks(v1::ListLocksRequest { limit: 1_000, ..Default::default() }),
            check_token(v1::CheckTokenRequest { lock: CROWDED.into(), token: 1, ..Default::default() }),
            force_release(v1::ForceReleaseRequest {
                lock: long("forced", round % 50),
                reason: "r".repeat(1_000)
            }),
            get_history(v1::GetHistoryRequest { lock: CROWDED.into(), ..Default::default() }),
            get_audit(v1::GetAuditRequest { limit: u32::MAX }),
            get_top(v1::GetTopRequest { limit: u32::MAX }),
            get_wait_graph(v1::GetWaitGraphRequest::default()),
            put_value(v1::PutValueRequest {
                key: format!("adversary/{}", round % 16),
                value: vec![1; 60 << 10],
                ..Default::default()
            }),
            get_value(v1::GetValueRequest { key: VALUE.into() }),
            delete_value(v1::DeleteValueRequest { key: "adversary/none".into(), ..Default::default() }),
            campaign(v1::CampaignRequest {
                session: session.clone(),
                election: election.clone(),
                value: candidate.clone(),
                wait_ms: 1_000,
                ..Default::default()
            }),
            resign(v1::ResignRequest { session: session.clone(), election: election.clone(), epoch: 1 }),
            hand_over(v1::HandOverRequest {
                session: session.clone(),
                election: election.clone(),
                epoch: 1,
                to: candidate.clone()
            }),
            get_election(v1::GetElectionRequest { election: "adversary/0".into() }),
            observe_election(v1::ObserveElectionRequest {
                election: long("observed", round),
                ..Default::default()
            }),
            take_rate(v1::TakeRateRequest {
                limiter: long("rate", round),
                rate_per_s: 1.0,
                burst: 1,
                ..Default::default()
            }),
            status(v1::StatusRequest {}),
            list_members(v1::ListMembersRequest {}),
            add_member(v1::AddMemberRequest { node_id: 2, address: self.caller.address.clone() }),
            remove_member(v1::RemoveMemberRequest { node_id: 1 }),
            get_access(v1::GetAccessRequest {}),
            enable_access(v1::EnableAccessRequest { identity: "adversary".into() }),
            grant_access(v1::GrantAccessRequest {
                identity: "adversary".into(),
                prefix: String::new(),
                rights: vec!["admin".into()]
            }),
            revoke_access(v1::RevokeAccessRequest { identity: "victim".into(), prefix: String::new() }),
            create_access_token(v1::CreateAccessTokenRequest { identity: "victim".into() }),
            revoke_access_token(v1::RevokeAccessTokenRequest { id: "0".repeat(12) }),
            set_quota(v1::SetQuotaRequest::default()),
            save_snapshot(v1::SaveSnapshotRequest {}),
        );
    }

    async fn over_http(self) {
        loop {
            for path in READS {
                drop(self.caller.get(path).await);
            }
            let session = &self.session;
            for (path, body) in [
                ("/v1/session/open", json!({"ttl_ms": 1_000, "owner": "o".repeat(500)})),
                ("/v1/session/keepalive", json!({"session": session})),
                ("/v1/lock/acquire", json!({"session": session, "lock": CROWDED, "wait_ms": 100})),
                ("/v1/lock/acquire_all", json!({"session": session, "locks": vec![long("all", 1); 120]})),
                ("/v1/lock/release", json!({"session": session, "lock": CROWDED, "token": 1})),
                ("/v1/lock/force_release", json!({"lock": long("forced", 1), "reason": "r".repeat(1_000)})),
                ("/v1/token/check", json!({"lock": CROWDED, "token": 1})),
                ("/v1/value/put", json!({"key": VALUE, "value": "\u{e9}".repeat(30_000)})),
                ("/v1/value/delete", json!({"key": "adversary/none"})),
                (
                    "/v1/election/campaign",
                    json!({"session": session, "election": "adversary/0", "value": "v"}),
                ),
                ("/v1/election/resign", json!({"session": session, "election": "adversary/0", "epoch": 1})),
                ("/v1/rate/take", json!({"limiter": long("rate", 1), "rate_per_s": 1, "burst": 1})),
                ("/v1/access/token/create", json!({"identity": "victim"})),
                ("/v1/member/remove", json!({"node_id": 1})),
            ] {
                drop(self.caller.call("POST", path, &body.to_string()).await);
            }
            // Twice the maximum size of a body.
            drop(self.caller.call("POST", "/v1/value/put", &"[".repeat(512 << 10)).await);
        }
    }

    /// The maximum number of requests on a connection, with or without a window for the answers.
    async fn over_http2(self, window: u32) {
        loop {
            let mut stream = http2::connect(&self.caller.address, window).await;
            let paths = READS.iter().cycle().take(STREAMS as usize);
            http2::send_requests(&mut stream, &self.caller, paths.copied()).await;
            drop(tokio::time::timeout(UNREAD_FOR, drain(&mut stream, window > 0)).await);
        }
    }

    /// Console pages that watch all views.
    async fn over_console(self, reads: bool) {
        let views =
            ["graph", "top", "locks", "sessions", "elections", "audit", "cell", "sessions&owner=nobody"];
        loop {
            join_all(views.iter().cycle().take(PAGES).map(|view| self.watch(view, reads))).await;
        }
    }

    async fn watch(&self, view: &str, reads: bool) {
        let mut stream = self.connect().await;
        let head = format!(
            "GET /console/events?view={view} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
            self.token()
        );
        drop(stream.write_all(head.as_bytes()).await);
        drop(tokio::time::timeout(5 * UNREAD_FOR, drain(&mut stream, reads)).await);
    }

    /// Incomplete frames, bodies and gRPC messages.
    async fn with_unfinished_messages(self) {
        let mut frame = BytesMut::from(&GREETING[..]);
        let authenticate =
            v1::operation::Kind::Authenticate(v1::AuthenticateRequest { token: self.token().into() });
        let operations = vec![v1::Operation { id: 1, kind: Some(authenticate) }];
        frame::encode(&v1::ClientFrame { operations }, &mut frame);
        frame.put_u32(4 << 20);
        frame.put_bytes(0x0a, 1 << 20);
        let mut body = BytesMut::from(
            format!(
                "POST /v1/value/put HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 262144\r\n\r\n",
                self.token()
            )
            .as_bytes(),
        );
        body.put_bytes(b' ', 200 << 10);
        loop {
            let mut open = Vec::new();
            for number in 0..UNFINISHED {
                let mut stream = self.connect().await;
                let bytes = if number % 2 == 0 { &frame } else { &body };
                let send = stream.write_all(bytes);
                drop(tokio::time::timeout(UNREAD_FOR, send).await);
                open.push(stream);
                let mut stream = http2::connect(&self.caller.address, 1 << 16).await;
                http2::send_partial_messages(&mut stream, &self.caller, 4, 100 << 10).await;
                open.push(stream);
            }
            tokio::time::sleep(5 * UNREAD_FOR).await;
        }
    }
}

const READS: [&str; 15] = [
    "/v1/locks?limit=1000",
    "/v1/lock?name=adversary/crowded",
    "/v1/graph",
    "/v1/top?limit=100",
    "/v1/sessions?limit=1000",
    "/v1/sessions?limit=1000&owner=nobody",
    "/v1/history?name=adversary/crowded",
    "/v1/audit?limit=1000000",
    "/v1/value?key=adversary/value",
    "/v1/election?name=adversary/0",
    "/v1/status",
    "/v1/members",
    "/v1/snapshot",
    "/v1/access",
    "/metrics",
];

/// Reads all answers, or none, until cancelled.
async fn drain(stream: &mut TcpStream, reads: bool) {
    let mut buffer = vec![0; 1 << 16];
    while reads && stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    if !reads {
        std::future::pending::<()>().await;
    }
}
