//! The checks of `access.rs` over the other protocols: gRPC calls, gRPC streams, and frames.

use std::fmt::Debug;
use std::io;

use bytes::BytesMut;
use futures_util::StreamExt;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_api::v1::{self, answer, operation::Kind};
use lockkeeper_net::frame::{self, GREETING};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::fixture::{Caller, ROOT_TOKEN, SecureNode};
use crate::harness::LONG;

/// A caller's gRPC client.
pub struct Grpc {
    pub client: LockkeeperClient<Channel>,
    token: Option<String>,
}

/// Makes each call and returns its name and result.
macro_rules! each {
    ($grpc:expr, $($call:ident($message:expr)),* $(,)?) => {
        vec![$((stringify!($call), $grpc.client.clone().$call($grpc.request($message)).await.map(|_| ()))),*]
    };
}

impl Grpc {
    pub async fn of(caller: &Caller) -> Grpc {
        let channel = caller.channel().await.unwrap();
        Grpc { client: LockkeeperClient::new(channel), token: caller.token.clone() }
    }

    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        request
    }

    async fn open(&self) -> String {
        let request = v1::OpenSessionRequest { ttl_ms: 60_000, owner: "grpc".into() };
        self.client.clone().open_session(self.request(request)).await.unwrap().into_inner().session
    }

    /// Makes every call of the contract except the stream.
    async fn everything(&self, session: &str) -> Vec<(&'static str, Result<(), Status>)> {
        let (session, lock) = (session.to_owned(), "builds/1".to_owned());
        let quota = v1::Quota { namespace: "builds".into(), locks: Some(1), ..Default::default() };
        each!(
            self,
            open_session(v1::OpenSessionRequest { ttl_ms: 1_000, owner: String::new() }),
            keep_alive(v1::KeepAliveRequest { session: session.clone() }),
            close_session(v1::CloseSessionRequest { session: session.clone() }),
            acquire(acquire(&session, &lock)),
            acquire_all(acquire_all(&session, &[&lock])),
            release(release(&session, &lock, 1)),
            cancel(v1::CancelRequest { session: session.clone(), request: "r".into() }),
            get_lock(v1::GetLockRequest { lock: lock.clone() }),
            list_locks(v1::ListLocksRequest::default()),
            check_token(v1::CheckTokenRequest { lock: lock.clone(), token: 1, ..Default::default() }),
            force_release(v1::ForceReleaseRequest { lock: lock.clone(), reason: "x".into() }),
            get_history(v1::GetHistoryRequest { lock: lock.clone(), ..Default::default() }),
            get_audit(v1::GetAuditRequest::default()),
            get_top(v1::GetTopRequest::default()),
            get_wait_graph(v1::GetWaitGraphRequest::default()),
            put_value(v1::PutValueRequest { key: "k".into(), ..Default::default() }),
            get_value(v1::GetValueRequest { key: "k".into() }),
            delete_value(v1::DeleteValueRequest { key: "k".into(), ..Default::default() }),
            campaign(campaign(&session)),
            resign(v1::ResignRequest { session: session.clone(), election: "e".into(), epoch: 1 }),
            hand_over(hand_over(&session)),
            get_election(v1::GetElectionRequest { election: "e".into() }),
            observe_election(v1::ObserveElectionRequest { election: "e".into(), ..Default::default() }),
            take_rate(take_rate("l")),
            status(v1::StatusRequest {}),
            list_members(v1::ListMembersRequest {}),
            add_member(v1::AddMemberRequest { node_id: 9, address: "127.0.0.1:1".into() }),
            remove_member(v1::RemoveMemberRequest { node_id: 1 }),
            get_access(v1::GetAccessRequest {}),
            grant_access(v1::GrantAccessRequest { identity: "eve".into(), ..Default::default() }),
            revoke_access(v1::RevokeAccessRequest { identity: "ci".into(), prefix: String::new() }),
            create_access_token(v1::CreateAccessTokenRequest { identity: "eve".into() }),
            revoke_access_token(v1::RevokeAccessTokenRequest { id: "0".into() }),
            set_quota(v1::SetQuotaRequest { quota: Some(quota) }),
            save_snapshot(v1::SaveSnapshotRequest {}),
        )
    }

    /// Sends operations on a stream and waits for all answers; their codes, or the status that ended the stream.
    async fn stream(&self, kinds: Vec<Kind>) -> Result<Vec<answer::Kind>, Status> {
        let count = kinds.len();
        let sent = futures_util::stream::iter([frame_of(kinds)]).chain(futures_util::stream::pending());
        let mut answers = self.client.clone().stream(self.request(sent)).await?.into_inner();
        let mut found = Vec::new();
        while found.len() < count {
            let frame = timeout(LONG, answers.message()).await.expect("an answer")?.expect("a frame");
            found.extend(frame.answers);
        }
        Ok(sorted(found))
    }
}

/// The same over frames, after authentication.
pub async fn frames(caller: &Caller, kinds: Vec<Kind>) -> io::Result<Vec<answer::Kind>> {
    let mut stream = caller.credentials().connect(&caller.address, None, |_| Ok(())).await?;
    let mut bytes = BytesMut::from(&GREETING[..]);
    let token = caller.token.clone().map(|token| Kind::Authenticate(v1::AuthenticateRequest { token }));
    let kinds: Vec<_> = token.into_iter().chain(kinds).collect();
    let count = kinds.len();
    frame::encode(&frame_of(kinds), &mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    stream.read_exact(&mut [0; GREETING.len()]).await?;
    let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
    while found.len() < count {
        match frame::decode::<v1::ServerFrame>(&mut buffer, 1 << 20).unwrap() {
            Some(frame) => found.extend(frame.answers),
            None => {
                let mut more = [0; 4096];
                let read = timeout(LONG, stream.read(&mut more)).await.expect("an answer")?;
                assert!(read > 0, "the node has hung up");
                buffer.extend_from_slice(&more[..read]);
            }
        }
    }
    let mut answers = sorted(found);
    if caller.token.is_some() {
        let shown = answers.remove(0);
        assert!(matches!(shown, answer::Kind::Done(_)), "{shown:?}");
    }
    Ok(answers)
}

pub fn frame_of(kinds: Vec<Kind>) -> v1::ClientFrame {
    let numbered = kinds.into_iter().enumerate();
    let operations = numbered.map(|(at, kind)| v1::Operation { id: at as u64 + 1, kind: Some(kind) });
    v1::ClientFrame { operations: operations.collect() }
}

fn sorted(mut answers: Vec<v1::Answer>) -> Vec<answer::Kind> {
    answers.sort_by_key(|answer| answer.id);
    answers.into_iter().map(|answer| answer.kind.unwrap()).collect()
}

fn acquire(session: &str, lock: &str) -> v1::AcquireRequest {
    v1::AcquireRequest {
        session: session.into(),
        lock: lock.into(),
        request: lock.into(),
        ..Default::default()
    }
}

fn acquire_all(session: &str, locks: &[&str]) -> v1::AcquireAllRequest {
    let locks = locks.iter().map(|lock| (*lock).to_owned()).collect();
    v1::AcquireAllRequest { session: session.into(), locks, request: "all".into(), ..Default::default() }
}

fn release(session: &str, lock: &str, token: u64) -> v1::ReleaseRequest {
    v1::ReleaseRequest { session: session.into(), lock: lock.into(), token, forget: false }
}

fn campaign(session: &str) -> v1::CampaignRequest {
    let (session, request) = (session.to_owned(), "c".to_owned());
    v1::CampaignRequest { session, election: "e".into(), value: "v".into(), request, ..Default::default() }
}

fn hand_over(session: &str) -> v1::HandOverRequest {
    v1::HandOverRequest { session: session.into(), election: "e".into(), epoch: 1, to: "v".into() }
}

fn take_rate(limiter: &str) -> v1::TakeRateRequest {
    v1::TakeRateRequest { limiter: limiter.into(), rate_per_s: 1.0, burst: 1, permits: 1 }
}

fn put(key: &str) -> v1::PutValueRequest {
    v1::PutValueRequest { key: key.into(), value: b"x".to_vec(), ..Default::default() }
}

#[track_caller]
fn refused<T: Debug>(what: &str, answer: Result<T, Status>, code: Code, word: &str) {
    let Err(status) = answer else { panic!("{what} is answered: {answer:?}") };
    let said = status.metadata().get("lockkeeper-code").map(|word| word.to_str().unwrap());
    assert_eq!((status.code(), said), (code, Some(word)), "{what}: {status:?}");
}

#[track_caller]
fn all_refused(answers: Vec<answer::Kind>, word: &str) {
    for answer in answers {
        match &answer {
            answer::Kind::Error(error) => assert_eq!(error.code, word, "{answer:?}"),
            // For unknown sessions the remaining TTL is zero.
            answer::Kind::KeepAlive(renewed) => assert_eq!(renewed.ttl_ms, [0], "{answer:?}"),
            _ => panic!("{word} was expected: {answer:?}"),
        }
    }
}

#[tokio::test]
async fn missing_or_invalid_token_is_unauthenticated() {
    let secure = SecureNode::start().await;
    let real = secure.caller_with("ci", "", &["admin"]).await;
    let session = Grpc::of(&real).await.open().await;
    let shorter = &real.token.clone().unwrap()[1..];
    let asked = || {
        vec![
            Kind::OpenSession(v1::OpenSessionRequest { ttl_ms: 1_000, owner: String::new() }),
            Kind::Acquire(acquire(&session, "builds/1")),
            Kind::Attach(v1::AttachRequest { session: session.clone() }),
            Kind::GetLock(v1::GetLockRequest { lock: "builds/1".into() }),
            Kind::PutValue(put("k")),
            Kind::ForceRelease(v1::ForceReleaseRequest { lock: "builds/1".into(), reason: "x".into() }),
            Kind::GetAudit(v1::GetAuditRequest::default()),
            Kind::Status(v1::StatusRequest {}),
        ]
    };
    let nobody = Grpc::of(&secure.anonymous()).await;
    for (what, answer) in nobody.everything(&session).await {
        refused(what, answer, Code::Unauthenticated, "unauthenticated");
    }
    refused("a stream", nobody.stream(asked()).await, Code::Unauthenticated, "unauthenticated");
    all_refused(frames(&secure.anonymous(), asked()).await.unwrap(), "unauthenticated");
    for token in ["x", "lk_0_0", ROOT_TOKEN.split_at(10).0, shorter] {
        let mistaken = Grpc::of(&secure.anonymous().token(token)).await;
        let status = mistaken.client.clone().status(mistaken.request(v1::StatusRequest {})).await;
        refused(token, status.map(Response::into_inner), Code::Unauthenticated, "unauthenticated");
        refused(token, mistaken.stream(asked()).await, Code::Unauthenticated, "unauthenticated");
    }
    let known = Grpc::of(&real).await;
    known.client.clone().status(known.request(v1::StatusRequest {})).await.unwrap();
}

#[tokio::test]
async fn rule_is_limited_to_its_prefix() {
    let secure = SecureNode::start().await;
    let ci = secure.caller_with("ci", "builds/", &["acquire"]).await;
    let grpc = Grpc::of(&ci).await;
    let session = grpc.open().await;
    grpc.client.clone().acquire(grpc.request(acquire(&session, "builds/1"))).await.unwrap();
    let forbidden = each!(
        grpc,
        acquire(acquire(&session, "orders/1")),
        acquire_all(acquire_all(&session, &["builds/2", "orders/1"])),
        get_lock(v1::GetLockRequest { lock: "orders/1".into() }),
        list_locks(v1::ListLocksRequest { prefix: "build".into(), ..Default::default() }),
        force_release(v1::ForceReleaseRequest { lock: "builds/1".into(), reason: "x".into() }),
        put_value(put("orders/v")),
        get_value(v1::GetValueRequest { key: "orders/v".into() }),
        campaign(campaign(&session)),
        take_rate(take_rate("orders/l")),
        get_audit(v1::GetAuditRequest::default()),
        get_access(v1::GetAccessRequest {}),
        grant_access(v1::GrantAccessRequest { identity: "ci".into(), ..Default::default() }),
        create_access_token(v1::CreateAccessTokenRequest { identity: "boss".into() }),
        remove_member(v1::RemoveMemberRequest { node_id: 1 }),
        save_snapshot(v1::SaveSnapshotRequest {}),
    );
    for (what, answer) in forbidden {
        refused(what, answer, Code::PermissionDenied, "forbidden");
    }
    let asked = || {
        vec![
            Kind::Acquire(acquire(&session, "orders/1")),
            Kind::AcquireAll(acquire_all(&session, &["builds/2", "orders/1"])),
            Kind::GetLock(v1::GetLockRequest { lock: "orders/1".into() }),
            Kind::PutValue(put("orders/v")),
            Kind::TakeRate(take_rate("orders/l")),
            Kind::ForceRelease(v1::ForceReleaseRequest { lock: "builds/1".into(), reason: "x".into() }),
            Kind::GetTop(v1::GetTopRequest::default()),
        ]
    };
    all_refused(grpc.stream(asked()).await.unwrap(), "forbidden");
    all_refused(frames(&ci, asked()).await.unwrap(), "forbidden");
    let held = secure.root().read("/v1/locks").await.ok();
    let names: Vec<_> = held["locks"].as_array().unwrap().iter().map(|lock| &lock["lock"]).collect();
    assert_eq!(names, ["builds/1"], "a forbidden request took effect");
}

#[tokio::test]
async fn session_of_another_identity_is_reported_as_lost() {
    let secure = SecureNode::start().await;
    let (ada, eve) = (
        secure.caller_with("ada", "", &["acquire"]).await,
        secure.caller_with("eve", "", &["acquire"]).await,
    );
    let own = Grpc::of(&ada).await;
    let session = own.open().await;
    let grant = own.client.clone().acquire(own.request(acquire(&session, "a"))).await.unwrap().into_inner();
    let before = secure.refusal_count("another_session").await;
    let grpc = Grpc::of(&eve).await;
    let lost = each!(
        grpc,
        keep_alive(v1::KeepAliveRequest { session: session.clone() }),
        close_session(v1::CloseSessionRequest { session: session.clone() }),
        acquire(acquire(&session, "b")),
        acquire_all(acquire_all(&session, &["b", "c"])),
        release(release(&session, "a", grant.token)),
        cancel(v1::CancelRequest { session: session.clone(), request: "a".into() }),
        campaign(campaign(&session)),
        resign(v1::ResignRequest { session: session.clone(), election: "e".into(), epoch: 1 }),
        hand_over(hand_over(&session)),
    );
    let calls = lost.len();
    for (what, answer) in lost {
        refused(what, answer, Code::NotFound, "session_lost");
    }
    assert_eq!(
        secure.refusal_count("another_session").await - before,
        calls as f64,
        "not every refusal was counted"
    );
    let asked = || {
        vec![
            Kind::Attach(v1::AttachRequest { session: session.clone() }),
            Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![session.clone()] }),
            Kind::Acquire(acquire(&session, "b")),
            Kind::AcquireAll(acquire_all(&session, &["b", "c"])),
            Kind::Release(release(&session, "a", grant.token)),
            Kind::Cancel(v1::CancelRequest { session: session.clone(), request: "a".into() }),
            Kind::HandOver(hand_over(&session)),
            Kind::CloseSession(v1::CloseSessionRequest { session: session.clone() }),
        ]
    };
    all_refused(grpc.stream(asked()).await.unwrap(), "session_lost");
    for stranger in [&eve, &secure.root()] {
        all_refused(frames(stranger, asked()).await.unwrap(), "session_lost");
    }
    // Its own identity finds it unchanged.
    let attached = frames(&ada, vec![Kind::Attach(v1::AttachRequest { session: session.clone() })]).await;
    let attached = attached.unwrap().remove(0);
    let answer::Kind::Attach(found) = attached else { panic!("{attached:?}") };
    assert_eq!(found.grants.iter().map(|grant| grant.token).collect::<Vec<_>>(), [grant.token]);
    own.client.clone().release(own.request(release(&session, "a", grant.token))).await.unwrap();
}
