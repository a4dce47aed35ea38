//! Fuzz targets for every decoder of untrusted bytes. Each function accepts any input, must not panic, and checks that what
//! it decodes survives an encoding and decoding round trip. The test `fuzz` runs them on mutations of a corpus on stable
//! Rust; `fuzz/` has the same functions for cargo-fuzz.

mod origin;
pub(crate) mod texts;

use bytes::BytesMut;
use lockkeeper_api::peer::peer_request::Kind;
use lockkeeper_api::{peer, v1};
use lockkeeper_core::{Batch, Command, LockTable, Restore, Sequencer, limits, percent};
use lockkeeper_net::frame;
use prost::Message;

use crate::formation::cell_secret::{CellSecret, Parties};
use crate::raft::log::{FaultyDisk, fuzz as log_bytes};
use crate::raft::network::fuzz as peer_bytes;

/// A fuzz target.
pub type Decoder = fn(&[u8]);

/// All fuzz targets by name.
pub const GROUPS: [(&str, Decoder); 10] = [
    ("wire", wire),
    ("log", log),
    ("snapshot", snapshot),
    ("sequencer", sequencer),
    ("http", http),
    ("peers", peers),
    ("request_filter", request_filter),
    ("grpc", grpc),
    ("access", access),
    ("frame_limits", frame_limits),
];

/// Frames of clients and nodes in pieces of any size, and the commands in them.
pub fn wire(data: &[u8]) {
    const FRAME_BYTES_MAX: usize = 1 << 20;
    let Some((piece, bytes)) = data.split_first() else { return };
    let mut buffer = BytesMut::new();
    'frames: for part in bytes.chunks(usize::from(*piece).max(1)) {
        buffer.extend_from_slice(part);
        loop {
            match frame::decode::<v1::ClientFrame>(&mut buffer, FRAME_BYTES_MAX) {
                Ok(Some(read)) => {
                    assert_round_trip(&read);
                    read.operations.into_iter().filter_map(|operation| operation.kind).for_each(command);
                }
                Ok(None) => break,
                Err(_) => break 'frames,
            }
        }
    }
    if let Ok(read) = v1::ServerFrame::decode(bytes) {
        assert_round_trip(&read);
    }
}

fn assert_round_trip<M: Message + Default + PartialEq + std::fmt::Debug>(read: &M) {
    let again = M::decode(read.encode_to_vec().as_slice());
    // NaN is not equal to itself.
    let written = format!("{read:?}");
    assert!(written.contains("NaN") || again.as_ref() == Ok(read), "{read:?} became {again:?}");
}

fn command(kind: v1::operation::Kind) {
    use lockkeeper_api::{Operation, Request};
    let command = match Operation::try_from(kind) {
        Ok(
            Operation::Request(Request::Command(command))
            | Operation::BriefAcquire(Request::Command(command)),
        ) => command,
        _ => return,
    };
    if limits::check_sizes(&command).is_ok() {
        apply(&mut LockTable::new(), command);
    }
}

fn apply(table: &mut LockTable, command: Command) {
    let batch = Batch { now: table.now(), utc_ms: 0, commands: vec![command] };
    let applied = table.apply(table.applied() + 1, &batch);
    assert!(applied.is_ok_and(|applied| applied.answers.len() == 1));
}

/// Records of the log, and the recovery of a log that is damaged with these bytes.
pub fn log(data: &[u8]) {
    log_bytes::records(data);
    let Some((place, bytes)) = data.split_first_chunk::<2>() else { return };
    let disk: FaultyDisk = log_bytes::sample();
    log_bytes::damage(&disk, usize::from(u16::from_le_bytes(*place)), bytes);
    log_bytes::recover(&disk);
}

/// Snapshots of the lock table: the raw bytes, and the bytes as a record with a valid checksum.
pub fn snapshot(data: &[u8]) {
    let restore = |parts: &[&[u8]]| -> Option<LockTable> {
        let mut restore = Restore::new();
        for part in parts {
            restore.push(part).ok()?;
        }
        restore.finish().ok()
    };
    let (one, other) = data.split_at(data.len() / 2);
    let split = restore(&[one, other]);
    assert_eq!(restore(&[data]).is_some(), split.is_some(), "the result depends on the pieces");
    // Mutations never produce a valid checksum, so it is computed here. Otherwise no record would be decoded.
    let mut fitting = b"LKTABLE1".to_vec();
    fitting.extend((data.len() as u32).to_le_bytes());
    fitting.extend(crc32fast::hash(data).to_le_bytes());
    fitting.extend(data);
    for table in [split, restore(&[&fitting])].into_iter().flatten() {
        let bytes: Vec<u8> = table.snapshot().flatten().collect();
        let again = restore(&[&bytes]);
        assert!(again.as_ref() == Some(&table), "the table changed in a round trip");
    }
}

/// Sequencers and percent-encoded names.
pub fn sequencer(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(read) = text.parse::<Sequencer>() {
        assert_eq!(read.to_string().parse(), Ok(read));
    }
    if let Some(decoded) = percent::decode(&text) {
        let encoded = percent::encode(&decoded, |_, byte| byte.is_ascii_alphanumeric());
        assert_eq!(percent::decode(&encoded), Some(decoded));
    }
    let encoded = percent::encode(&text, |_, byte| byte.is_ascii_alphanumeric());
    assert_eq!(percent::decode(&encoded).as_deref(), Some(&*text));
}

/// Heads of requests for the request filter: a line with the method and the target, then one for each header.
pub fn request_filter(data: &[u8]) {
    crate::listen::fuzz_request_filter(data);
    origin::check(data);
}

/// Bodies, queries and headers of the HTTP API.
pub fn http(data: &[u8]) {
    crate::listen::http::fuzz(data);
    if let Ok(text) = std::str::from_utf8(data) {
        if let Some(token) = crate::security::authenticator::bearer(text) {
            assert!(text.ends_with(token) || text.trim_end().ends_with(token));
        }
        if let Some((id, secret)) = crate::security::tokens::parts(text) {
            assert!(id.len() + secret.len() < text.len());
        }
    }
}

/// The length-prefixed messages of a streamed gRPC request, in pieces of any size.
pub fn grpc(data: &[u8]) {
    crate::listen::fuzz_reassembly(data);
}

/// Frames of clients for the limits that are checked before they are decoded.
pub fn frame_limits(data: &[u8]) {
    crate::session::decode_limits::fuzz(data);
}

/// Changes of rules, tokens and quotas: the first byte selects the kind, and the change is applied.
pub fn access(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    let Some(change) = access_change(which % 5, bytes) else { return };
    let command = Command::ChangeAccess { by: "ada".into(), change };
    if limits::check_sizes(&command).is_err() {
        return;
    }
    let mut table = table();
    apply(&mut table, command);
    let bytes: Vec<u8> = table.snapshot().flatten().collect();
    let mut restore = Restore::new();
    assert!(restore.push(&bytes).is_ok());
    assert!(restore.finish().is_ok_and(|again| again == table), "the table changed in a round trip");
}

fn access_change(which: u8, bytes: &[u8]) -> Option<lockkeeper_core::AccessChange> {
    use lockkeeper_core::{AccessChange, Quota, Rights};
    Some(match which {
        0 => {
            let request = v1::GrantAccessRequest::decode(bytes).ok()?;
            let rights = Rights::of(request.rights.iter().filter_map(|word| word.parse().ok()));
            AccessChange::Grant { identity: request.identity.into(), prefix: request.prefix.into(), rights }
        }
        1 => {
            let request = v1::RevokeAccessRequest::decode(bytes).ok()?;
            AccessChange::Revoke { identity: request.identity.into(), prefix: request.prefix.into() }
        }
        2 => {
            let request = v1::EnableAccessRequest::decode(bytes).ok()?;
            AccessChange::Enable {
                id: "0b".into(),
                identity: request.identity.into(),
                salt: [1; 16],
                hash: [2; 32],
            }
        }
        3 => {
            let request = v1::RevokeAccessTokenRequest::decode(bytes).ok()?;
            AccessChange::RevokeToken { id: request.id.into() }
        }
        _ => {
            let request = v1::SetQuotaRequest::decode(bytes).ok()?.quota?;
            match (request.state_bytes, request.sessions) {
                (bytes @ Some(_), _) => AccessChange::SetStateBytes { bytes },
                (_, sessions @ Some(_)) => {
                    AccessChange::SetSessions { identity: request.identity.into(), sessions }
                }
                _ => {
                    let v1::Quota { locks, waiters, values, requests_per_s, namespace, .. } = request;
                    let quota = Quota { locks, waiters, values, requests_per_s };
                    AccessChange::SetQuota { namespace: namespace.into(), quota }
                }
            }
        }
    })
}

/// Connections between members: the greeting, frames in pieces of any size, and the proof of the cell secret.
fn member_frames(data: &[u8]) {
    const FRAME_BYTES_MAX: usize = 1 << 16;
    let Some((piece, bytes)) = data.split_first() else { return };
    crate::listen::fuzz_wire_protocol(bytes);
    let secret = CellSecret::from_bytes(&[7; 32]);
    let mut buffer = BytesMut::new();
    for part in bytes.chunks(usize::from(*piece).max(1)) {
        buffer.extend_from_slice(part);
        loop {
            match frame::decode::<peer::PeerRequest>(&mut buffer, FRAME_BYTES_MAX) {
                Ok(Some(request)) => {
                    assert_round_trip(&request);
                    let Some((header, secret)) = request.header.zip(secret.as_ref()) else { continue };
                    let (from, to, to_folder) = (header.from, header.to, header.to_folder);
                    let parties = Parties { cell: &header.cell, from, to, to_folder };
                    let is_proven = secret.verify(parties, &header.proof);
                    assert_eq!(is_proven, header.proof == secret.prove(parties), "one proof, and no other");
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Messages between members.
pub fn peers(data: &[u8]) {
    member_frames(data);
    let _ = peer::HelloRequest::decode(data);
    let _ = peer::JoinRequest::decode(data).map(|request| CellSecret::from_bytes(&request.secret));
    let _ = peer::SnapshotOfferRequest::decode(data);
    if let Ok(request) = peer::PeerRequest::decode(data) {
        request.kind.iter().for_each(peer_bytes::wrapped_request);
        match request.kind {
            Some(Kind::Append(append) | Kind::Heartbeat(append)) => peer_bytes::messages(&append.body),
            Some(
                Kind::Vote(body) | Kind::PreVote(body) | Kind::TransferLeader(body) | Kind::Goodbye(body),
            ) => {
                peer_bytes::messages(&body);
            }
            Some(Kind::Ping(_)) | None => {}
        }
    }
    if let Ok(peer::PeerAnswer { kind: Some(kind), .. }) = peer::PeerAnswer::decode(data) {
        peer_bytes::wrapped_answer(&kind);
    }
    let _ = peer::SnapshotPart::decode(data);
    let _ = peer::HelloResponse::decode(data);
    peer_bytes::messages(data);
}

/// Returns valid examples of all formats: target, name and bytes. The corpus in `fuzz/corpus` is generated from them.
pub fn examples() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |group: &'static str, name: &str, bytes: Vec<u8>| all.push((group, name.to_owned(), bytes));
    for (number, operations) in operations().chunks(4).enumerate() {
        let mut bytes = BytesMut::from(&[7][..]);
        let operations =
            operations.iter().zip(1..).map(|(kind, id)| v1::Operation { id, kind: Some(kind.clone()) });
        let frame = v1::ClientFrame { operations: operations.collect() };
        frame::encode(&frame, &mut bytes);
        add("wire", &format!("client-{number}"), bytes.to_vec());
        add("frame_limits", &format!("client-{number}"), frame.encode_to_vec());
    }
    let grant = v1::Grant {
        locks: vec!["orders/1".into()],
        token: 42,
        sequencer: "lk1:42:x:orders/1".into(),
        ..Default::default()
    };
    let answer = v1::Answer { id: 1, kind: Some(v1::answer::Kind::Grant(grant)) };
    let event = v1::Event { kind: Some(v1::event::Kind::Welcome(v1::Welcome { node_id: 1 })) };
    let mut bytes = vec![255];
    bytes.extend(v1::ServerFrame { answers: vec![answer], events: vec![event] }.encode_to_vec());
    add("wire", "server", bytes);

    let table = table();
    let bytes: Vec<u8> = table.snapshot().flatten().collect();
    add("snapshot", "records", bytes[16..].to_vec());
    add("snapshot", "whole", bytes);
    let empty: Vec<u8> = LockTable::new().snapshot().flatten().collect();
    add("snapshot", "empty", empty[16..].to_vec());

    for (name, bytes) in log_bytes::examples() {
        add("log", name, bytes);
    }
    for (name, bytes) in peer_bytes::examples() {
        let proof = Default::default();
        let header = peer::Header { format: 1, cell: "cell".into(), from: 1, to: 2, to_folder: 3, proof };
        let kind = match name {
            "append" => {
                Kind::Append(peer::AppendRequest { body: bytes.clone().into(), stream: 1, majority: None })
            }
            _ => Kind::Vote(bytes.clone().into()),
        };
        let kind = Some(kind);
        let request = peer::PeerRequest { header: Some(header), format: 1, id: 1, kind };
        add("peers", &format!("{name}-request"), request.encode_to_vec());
        let mut framed = BytesMut::from(&[9][..]);
        frame::encode(&request, &mut framed);
        add("peers", &format!("{name}-frame"), framed.to_vec());
        add("peers", name, bytes);
    }
    add("frame_limits", "group", [&[0x7b, 0x7c][..], &[0x0a, 0].repeat(9)].concat());
    let body = peer::peer_answer::Kind::Body(vec![1, 0].into());
    add(
        "peers",
        "answer",
        peer::PeerAnswer { id: 1, kind: Some(body), ..Default::default() }.encode_to_vec(),
    );
    for (number, head) in texts::HEADS.iter().enumerate() {
        add("request_filter", &format!("head-{number}"), head.as_bytes().to_vec());
    }
    access_examples().into_iter().for_each(|(name, bytes)| add("access", name, bytes));
    for (number, piece) in [1, 7, 255].into_iter().enumerate() {
        let mut bytes = vec![piece];
        for length in [0_u8, 3, 200] {
            bytes.extend([0, 0, 0, 0, length]);
            bytes.extend(vec![0x0a; usize::from(length)]);
        }
        add("grpc", &format!("messages-{number}"), bytes);
    }
    let texts =
        ["lk1:42:x:orders/4472", "lk1:9007199254740991:s:caf%C3%A9%20%25", "a%2Fb%00", "%F0%9F%94%92 lock"];
    for (number, text) in texts.iter().enumerate() {
        add("sequencer", &format!("text-{number}"), text.as_bytes().to_vec());
    }
    for (number, text) in texts::HTTP.iter().enumerate() {
        add("http", &format!("text-{number}"), text.as_bytes().to_vec());
    }
    all
}

fn access_examples() -> Vec<(&'static str, Vec<u8>)> {
    let (identity, prefix) = ("ci".to_owned(), "builds/".to_owned());
    let message = |which: u8, message: Vec<u8>| [vec![which], message].concat();
    let grant = v1::GrantAccessRequest {
        identity: identity.clone(),
        prefix: prefix.clone(),
        rights: vec!["acquire".into(), "admin".into()],
    };
    let quota = |quota| message(4, v1::SetQuotaRequest { quota: Some(quota) }.encode_to_vec());
    vec![
        ("grant", message(0, grant.encode_to_vec())),
        (
            "revoke",
            message(1, v1::RevokeAccessRequest { identity: identity.clone(), prefix }.encode_to_vec()),
        ),
        ("enable", message(2, v1::EnableAccessRequest { identity: identity.clone() }.encode_to_vec())),
        ("revoke-token", message(3, v1::RevokeAccessTokenRequest { id: "0a".into() }.encode_to_vec())),
        ("namespace", quota(v1::Quota { namespace: "builds".into(), locks: Some(1), ..Default::default() })),
        ("sessions", quota(v1::Quota { identity, sessions: Some(2), ..Default::default() })),
        ("state-bytes", quota(v1::Quota { state_bytes: Some(1 << 30), ..Default::default() })),
    ]
}

fn operations() -> Vec<v1::operation::Kind> {
    use v1::operation::Kind;
    let session = "000102030405060708090a0b0c0d0e0f".to_owned();
    let fence = Some(v1::Fence { lock: "a".into(), token: 1 });
    vec![
        Kind::OpenSession(v1::OpenSessionRequest { ttl_ms: 10_000, owner: "o".into() }),
        Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![session.clone()] }),
        Kind::Acquire(v1::AcquireRequest {
            session: session.clone(),
            lock: "orders/1".into(),
            permits: Some(1),
            capacity: Some(3),
            wait_ms: 10,
            request: "r".into(),
            scope: "s".into(),
            policy: "wait_die".into(),
            value: "v".into(),
            ..Default::default()
        }),
        Kind::AcquireAll(v1::AcquireAllRequest {
            session: session.clone(),
            locks: vec!["a".into(), "b".into()],
            ..Default::default()
        }),
        Kind::Release(v1::ReleaseRequest {
            session: session.clone(),
            lock: "a".into(),
            token: 1,
            forget: true,
        }),
        Kind::Cancel(v1::CancelRequest { session: session.clone(), request: "r".into() }),
        Kind::ForceRelease(v1::ForceReleaseRequest { lock: "a".into(), reason: "why".into() }),
        Kind::PutValue(v1::PutValueRequest {
            key: "k".into(),
            value: vec![1, 2],
            fence,
            if_version: Some(0),
        }),
        Kind::HandOver(v1::HandOverRequest { session, election: "e".into(), epoch: 1, to: "v".into() }),
        Kind::TakeRate(v1::TakeRateRequest { limiter: "l".into(), permits: 1, rate_per_s: 2.5, burst: 10 }),
        Kind::ListLocks(v1::ListLocksRequest { prefix: "a".into(), limit: 10, after: "b".into() }),
        Kind::Authenticate(v1::AuthenticateRequest { token: "lk_0_0".into() }),
    ]
}

/// Returns a table with something of every kind.
fn table() -> LockTable {
    use lockkeeper_core::{
        AccessChange, Acquire, Locks, Policy, Quota, Right, Rights, SessionId, TakeRate, Wait,
    };
    let session = SessionId(7);
    let acquire = |session, lock: &str, wait| {
        let request = Acquire::new(session, Locks::One(lock.into()));
        let request = Acquire { wait, request: Some("r".into()), scope: Some("s".into()), ..request };
        Command::Acquire(Acquire { policy: Policy::Detect, ..request })
    };
    let rights = Rights::of([Right::Acquire]);
    let quota = Quota { locks: Some(10), requests_per_s: Some(5), ..Quota::default() };
    let change = |change| Command::ChangeAccess { by: "ada".into(), change };
    let commands = vec![
        Command::OpenSession { session, ttl_ms: 10_000, owner: "o".into(), identity: Some("ada".into()) },
        Command::OpenSession { session: SessionId(8), ttl_ms: 10_000, owner: "p".into(), identity: None },
        change(AccessChange::Grant { identity: "ci".into(), prefix: "builds/".into(), rights }),
        change(AccessChange::AddToken {
            id: "0a".into(),
            identity: "ci".into(),
            salt: [1; 16],
            hash: [2; 32],
        }),
        change(AccessChange::SetQuota { namespace: "orders".into(), quota }),
        change(AccessChange::SetSessions { identity: "ci".into(), sessions: Some(3) }),
        acquire(session, "orders/1", Wait::No),
        acquire(SessionId(8), "orders/1", Wait::ForMs(1_000)),
        Command::PutValue { key: "k".into(), value: vec![1, 2, 3].into(), fence: None, if_version: None },
        Command::TakeRate(TakeRate { limiter: "l".into(), permits: 1, interval_ns: 1_000_000, burst: 5 }),
        Command::ForceRelease { lock: "bills/1".into(), reason: "why".into(), by: "ada".into() },
    ];
    let mut table = LockTable::new();
    commands.into_iter().for_each(|command| apply(&mut table, command));
    table
}
