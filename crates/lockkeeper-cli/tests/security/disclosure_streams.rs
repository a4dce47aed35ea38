//! What `disclosure.rs` checks over HTTP, over gRPC and over frames.

use std::fmt::Debug;

use bytes::BytesMut;
use http_body_util::{BodyExt, Full};
use lockkeeper_api::v1::{self, answer, event, operation::Kind};
use lockkeeper_net::frame::{self, GREETING};
use lockkeeper_net::net::Stream;
use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tonic::Code;
use tower_service::Service;

use crate::fixture::{Caller, SecureNode};
use crate::grpc::{Grpc, frame_of, frames};
use crate::harness::{LONG, until};

/// A connection with frames.
struct Frames {
    stream: Stream,
    buffer: BytesMut,
}

impl Frames {
    /// Connects and authenticates.
    async fn open(caller: &Caller) -> Frames {
        let mut stream = caller.credentials().connect(&caller.address, None, |_| Ok(())).await.unwrap();
        stream.write_all(GREETING).await.unwrap();
        stream.flush().await.unwrap();
        stream.read_exact(&mut [0; GREETING.len()]).await.unwrap();
        let mut frames = Frames { stream, buffer: BytesMut::new() };
        let token = caller.token.clone().unwrap();
        let shown = frames.call(Kind::Authenticate(v1::AuthenticateRequest { token })).await;
        assert!(matches!(shown, answer::Kind::Done(_)), "{shown:?}");
        frames
    }

    async fn send(&mut self, kind: Kind) {
        let mut bytes = BytesMut::new();
        frame::encode(&frame_of(vec![kind]), &mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next frame; `None` at the end of the stream.
    async fn next(&mut self) -> Option<v1::ServerFrame> {
        loop {
            if let Some(frame) = frame::decode(&mut self.buffer, 1 << 20).unwrap() {
                return Some(frame);
            }
            let mut bytes = [0; 4096];
            match timeout(LONG, self.stream.read(&mut bytes)).await.expect("a frame or the end") {
                Ok(read) if read > 0 => self.buffer.extend_from_slice(&bytes[..read]),
                _ => return None,
            }
        }
    }

    async fn call(&mut self, kind: Kind) -> answer::Kind {
        self.send(kind).await;
        self.answer().await
    }

    async fn answer(&mut self) -> answer::Kind {
        loop {
            let mut frame = self.next().await.expect("an answer");
            if let Some(answer) = frame.answers.pop() {
                return answer.kind.unwrap();
            }
        }
    }
}

fn acquire(session: &str, lock: &str, scope: &str, policy: &str, wait_ms: u64) -> v1::AcquireRequest {
    v1::AcquireRequest {
        session: session.into(),
        lock: lock.into(),
        scope: scope.into(),
        policy: policy.into(),
        wait_ms,
        request: format!("{scope}-{lock}-{policy}"),
        ..Default::default()
    }
}

async fn open_session(caller: &Caller, owner: &str) -> String {
    let opened = caller.post("/v1/session/open", json!({"ttl_ms": 60_000, "owner": owner})).await.ok();
    opened["session"].as_str().unwrap().to_owned()
}

/// A caller with the right to acquire names with these prefixes.
async fn caller_with(secure: &SecureNode, identity: &str, prefixes: [&str; 2]) -> Caller {
    secure.grant(identity, prefixes[1], &["acquire"]).await;
    secure.caller_with(identity, prefixes[0], &["acquire"]).await
}

/// Everything in an error over gRPC, and the same request over frames.
async fn refusals(caller: &Caller, request: v1::AcquireRequest, code: &str) -> [String; 2] {
    let grpc = Grpc::of(caller).await;
    let refused = grpc.client.clone().acquire(grpc.request(request.clone())).await.unwrap_err();
    let said = refused.metadata().get("lockkeeper-code").map(|word| word.to_str().unwrap());
    assert_eq!(said, Some(code), "{refused:?}");
    let details = String::from_utf8_lossy(refused.details()).into_owned();
    let metadata = refused.metadata().clone().into_headers();
    let over_grpc = format!("{refused:?} {details} {metadata:?}");
    let answers = frames(caller, vec![Kind::Acquire(request)]).await.unwrap();
    let [answer::Kind::Error(error)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(error.code, code, "{error:?}");
    [over_grpc, format!("{error:?}")]
}

/// ada waits for bert, bert for ada in another lock, and carl is between them.
#[tokio::test]
async fn deadlock_error_names_only_readable_locks_over_grpc_and_frames() {
    let secure = SecureNode::start().await;
    let ada = caller_with(&secure, "ada", ["ada/", "shared/"]).await;
    let bert = caller_with(&secure, "bert", ["bert/", "shared/"]).await;
    let carl = caller_with(&secure, "carl", ["bert/", "shared/"]).await;
    let (of_ada, of_bert, of_carl) = (
        open_session(&ada, "owner-ada").await,
        open_session(&bert, "owner-bert").await,
        open_session(&carl, "owner-carl").await,
    );
    let held = [
        (&ada, &of_ada, "sa", "shared/1"),
        (&bert, &of_bert, "sb", "bert/secret"),
        (&carl, &of_carl, "sc", "shared/2"),
    ];
    for (caller, session, scope, lock) in held {
        let grpc = Grpc::of(caller).await;
        grpc.client.clone().acquire(grpc.request(acquire(session, lock, scope, "", 0))).await.unwrap();
    }
    let mut waiting = tokio::task::JoinSet::new();
    for (caller, session, scope, lock) in
        [(&bert, &of_bert, "sb", "shared/1"), (&carl, &of_carl, "sc", "bert/secret")]
    {
        let (grpc, request) = (Grpc::of(caller).await, acquire(session, lock, scope, "", 60_000));
        waiting.spawn(async move { grpc.client.clone().acquire(grpc.request(request)).await });
    }
    let root = secure.root();
    until("both to wait", async || {
        let waits = async |lock: &str| root.read(&format!("/v1/lock?name={lock}")).await.ok()["waiting"] == 1;
        (waits("shared/1").await && waits("bert%2Fsecret").await).then_some(())
    })
    .await;
    let request = acquire(&of_ada, "shared/2", "sa", "", 60_000);
    for text in refusals(&ada, request, "deadlock").await {
        assert!(!text.contains("bert/secret") && !text.contains("owner-carl"), "{text}");
        assert!(text.contains("shared/2") && text.contains("hidden"), "{text}");
        for session in [&of_bert, &of_carl] {
            assert!(!text.contains(&session[..16]), "{text}");
        }
    }
}

/// A younger scope does not wait for an older one: the error names the older scope's owner, and nothing else of it.
#[tokio::test]
async fn died_error_discloses_only_the_owner_over_grpc_and_frames() {
    let secure = SecureNode::start().await;
    let ada = caller_with(&secure, "ada", ["ada/", "shared/"]).await;
    let bert = caller_with(&secure, "bert", ["bert/", "shared/"]).await;
    let of_bert = open_session(&bert, "owner-bert").await;
    let grpc = Grpc::of(&bert).await;
    for lock in ["bert/secret", "shared/1"] {
        let request = acquire(&of_bert, lock, "scope-bert", "wait_die", 0);
        grpc.client.clone().acquire(grpc.request(request)).await.unwrap();
    }
    let of_ada = open_session(&ada, "owner-ada").await;
    let request = acquire(&of_ada, "shared/1", "scope-ada", "wait_die", 60_000);
    for text in refusals(&ada, request, "died").await {
        assert!(text.contains("owner-bert"), "{text}");
        assert!(!text.contains("bert/secret") && !text.contains(&of_bert[..16]), "{text}");
    }
}

async fn revoke_token(secure: &SecureNode, caller: &Caller) {
    let token = caller.token.as_deref().unwrap().split('_').nth(1).unwrap().to_owned();
    secure.root().post("/v1/access/token/revoke", json!({"id": token})).await.ok();
}

/// Makes a leader whose value must not be disclosed.
async fn elect(secure: &SecureNode) {
    let root = secure.root();
    let body = json!({"session": root.session().await, "election": "e", "value": "secret-leader"});
    root.post("/v1/election/campaign", body).await.ok();
}

#[tokio::test]
async fn observers_end_after_revocation_over_grpc_and_frames() {
    let secure = SecureNode::start().await;
    let ada = secure.caller_with("ada", "", &["read"]).await;
    let bert = secure.caller_with("bert", "", &["read"]).await;
    let election = || "e".to_owned();
    let (mut by_grpc, mut by_frames) = (Vec::new(), Vec::new());
    for (caller, code, word) in
        [(&ada, Code::Unauthenticated, "unauthenticated"), (&bert, Code::PermissionDenied, "forbidden")]
    {
        let grpc = Grpc::of(caller).await;
        let request = v1::ObserveElectionRequest { election: election(), ..Default::default() };
        let mut seen =
            grpc.client.clone().observe_election(grpc.request(request)).await.unwrap().into_inner();
        assert!(timeout(LONG, seen.message()).await.expect("the first event").unwrap().is_some());
        by_grpc.push((seen, code));
        let mut frames = Frames::open(caller).await;
        let request = v1::ObserveElectionRequest { election: election(), known_epoch: Some(0), wait_ms: 0 };
        frames.send(Kind::ObserveElection(request)).await;
        // The answer to a later operation shows that the observer is registered.
        let status = frames.call(Kind::Status(v1::StatusRequest {})).await;
        assert!(matches!(status, answer::Kind::Status(_)), "{status:?}");
        by_frames.push((frames, word));
    }
    revoke_token(&secure, &ada).await;
    secure.root().post("/v1/access/revoke", json!({"identity": "bert", "prefix": ""})).await.ok();
    elect(&secure).await;
    for (mut seen, code) in by_grpc {
        let ended = timeout(LONG, seen.message()).await.expect("it ends");
        assert_eq!(ended.as_ref().err().map(tonic::Status::code), Some(code), "{ended:?}");
        assert!(!format!("{ended:?}").contains("secret-leader"), "{ended:?}");
    }
    for (mut frames, word) in by_frames {
        let answer = frames.answer().await;
        let answer::Kind::Error(error) = &answer else { panic!("{answer:?}") };
        assert_eq!(error.code, word, "{error:?}");
        assert!(!format!("{answer:?}").contains("secret-leader"), "{answer:?}");
    }
}

/// Events about the sessions of a caller are pushed to its stream, but not after its token was revoked.
#[tokio::test]
async fn event_streams_end_after_revocation_over_grpc_and_frames() {
    let secure = SecureNode::start().await;
    let ada = secure.caller_with("ada", "", &["acquire"]).await;
    let [over_grpc, over_frames] = [open_session(&ada, "g").await, open_session(&ada, "f").await];
    let attach = |session: &str| Kind::Attach(v1::AttachRequest { session: session.to_owned() });
    let hold = |session: &str, lock: &str| Kind::Acquire(acquire(session, lock, "s", "", 0));
    let grpc = Grpc::of(&ada).await;
    let (sender, sent) = tokio::sync::mpsc::channel(4);
    let sent = futures_util::stream::unfold(sent, |mut sent| async move { Some((sent.recv().await?, sent)) });
    sender.send(frame_of(vec![attach(&over_grpc), hold(&over_grpc, "g")])).await.unwrap();
    let mut stream = grpc.client.clone().stream(grpc.request(sent)).await.unwrap().into_inner();
    let mut answers = 0;
    while answers < 2 {
        answers += timeout(LONG, stream.message()).await.expect("answers").unwrap().unwrap().answers.len();
    }
    let mut frames = Frames::open(&ada).await;
    for kind in [attach(&over_frames), hold(&over_frames, "f")] {
        let answer = frames.call(kind).await;
        assert!(!matches!(answer, answer::Kind::Error(_)), "{answer:?}");
    }
    revoke_token(&secure, &ada).await;
    for lock in ["g", "f"] {
        let body = json!({"lock": lock, "reason": "test"});
        secure.root().post("/v1/lock/force_release", body).await.ok();
    }
    let is_lost = |frame: &v1::ServerFrame| {
        frame.events.iter().any(|event| matches!(event.kind, Some(event::Kind::GrantLost(_))))
    };
    while let Some(frame) = frames.next().await {
        assert!(!is_lost(&frame), "an event after the revocation: {frame:?}");
    }
    while let Ok(Some(frame)) = timeout(LONG, stream.message()).await.expect("it ends") {
        assert!(!is_lost(&frame), "an event after the revocation: {frame:?}");
    }
    drop(sender);
}

/// The bytes of the answer to a gRPC call, before any client decodes them.
async fn raw_answer(caller: &Caller, method: &str, message: &impl Message) -> Vec<u8> {
    let mut body = vec![0];
    body.extend((message.encoded_len() as u32).to_be_bytes());
    body.extend(message.encode_to_vec());
    let request = http::Request::builder()
        .method("POST")
        .uri(format!("/lockkeeper.v1.Lockkeeper/{method}"))
        .header("content-type", "application/grpc")
        .header("authorization", format!("Bearer {}", caller.token.as_deref().unwrap()))
        .body(tonic::body::Body::new(Full::new(bytes::Bytes::from(body))))
        .unwrap();
    let mut channel = caller.channel().await.unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let answer = timeout(LONG, channel.call(request)).await.unwrap().unwrap();
    let mut seen = format!("{:?}", answer.headers()).into_bytes();
    let collected = timeout(LONG, answer.into_body().collect()).await.unwrap().unwrap();
    seen.extend(format!("{:?}", collected.trailers()).into_bytes());
    seen.extend(collected.to_bytes());
    seen
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// A whole session id is a secret: whoever has it and the same identity can release its locks.
#[tokio::test]
async fn grpc_answers_and_frames_show_only_the_first_digits_of_a_session() {
    let secure = SecureNode::start().await;
    let ada = secure.caller_with("ada", "", &["acquire"]).await;
    let (session, waits) = (open_session(&ada, "holder").await, open_session(&ada, "waiter").await);
    ada.acquire(&session, "a").await.ok();
    let body = json!({"session": session, "election": "e", "value": "v"});
    ada.post("/v1/election/campaign", body).await.ok();
    let (waiter, body) =
        (ada.clone(), json!({"session": waits, "lock": "a", "wait_ms": 60_000, "request": "r"}));
    let waiting = tokio::spawn(async move { waiter.post("/v1/lock/acquire", body).await });
    until("the waiter", async || {
        let lock: Value = ada.read("/v1/lock?name=a").await.ok();
        (lock["waiting"] == 1).then_some(())
    })
    .await;
    let lock = || "a".to_owned();
    let answers = [
        ("GetLock", raw_answer(&ada, "GetLock", &v1::GetLockRequest { lock: lock() }).await),
        ("ListLocks", raw_answer(&ada, "ListLocks", &v1::ListLocksRequest::default()).await),
        ("GetHistory", {
            let request = v1::GetHistoryRequest { lock: lock(), ..Default::default() };
            raw_answer(&ada, "GetHistory", &request).await
        }),
        ("GetWaitGraph", raw_answer(&ada, "GetWaitGraph", &v1::GetWaitGraphRequest::default()).await),
        ("GetTop", raw_answer(&ada, "GetTop", &v1::GetTopRequest::default()).await),
        ("GetAudit", raw_answer(&ada, "GetAudit", &v1::GetAuditRequest::default()).await),
        ("GetElection", {
            let request = v1::GetElectionRequest { election: "e".to_owned() };
            raw_answer(&ada, "GetElection", &request).await
        }),
    ];
    let kinds = vec![
        Kind::GetLock(v1::GetLockRequest { lock: lock() }),
        Kind::ListLocks(v1::ListLocksRequest::default()),
        Kind::GetHistory(v1::GetHistoryRequest { lock: lock(), ..Default::default() }),
        Kind::GetWaitGraph(v1::GetWaitGraphRequest::default()),
        Kind::GetTop(v1::GetTopRequest::default()),
    ];
    let over_frames = debug_of(frames(&ada, kinds).await.unwrap());
    assert!(contains(&answers[0].1, &session[..8]) && contains(&answers[0].1, &waits[..8]));
    for (what, bytes) in answers.iter().map(|(what, bytes)| (*what, bytes)).chain([("frames", &over_frames)])
    {
        let text = String::from_utf8_lossy(bytes);
        assert!(!text.contains("lockkeeper-code"), "{what} is refused: {text}");
        for id in [&session, &waits] {
            let raw: Vec<u8> =
                (0..id.len()).step_by(2).map(|at| u8::from_str_radix(&id[at..at + 2], 16).unwrap()).collect();
            let is_raw =
                bytes.windows(8).any(|window| window == &raw[..8] || window.iter().rev().eq(&raw[..8]));
            assert!(!contains(bytes, &id[..16]) && !is_raw, "{what}: {text}");
        }
    }
    waiting.abort();
}

fn debug_of(answers: Vec<impl Debug>) -> Vec<u8> {
    format!("{answers:?}").into_bytes()
}
