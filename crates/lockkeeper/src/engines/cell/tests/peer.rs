//! A simulated node with the real lock table, no network, and selectable faults: deaf, mute, slow, cut, gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as AnswerKind;
use lockkeeper_api::v1::operation::Kind as OperationKind;
use lockkeeper_core::{
    Acquire, Batch, CellTime, Command, Effect, Fence, Freed, LockTable, Locks, Refusal, Reply, SessionId,
    Ticket, Token, Wait, Waiting,
};
use smol_str::SmolStr;
use tokio::sync::mpsc;

use crate::engines::cell::transport::{Answers, Frames, Link, LinkError, Opening, Transport};

/// A simulated node. Clones share its state.
#[derive(Clone)]
pub(super) struct Peer {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) table: LockTable,
    sessions: HashMap<SessionId, Instant>,
    next_session: u128,
    streams: HashMap<u64, mpsc::Sender<v1::ServerFrame>>,
    next_stream: u64,
    attached: HashMap<SessionId, u64>,
    queued: HashMap<Ticket, Vec<(u64, u64)>>,
    /// Executes operations, but does not answer.
    pub(super) mute: bool,
    /// Neither executes operations nor answers.
    pub(super) deaf: bool,
    /// Accepts no frames, so that they queue up in the client.
    pub(super) stalled: bool,
    /// Expires no sessions, like a cell without a leader.
    pub(super) frozen: bool,
    /// Neither renews nor answers renewals.
    pub(super) no_renewals: bool,
    /// Refuses connections.
    pub(super) shut: bool,
    /// Answers every operation with this error, without executing it.
    pub(super) fails: Option<v1::Error>,
    /// All received operations, as text.
    pub(super) seen: Vec<String>,
    pub(super) frames: usize,
    /// The leader that each connecting client looked for.
    pub(super) opened: Vec<Option<SmolStr>>,
}

fn cell_time(started: Instant) -> CellTime {
    CellTime(started.elapsed().as_micros() as u64)
}

impl Peer {
    /// Creates a node whose clock runs as long as the runtime.
    pub(super) fn new() -> Peer {
        let peer = Peer { state: Arc::default() };
        let weak = Arc::downgrade(&peer.state);
        tokio::spawn(async move {
            let started = Instant::now();
            while let Some(state) = weak.upgrade() {
                state.lock().unwrap().tick(cell_time(started));
                drop(state);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        peer
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Cuts all connections.
    pub(super) fn cut(&self) {
        let mut state = self.state();
        state.streams.clear();
        state.attached.clear();
    }

    pub(super) fn holders(&self, lock: &str) -> usize {
        let state = self.state();
        state.table.lock_view(&lock.into(), state.table.now(), 100).holders.len()
    }

    pub(super) fn waiting(&self, lock: &str) -> u32 {
        let state = self.state();
        state.table.lock_view(&lock.into(), state.table.now(), 100).waiting
    }

    /// The number of received operations of this kind.
    pub(super) fn count(&self, kind: &str) -> usize {
        self.state().seen.iter().filter(|seen| seen.starts_with(kind)).count()
    }
}

impl Transport for Peer {
    fn open(&self, _attempt: usize, leader: Option<SmolStr>) -> Opening {
        let peer = self.clone();
        Box::pin(async move {
            let mut state = peer.state();
            state.opened.push(leader);
            if state.shut {
                return Err(LinkError::new("the node is shut"));
            }
            let (frames, mut incoming) = mpsc::channel::<v1::ClientFrame>(1);
            // Capacity for all answers of a test: this node sends a frame for each, and drops what does not fit.
            let (outgoing, answers) = mpsc::channel(1 << 17);
            state.next_stream += 1;
            let stream = state.next_stream;
            state.streams.insert(stream, outgoing);
            drop(state);
            tokio::spawn(async move {
                while let Some(frame) = incoming.recv().await {
                    while peer.state().stalled {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    peer.state().execute(stream, frame);
                }
                peer.state().streams.remove(&stream);
            });
            Ok(Link {
                address: "peer".into(),
                frames: Frames::Local(frames),
                answers: Answers::Local(answers),
            })
        })
    }

    fn addresses(&self) -> String {
        "peer".to_owned()
    }
}

impl State {
    fn apply(&mut self, command: Command) -> lockkeeper_core::Answer {
        let batch = Batch { now: self.table.now(), utc_ms: 0, commands: vec![command] };
        let mut applied = self.table.apply(self.table.applied() + 1, &batch).unwrap();
        for effect in applied.effects {
            self.effect(effect);
        }
        applied.answers.remove(0)
    }

    fn tick(&mut self, now: CellTime) {
        let batch = Batch { now, utc_ms: 0, commands: vec![Command::Tick] };
        let applied = self.table.apply(self.table.applied() + 1, &batch).unwrap();
        for effect in applied.effects {
            self.effect(effect);
        }
        if self.frozen {
            return;
        }
        let due: Vec<SessionId> =
            self.sessions.iter().filter(|(_, due)| **due <= Instant::now()).map(|(id, _)| *id).collect();
        for session in due {
            self.expire(session);
        }
    }

    /// Expires a session, as if it had not been renewed.
    pub(super) fn end(&mut self, session: SessionId) {
        self.expire(session);
    }

    /// Releases a lock by force, like an operator.
    pub(super) fn force(&mut self, lock: &str) {
        self.apply(Command::ForceRelease { lock: lock.into(), reason: "test".into(), by: "".into() })
            .unwrap();
    }

    fn expire(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        if let Some(version) = self.table.session(session).map(|session| session.version) {
            self.apply(Command::ExpireSession { session, version }).unwrap();
        }
    }

    fn renew(&mut self, session: SessionId) -> u64 {
        let Some(ttl_ms) = self.table.session(session).map(|session| session.ttl_ms) else { return 0 };
        self.sessions.insert(session, Instant::now() + Duration::from_millis(ttl_ms));
        ttl_ms
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Granted { ticket, grant, .. } => {
                for (stream, id) in self.queued.remove(&ticket).unwrap_or_default() {
                    self.answer(stream, id, AnswerKind::Grant(wire_grant(&grant)));
                }
            }
            Effect::Ended { ticket, refusal, .. } => {
                for (stream, id) in self.queued.remove(&ticket).unwrap_or_default() {
                    self.answer(stream, id, AnswerKind::Error(wire_error(&refusal)));
                }
            }
            Effect::Freed { session, lock, token, why: Freed::Forced, .. } => {
                let kind = v1::event::Kind::GrantLost(v1::GrantLost {
                    session: session.to_string(),
                    lock: lock.to_string(),
                    token: token.0,
                    why: "forced".into(),
                });
                self.event(session, kind);
            }
            Effect::SessionEnded { session, .. } => {
                self.sessions.remove(&session);
                let ended = v1::SessionEnded { session: session.to_string(), why: "expired".into() };
                self.event(session, v1::event::Kind::SessionEnded(ended));
            }
            Effect::Freed { .. } | Effect::ExpiryStale { .. } => {}
        }
    }

    fn send(&mut self, stream: u64, frame: v1::ServerFrame) {
        if let (false, Some(sender)) = (self.mute, self.streams.get(&stream)) {
            let _ = sender.try_send(frame);
        }
    }

    fn event(&mut self, session: SessionId, kind: v1::event::Kind) {
        if let Some(&stream) = self.attached.get(&session) {
            let events = vec![v1::Event { kind: Some(kind) }];
            self.send(stream, v1::ServerFrame { answers: vec![], events });
        }
    }

    fn answer(&mut self, stream: u64, id: u64, kind: AnswerKind) {
        let answers = vec![v1::Answer { id, kind: Some(kind) }];
        self.send(stream, v1::ServerFrame { answers, events: vec![] });
    }

    fn execute(&mut self, stream: u64, frame: v1::ClientFrame) {
        self.frames += 1;
        for operation in frame.operations {
            let kind = operation.kind.unwrap();
            self.seen.push(describe(&kind));
            if self.deaf || !self.streams.contains_key(&stream) {
                continue;
            }
            if let Some(error) = self.fails.clone() {
                self.answer(stream, operation.id, AnswerKind::Error(error));
                continue;
            }
            if let Some(answer) = self.run(stream, operation.id, kind) {
                self.answer(stream, operation.id, answer);
            }
        }
    }

    fn run(&mut self, stream: u64, id: u64, kind: OperationKind) -> Option<AnswerKind> {
        let session = |text: &str| text.parse::<SessionId>().unwrap();
        let command = match kind {
            OperationKind::OpenSession(request) => {
                self.next_session += 1;
                let session = SessionId(self.next_session);
                let owner = request.owner.into();
                return Some(
                    match self.apply(Command::OpenSession {
                        session,
                        ttl_ms: request.ttl_ms,
                        owner,
                        identity: None,
                    }) {
                        Ok(_) => {
                            self.attached.insert(session, stream);
                            let ttl_ms = self.renew(session);
                            AnswerKind::OpenSession(v1::OpenSessionResponse {
                                session: session.to_string(),
                                ttl_ms,
                            })
                        }
                        Err(refusal) => AnswerKind::Error(wire_error(&refusal)),
                    },
                );
            }
            OperationKind::KeepAlive(_) if self.no_renewals => return None,
            OperationKind::KeepAlive(request) => {
                let ttl_ms = request.sessions.iter().map(|text| self.renew(session(text))).collect();
                return Some(AnswerKind::KeepAlive(v1::KeepAliveAllResponse { ttl_ms }));
            }
            OperationKind::Attach(request) => {
                let session = session(&request.session);
                let Some(ttl_ms) = self.table.session(session).map(|session| session.ttl_ms) else {
                    return Some(AnswerKind::Error(wire_error(&Refusal::SessionLost)));
                };
                if let Some(older) = self.attached.insert(session, stream)
                    && older != stream
                {
                    self.streams.remove(&older);
                }
                let grants = self.table.grants_of(session).map(|grant| wire_grant(&grant)).collect();
                return Some(AnswerKind::Attach(v1::AttachResponse { ttl_ms, grants }));
            }
            OperationKind::GetLock(request) => {
                let view = self.table.lock_view(&request.lock.as_str().into(), self.table.now(), 100);
                return Some(AnswerKind::Lock(v1::LockState {
                    lock: request.lock,
                    capacity: view.capacity,
                    last_token: view.last_token.0,
                    holders: view
                        .holders
                        .iter()
                        .map(|holder| v1::Holder {
                            session: holder.session.to_string()[..8].to_owned(),
                            token: holder.token.0,
                            owner: holder.owner.to_string(),
                            ..Default::default()
                        })
                        .collect(),
                    waiting: view.waiting,
                    ..Default::default()
                }));
            }
            OperationKind::GetValue(request) => {
                let value = self.table.value(&request.key).map(|value| v1::Value {
                    key: request.key.clone(),
                    value: value.bytes.to_vec(),
                    version: value.version,
                    token: value.token.0,
                });
                return Some(AnswerKind::Value(value.unwrap_or_default()));
            }
            OperationKind::CheckToken(request) => {
                let lock = request.lock.as_str().into();
                let valid = self.table.holds(&lock, Token(request.token));
                let last_token = self.table.last_token_of(&lock).0;
                return Some(AnswerKind::CheckToken(v1::CheckTokenResponse { valid, last_token }));
            }
            OperationKind::Status(_) => {
                return Some(AnswerKind::Status(v1::StatusResponse { node_id: 7, ..Default::default() }));
            }
            OperationKind::HandOver(_) | OperationKind::TakeRate(_) | OperationKind::ObserveElection(_) => {
                return None;
            }
            OperationKind::ListLocks(_) => return Some(AnswerKind::Locks(v1::ListLocksResponse::default())),
            OperationKind::GetHistory(_) => return Some(AnswerKind::History(v1::LockHistory::default())),
            OperationKind::GetAudit(_) => return Some(AnswerKind::Audit(v1::Audit::default())),
            OperationKind::Authenticate(_) => return Some(AnswerKind::Done(v1::Done {})),
            OperationKind::GetTop(_) => return Some(AnswerKind::Top(v1::Top::default())),
            OperationKind::GetWaitGraph(_) => return Some(AnswerKind::WaitGraph(v1::WaitGraph::default())),
            OperationKind::Acquire(request) => Command::Acquire(Acquire {
                request: Some(request.request.as_str().into()),
                wait: wait(request.wait_ms, request.wait_forever),
                lock_delay_ms: request.lock_delay_ms,
                mode: if request.mode == Some(1) {
                    lockkeeper_core::Mode::Shared
                } else {
                    Default::default()
                },
                permits: request.permits,
                capacity: request.capacity,
                ..Acquire::new(session(&request.session), Locks::One(request.lock.into()))
            }),
            OperationKind::AcquireAll(request) => Command::Acquire(Acquire {
                request: Some(request.request.as_str().into()),
                wait: wait(request.wait_ms, request.wait_forever),
                ..Acquire::new(
                    session(&request.session),
                    Locks::many(request.locks.into_iter().map(SmolStr::from)),
                )
            }),
            OperationKind::Release(request) => Command::Release {
                session: session(&request.session),
                lock: request.lock.into(),
                token: Token(request.token),
                forget: request.forget,
            },
            OperationKind::Cancel(request) => Command::Cancel {
                session: session(&request.session),
                what: Waiting::Request(request.request.into()),
            },
            OperationKind::CloseSession(request) => {
                Command::CloseSession { session: session(&request.session) }
            }
            OperationKind::ForceRelease(request) => Command::ForceRelease {
                lock: request.lock.into(),
                reason: request.reason.into(),
                by: "".into(),
            },
            OperationKind::PutValue(request) => Command::PutValue {
                key: request.key.into(),
                value: request.value.into(),
                fence: fence(request.fence),
                if_version: request.if_version,
            },
            OperationKind::DeleteValue(request) => Command::DeleteValue {
                key: request.key.into(),
                fence: fence(request.fence),
                if_version: request.if_version,
            },
        };
        match self.apply(command) {
            Ok(Reply::Queued { ticket }) => {
                self.queued.entry(ticket).or_default().push((stream, id));
                None
            }
            Ok(Reply::Granted(grant)) => Some(AnswerKind::Grant(wire_grant(&grant))),
            Ok(Reply::Put { version }) => Some(AnswerKind::PutValue(v1::PutValueResponse { version })),
            Ok(Reply::Forced { released, last_token }) => {
                Some(AnswerKind::ForceRelease(v1::ForceReleaseResponse {
                    released,
                    last_token: last_token.0,
                }))
            }
            Ok(_) => Some(AnswerKind::Done(v1::Done {})),
            Err(refusal) => Some(AnswerKind::Error(wire_error(&refusal))),
        }
    }
}

fn describe(kind: &OperationKind) -> String {
    match kind {
        OperationKind::OpenSession(request) => format!("open {}", request.ttl_ms),
        OperationKind::KeepAlive(request) => format!("keep-alive {}", request.sessions.len()),
        OperationKind::CloseSession(_) => "close".into(),
        OperationKind::Acquire(request) => format!("acquire {} {}", request.lock, request.request),
        OperationKind::AcquireAll(request) => format!("acquire-all {}", request.locks.join(",")),
        OperationKind::Release(request) => format!("release {} {}", request.lock, request.forget),
        OperationKind::Cancel(request) => format!("cancel {}", request.request),
        OperationKind::Attach(_) => "attach".into(),
        OperationKind::PutValue(request) => format!("put {}", request.key),
        other => format!("{other:?}"),
    }
}

fn wait(wait_ms: u64, forever: bool) -> Wait {
    match (forever, wait_ms) {
        (true, _) => Wait::Forever,
        (false, 0) => Wait::No,
        (false, ms) => Wait::ForMs(ms),
    }
}

fn fence(fence: Option<v1::Fence>) -> Option<Fence> {
    fence.map(|fence| Fence { lock: fence.lock.into(), token: Token(fence.token) })
}

fn wire_grant(grant: &lockkeeper_core::Grant) -> v1::Grant {
    v1::Grant {
        locks: grant.locks.as_slice().iter().map(ToString::to_string).collect(),
        token: grant.token.0,
        mode: (grant.mode == lockkeeper_core::Mode::Shared) as i32,
        // Without a sequencer, as for a brief request: the library computes it.
        ..Default::default()
    }
}

fn wire_error(refusal: &Refusal) -> v1::Error {
    lockkeeper_api::Error::from(refusal).into()
}
