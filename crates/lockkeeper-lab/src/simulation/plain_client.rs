//! A client without the library: it speaks the frames itself, renews when it likes, sometimes too late, and takes every
//! acknowledged renewal for what it is: a promise (S3). The library never asks in the name of a session whose deadline has
//! passed, so without this client nobody would notice a node that answers such a renewal and breaks its word.
//!
//! It also sends late copies of requests that were refused, as a network does that delivers twice (S5).

use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_api::v1::{self, answer, operation};
use lockkeeper_net::frame::{self, GREETING};
use lockkeeper_net::net::{self, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::client::{AGAIN, Busy, LOCKS, Work};
use super::machine::{true_after, true_now};
use super::network::{MachineId, address_of};
use super::random::Random;
use crate::checkers::history::{Hold, Loss, Repeat};

/// How long an answer may take before another node is asked.
const ANSWER_WITHIN: Duration = Duration::from_millis(600);
/// Longest wait for a lock.
const WAIT_MS: u64 = 3_000;
/// Largest frame that is read.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// Opens sessions, holds a lock in each and renews it, until the work is over.
pub(super) async fn run(client: MachineId, nodes: Vec<MachineId>, work: Work, random: Random) {
    let busy = Busy::new(&work.busy);
    let mut client = PlainClient { client, nodes, place: 0, connection: None, work, random };
    while true_now() < client.work.until {
        match client.random.once_in(4) {
            true => client.repeat_a_refusal().await,
            false => client.hold_once().await,
        }
        tokio::time::sleep(client.random.between_ms(10, 200)).await;
    }
    drop(busy);
    std::future::pending().await
}

struct PlainClient {
    client: MachineId,
    nodes: Vec<MachineId>,
    /// Which node is asked next.
    place: usize,
    connection: Option<Connection>,
    work: Work,
    random: Random,
}

impl PlainClient {
    async fn open_session(&mut self) -> Option<String> {
        let ttl_ms = self.work.ttl.as_millis() as u64;
        let open = v1::OpenSessionRequest { ttl_ms, owner: "plain".to_owned() };
        match self.ask(operation::Kind::OpenSession(open), ANSWER_WITHIN).await? {
            answer::Kind::OpenSession(v1::OpenSessionResponse { session, .. }) => Some(session),
            _ => None,
        }
    }

    async fn close_session(&mut self, session: String) {
        self.ask(operation::Kind::CloseSession(v1::CloseSessionRequest { session }), ANSWER_WITHIN).await;
    }

    /// Asks for a lock without waiting. If it is refused, late copies of the same request follow.
    async fn repeat_a_refusal(&mut self) {
        let Some(session) = self.open_session().await else { return };
        let lock = *self.random.one_of(&LOCKS);
        let acquire = v1::AcquireRequest {
            session: session.clone(),
            lock: lock.to_owned(),
            request: "refused".to_owned(),
            ..Default::default()
        };
        let first = self.exchange(operation::Kind::Acquire(acquire.clone()), ANSWER_WITHIN).await;
        if let Some(answer::Kind::Error(error)) = first
            && error.code == "busy"
        {
            for _ in 0..1 + self.random.below(4) {
                tokio::time::sleep(self.random.between_ms(10, self.work.ttl.as_millis() as u64 / 4)).await;
                let copy = self.exchange(operation::Kind::Acquire(acquire.clone()), ANSWER_WITHIN).await;
                let Some(copy) = copy else { break };
                let token = match copy {
                    answer::Kind::Grant(grant) => Some(grant.token),
                    _ => None,
                };
                let refusal = error.code.clone();
                let repeat = Repeat { client: self.client, lock: lock.to_owned(), refusal, token };
                self.work.recorder.note(|history| history.repeats.push(repeat));
                self.work.recorder.count("refused requests repeated");
            }
        }
        self.close_session(session).await;
    }

    /// One session with one lock, from its opening to its end.
    async fn hold_once(&mut self) {
        let ttl = self.work.ttl;
        let Some(session) = self.open_session().await else { return };
        let lock = *self.random.one_of(&LOCKS);
        let asked = true_now();
        let acquire = v1::AcquireRequest {
            session: session.clone(),
            lock: lock.to_owned(),
            wait_ms: WAIT_MS.min(self.work.ttl.as_millis() as u64 / 2),
            request: "only".to_owned(),
            ..Default::default()
        };
        let granted = self.ask(operation::Kind::Acquire(acquire), ttl).await;
        let Some(answer::Kind::Grant(v1::Grant { token, .. })) = granted else { return };
        let from = self.work.recorder.grant(self.client, lock, token, asked);
        // A grant alone promises no time: the first renewal does.
        let hold = Hold { client: self.client, lock: lock.to_owned(), token, from, until: from };
        let place = self.work.recorder.note(|history| {
            history.holds.push(hold);
            history.holds.len() - 1
        });
        self.renew_for_a_while(&session, place).await;
        let release =
            v1::ReleaseRequest { session: session.clone(), lock: lock.to_owned(), token, forget: true };
        let now = true_now();
        self.work.recorder.note(|history| {
            let hold = &mut history.holds[place];
            hold.until = hold.until.min(now);
        });
        self.ask(operation::Kind::Release(release), ANSWER_WITHIN).await;
        self.close_session(session).await;
    }

    /// Renews until it has had enough, or the session is lost.
    async fn renew_for_a_while(&mut self, session: &str, place: usize) {
        let ttl_ms = self.work.ttl.as_millis() as u64;
        let ends = true_now() + self.random.between_ms(ttl_ms / 2, 6 * ttl_ms);
        while true_now() < ends {
            // Mostly in time, sometimes when the session should have ended.
            let pause = match self.random.once_in(3) {
                true => {
                    let lapses = true_after(self.work.ttl);
                    *self.work.lapses.lock().unwrap_or_else(PoisonError::into_inner) = Some(lapses);
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

    /// Asks node after node until one answers. False if the session is lost, or nobody has answered for long.
    async fn renew(&mut self, session: &str, place: usize) -> bool {
        let gives_up = true_now() + Duration::from_secs(5);
        while true_now() < gives_up {
            let promised = self.promised_from_now();
            let renewal = v1::KeepAliveAll { sessions: vec![session.to_owned()] };
            match self.ask(operation::Kind::KeepAlive(renewal), ANSWER_WITHIN).await {
                Some(answer::Kind::KeepAlive(renewed))
                    if renewed.ttl_ms.first().is_some_and(|ttl| *ttl > 0) =>
                {
                    self.work.recorder.tell(true_now(), &format!("plain client renewed until {promised:?}"));
                    self.work.recorder.note(|history| history.holds[place].until = promised);
                    self.work.recorder.count("plain renewals");
                    return true;
                }
                Some(answer::Kind::KeepAlive(_)) => {
                    self.lost(place);
                    return false;
                }
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
        false
    }

    /// A renewal was refused: the session is lost.
    fn lost(&self, place: usize) {
        self.work.recorder.count("plain renewals refused");
        self.work.recorder.note(|history| {
            let Hold { client, lock, token, until, .. } = history.holds[place].clone();
            let (told, why) = (true_now(), "session_lost".to_owned());
            history.losses.push(Loss { client, lock, token, told, promised: until, why });
        });
    }

    /// Until when a renewal that is sent now would be a promise (S4), in true time.
    fn promised_from_now(&self) -> Duration {
        let ttl = self.work.ttl;
        true_after(ttl - ttl / 100 - Duration::from_millis(2))
    }

    /// Asks one node. `None` if it did not answer, or cannot now; then another one is next.
    async fn ask(&mut self, kind: operation::Kind, within: Duration) -> Option<answer::Kind> {
        match self.exchange(kind, within).await? {
            answer::Kind::Error(error) => {
                self.connection = None;
                self.work.recorder.count(&format!("plain {}", error.code));
                None
            }
            answer => Some(answer),
        }
    }

    /// Asks one node. `None` if it did not answer; then another one is next.
    async fn exchange(&mut self, kind: operation::Kind, within: Duration) -> Option<answer::Kind> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                self.place = (self.place + 1) % self.nodes.len();
                let address = address_of(self.nodes[self.place]);
                timeout(ANSWER_WITHIN, Connection::open(&address)).await.ok()?.ok()?
            }
        };
        // A connection whose answer did not come in time is not used again: it could come later.
        match timeout(within, connection.ask(kind)).await {
            Ok(Ok(answer)) => {
                self.connection = Some(connection);
                Some(answer)
            }
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

/// A connection on which one operation at a time is asked.
struct Connection {
    stream: Stream,
    buffer: BytesMut,
    asked: u64,
}

impl Connection {
    async fn open(address: &str) -> io::Result<Connection> {
        let mut stream = net::connect(address).await?;
        stream.write_all(GREETING).await?;
        stream.read_exact(&mut [0; GREETING.len()]).await?;
        Ok(Connection { stream, buffer: BytesMut::new(), asked: 0 })
    }

    async fn ask(&mut self, kind: operation::Kind) -> io::Result<answer::Kind> {
        self.asked += 1;
        let id = self.asked;
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
