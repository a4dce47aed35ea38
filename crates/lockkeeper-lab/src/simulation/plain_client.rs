//! A client without the library: it uses frames directly, renews at arbitrary times, sometimes too late, and treats every
//! acknowledged renewal as a promise (S3). The library never renews a session whose deadline has passed, so only this client
//! detects a node that acknowledges such a renewal and breaks the promise.
//!
//! It also sends late copies of refused requests, like a network that duplicates packets (S5).

use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_api::Code;
use lockkeeper_api::v1::{self, answer, operation};
use lockkeeper_net::frame::{self, GREETING};
use lockkeeper_net::net::{self, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::client::{Busy, LOCKS, RETRY_PAUSE, Work};
use super::faults::Emphasis;
use super::machine::{true_after, true_now};
use super::network::{MachineId, address_of};
use super::random::Random;
use super::waiter;
use crate::checkers::history::{Hold, Loss, Repeat};

/// Time limit for an answer before another node is tried.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(600);
/// The same for the renewals of a client whose session has lapsed.
const HASTY_TIMEOUT: Duration = Duration::from_millis(150);
/// Longest wait for a lock.
const WAIT_MS: u64 = 3_000;
/// Namespace with a quota of one lock, in some runs.
pub(super) const QUOTA_NAMESPACE: &str = "quota";
/// Largest frame that is read.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// Opens sessions, holds a lock in each and renews it, until the end of the workload.
pub(super) async fn run(client: MachineId, nodes: Vec<MachineId>, work: Work, random: Random) {
    let busy = Busy::new(&work.busy);
    let mut client = PlainClient { client, nodes, node_index: 0, connection: None, work, random };
    while true_now() < client.work.until {
        if client.random.once_in(4) && client.work.emphasis != Emphasis::RegainedTerm {
            client.repeat_refused_request().await;
        } else if client.work.has_quota && client.random.once_in(4) {
            client.repeat_request_beyond_quota().await;
        } else {
            client.hold_once().await;
        }
        tokio::time::sleep(client.random.between_ms(10, 200)).await;
    }
    drop(busy);
    std::future::pending().await
}

struct PlainClient {
    client: MachineId,
    nodes: Vec<MachineId>,
    /// Index of the next node to try.
    node_index: usize,
    connection: Option<Connection>,
    work: Work,
    random: Random,
}

impl PlainClient {
    async fn open_session(&mut self) -> Option<String> {
        let ttl_ms = self.work.ttl.as_millis() as u64;
        let open = v1::OpenSessionRequest { ttl_ms, owner: "plain".to_owned() };
        match self.call(operation::Kind::OpenSession(open), ANSWER_TIMEOUT).await? {
            answer::Kind::OpenSession(v1::OpenSessionResponse { session, .. }) => Some(session),
            _ => None,
        }
    }

    async fn close_session(&mut self, session: String) {
        self.call(operation::Kind::CloseSession(v1::CloseSessionRequest { session }), ANSWER_TIMEOUT).await;
    }

    /// Tries to acquire a lock without waiting, sometimes with another capacity than a holder's. If it is refused, sends late copies
    /// of the request.
    async fn repeat_refused_request(&mut self) {
        let Some(session) = self.open_session().await else { return };
        let lock = *self.random.one_of(&LOCKS);
        let acquire = v1::AcquireRequest {
            session: session.clone(),
            lock: lock.to_owned(),
            request: "refused".to_owned(),
            capacity: self.random.once_in(2).then_some(2),
            ..Default::default()
        };
        let first = self.exchange(operation::Kind::Acquire(acquire.clone()), ANSWER_TIMEOUT).await;
        if let Some(answer::Kind::Error(error)) = first
            && matches!(error.code.parse(), Ok(Code::Busy | Code::Invalid))
        {
            self.send_late_copies(acquire, error.code).await;
        }
        self.close_session(session).await;
    }

    /// Acquires the only lock of its quota and another one, which is refused. Then makes room and sends late copies of the refused
    /// request.
    async fn repeat_request_beyond_quota(&mut self) {
        let Some(session) = self.open_session().await else { return };
        let acquire = |lock: &str, request: &str| v1::AcquireRequest {
            session: session.clone(),
            lock: format!("{QUOTA_NAMESPACE}/{lock}"),
            request: request.to_owned(),
            ..Default::default()
        };
        let first = operation::Kind::Acquire(acquire("first", "first"));
        let Some(answer::Kind::Grant(first)) = self.exchange(first, ANSWER_TIMEOUT).await else {
            return self.close_session(session).await;
        };
        let second = acquire("second", "refused");
        let refused = self.exchange(operation::Kind::Acquire(second.clone()), ANSWER_TIMEOUT).await;
        if let Some(answer::Kind::Error(error)) = refused
            && error.code.parse() == Ok(Code::Limit)
            // An overloaded node refuses before the table, which does not remember it.
            && error.retry_after_ms == 0
        {
            let (lock, token) = (format!("{QUOTA_NAMESPACE}/first"), first.token);
            let release = v1::ReleaseRequest { session: session.clone(), lock, token, forget: true };
            self.exchange(operation::Kind::Release(release), ANSWER_TIMEOUT).await;
            self.send_late_copies(second, error.code).await;
        }
        self.close_session(session).await;
    }

    /// Sends late copies of a refused request.
    async fn send_late_copies(&mut self, acquire: v1::AcquireRequest, refusal: String) {
        for _ in 0..1 + self.random.below(4) {
            tokio::time::sleep(self.random.between_ms(10, self.work.ttl.as_millis() as u64 / 4)).await;
            let copy = self.exchange(operation::Kind::Acquire(acquire.clone()), ANSWER_TIMEOUT).await;
            let Some(copy) = copy else { break };
            let token = match copy {
                answer::Kind::Grant(grant) => Some(grant.token),
                _ => None,
            };
            self.work.recorder.count(&format!("requests repeated after {refusal}"));
            let (lock, refusal) = (acquire.lock.clone(), refusal.clone());
            let repeat = Repeat { client: self.client, lock, refusal, token };
            self.work.recorder.update(|history| history.repeats.push(repeat));
        }
    }

    /// Opens a session, holds one lock in it, and closes it.
    async fn hold_once(&mut self) {
        let ttl = self.work.ttl;
        let Some(session) = self.open_session().await else { return };
        let lock = match self.work.emphasis {
            Emphasis::RegainedTerm => waiter::LOCK,
            _ => *self.random.one_of(&LOCKS),
        };
        let invoked = true_now();
        let acquire = v1::AcquireRequest {
            session: session.clone(),
            lock: lock.to_owned(),
            wait_ms: WAIT_MS.min(self.work.ttl.as_millis() as u64 / 2),
            request: "only".to_owned(),
            ..Default::default()
        };
        let granted = self.call(operation::Kind::Acquire(acquire), ttl).await;
        let Some(answer::Kind::Grant(v1::Grant { token, .. })) = granted else { return };
        let from = self.work.recorder.grant(self.client, lock, token, invoked);
        // A grant alone promises no time; the first renewal does.
        let hold = Hold { client: self.client, lock: lock.to_owned(), token, from, until: from };
        let place = self.work.recorder.update(|history| {
            history.holds.push(hold);
            history.holds.len() - 1
        });
        self.renew_for_a_while(&session, place).await;
        let release =
            v1::ReleaseRequest { session: session.clone(), lock: lock.to_owned(), token, forget: true };
        let now = true_now();
        self.work.recorder.update(|history| {
            let hold = &mut history.holds[place];
            hold.until = hold.until.min(now);
        });
        self.call(operation::Kind::Release(release), ANSWER_TIMEOUT).await;
        self.close_session(session).await;
    }

    /// Renews for a random time, or until the session is lost.
    async fn renew_for_a_while(&mut self, session: &str, place: usize) {
        let ttl_ms = self.work.ttl.as_millis() as u64;
        let ends = true_now() + self.random.between_ms(ttl_ms / 2, 6 * ttl_ms);
        while true_now() < ends {
            // Mostly in time, sometimes after the session should have expired.
            let lapses = match self.work.emphasis {
                Emphasis::RegainedTerm => true,
                Emphasis::LostMajorities => !self.random.once_in(4),
                _ => self.random.once_in(3),
            };
            let pause = match lapses {
                true => {
                    let next_lapse = true_after(self.work.ttl);
                    *self.work.next_lapse.lock().unwrap_or_else(PoisonError::into_inner) = Some(next_lapse);
                    self.random.between_ms(ttl_ms + 200, ttl_ms + 700)
                }
                false => self.random.between_ms(ttl_ms / 10, ttl_ms / 3),
            };
            tokio::time::sleep(pause).await;
            if !self.renew(session, place).await {
                return;
            }
        }
    }

    /// Tries nodes until one answers. Returns false if the session is lost or no node answers in time.
    async fn renew(&mut self, session: &str, place: usize) -> bool {
        let gives_up = true_now() + Duration::from_secs(5);
        while true_now() < gives_up {
            let promised = self.promised_from_now();
            let renewal = v1::KeepAliveAll { sessions: vec![session.to_owned()] };
            // A node that is paused should not keep the client from the others.
            let within = if self.work.emphasis.has_lapses() { HASTY_TIMEOUT } else { ANSWER_TIMEOUT };
            match self.call(operation::Kind::KeepAlive(renewal), within).await {
                Some(answer::Kind::KeepAlive(renewed))
                    if renewed.ttl_ms.first().is_some_and(|ttl| *ttl > 0) =>
                {
                    self.work
                        .recorder
                        .record_event(true_now(), &format!("plain client renewed until {promised:?}"));
                    self.work.recorder.update(|history| history.holds[place].until = promised);
                    self.work.recorder.count("plain renewals");
                    return true;
                }
                Some(answer::Kind::KeepAlive(_)) => {
                    self.lost(place);
                    return false;
                }
                _ => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
        false
    }

    /// Records the loss after a refused renewal.
    fn lost(&self, place: usize) {
        self.work.recorder.count("plain renewals refused");
        self.work.recorder.update(|history| {
            let Hold { client, lock, token, until, .. } = history.holds[place].clone();
            let (told_at, why) = (true_now(), "session_lost".to_owned());
            history.losses.push(Loss { client, lock, token, told_at, promised: until, why });
        });
    }

    /// The promised end of a lease whose renewal is sent now (S4), in true time.
    fn promised_from_now(&self) -> Duration {
        let ttl = self.work.ttl;
        true_after(ttl - ttl / 100 - Duration::from_millis(2))
    }

    /// Calls a node. `None` without an answer or on an error; the next call tries another node.
    async fn call(&mut self, kind: operation::Kind, within: Duration) -> Option<answer::Kind> {
        match self.exchange(kind, within).await? {
            answer::Kind::Error(error) => {
                self.connection = None;
                self.work.recorder.count(&format!("plain {}", error.code));
                None
            }
            answer => Some(answer),
        }
    }

    /// Exchanges one operation with a node. `None` without an answer; the next call tries another node.
    async fn exchange(&mut self, kind: operation::Kind, within: Duration) -> Option<answer::Kind> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                self.node_index = (self.node_index + 1) % self.nodes.len();
                let address = address_of(self.nodes[self.node_index]);
                timeout(within.min(ANSWER_TIMEOUT), Connection::open(&address)).await.ok()?.ok()?
            }
        };
        // A connection with a pending answer is not reused: the answer could still arrive.
        match timeout(within, connection.call(kind)).await {
            Ok(Ok(answer)) => {
                self.connection = Some(connection);
                Some(answer)
            }
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

/// A connection with one operation at a time.
struct Connection {
    stream: Stream,
    buffer: BytesMut,
    requests: u64,
}

impl Connection {
    async fn open(address: &str) -> io::Result<Connection> {
        let mut stream = net::connect(address).await?;
        stream.write_all(GREETING).await?;
        stream.read_exact(&mut [0; GREETING.len()]).await?;
        Ok(Connection { stream, buffer: BytesMut::new(), requests: 0 })
    }

    async fn call(&mut self, kind: operation::Kind) -> io::Result<answer::Kind> {
        self.requests += 1;
        let id = self.requests;
        let mut bytes = BytesMut::new();
        frame::encode(
            &v1::ClientFrame { operations: vec![v1::Operation { id, kind: Some(kind) }] },
            &mut bytes,
        );
        self.stream.write_all(&bytes).await?;
        loop {
            let next = frame::decode::<v1::ServerFrame>(&mut self.buffer, FRAME_BYTES_MAX);
            let Some(frame) = next.map_err(io::Error::other)? else {
                if self.stream.read_buf(&mut self.buffer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            };
            let answer = frame.answers.into_iter().find(|answer| answer.id == id);
            if let Some(kind) = answer.and_then(|answer| answer.kind) {
                return Ok(kind);
            }
        }
    }
}
