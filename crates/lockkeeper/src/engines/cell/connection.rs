//! The task of a keeper: owns the link, the sessions and all pending work.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_api::v1::operation::Kind as OperationKind;
use lockkeeper_api::v1::{ClientFrame, Operation, ServerFrame};
use smol_str::SmolStr;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::Sleep;

use super::leader_check::{self, LeaderCheck, ReportedLeader};
use super::session::Sessions;
use super::transport::{Link, LinkError, Opening, Transport};
use super::upkeep::RENEWAL_TIMEOUT_MIN;
use super::work::{ByNumber, Entry, Held, Request, Work};
use crate::backoff;
use crate::clock::{Moment, SLICE};
use crate::events::Event as KeeperEvent;
use crate::options::Options;

/// Maximum number of operations in one frame.
const FRAME_OPERATIONS_MAX: usize = 1_024;
/// Maximum size of the values in one frame, in bytes: nodes accept frames of 4 MiB.
const FRAME_VALUE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of operations queued for the next frames; above it, requests stay in their channel and callers wait.
const OUTGOING_MAX: usize = 8 * FRAME_OPERATIONS_MAX;
/// Maximum number of pending requests while there is no link.
const DETACHED_WORK_MAX: usize = 200_000;
/// Maximum number of requests that are received at once.
const TAKEN_MAX: usize = 1_024;

/// An event of the connection.
enum Event {
    /// Callers have sent requests.
    Requests,
    /// No caller and no guard is left.
    CallersGone,
    /// Callers have dropped acquires or guards.
    BackgroundReleases,
    /// The node has sent a frame, or the link is lost.
    Frame(Result<ServerFrame, LinkError>),
    /// The link can accept a frame.
    Writable,
    /// A link was opened, or failed to open.
    Opened(Result<Link, LinkError>),
    /// Another node has reported the leader.
    ReportedLeader(ReportedLeader),
    /// A timer is due.
    Timer,
}

pub(super) enum LinkState {
    Up(Link),
    Opening(Opening),
    Down { until: Moment },
}

/// The close of the keeper, in progress.
pub(super) struct Closing {
    pub(super) until: Moment,
    pub(super) replies: Vec<oneshot::Sender<()>>,
}

pub(super) struct Connection {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) options: Options,
    requests: mpsc::Receiver<Request>,
    background_releases: mpsc::UnboundedReceiver<u64>,
    /// The channel of requests is closed.
    callers_gone: bool,
    taken: Vec<Request>,
    released: Vec<u64>,
    pub(super) numbers: Arc<AtomicU64>,
    pub(super) events: broadcast::Sender<KeeperEvent>,

    pub(super) link: LinkState,
    /// The host to try next.
    next_host: usize,
    /// The number of failures since the last success.
    pub(super) failures: usize,
    /// The number of consecutive redirects to another leader.
    pub(super) redirects: usize,
    /// Another node leads: reconnect once the current frame is handled and no unrepeatable operation is in flight.
    pub(super) pending_redirect: Option<Option<SmolStr>>,
    leader: Option<SmolStr>,
    /// The ID of the connected node, if known.
    pub(super) node: Option<u64>,
    pub(super) leader_check: LeaderCheck,

    pub(super) sessions: Sessions,
    /// All work without an answer, by number. Invariant: work that is not `sent` is sent as soon as its session is attached to
    /// a link.
    pub(super) work: ByNumber<Entry>,
    /// Wire IDs that differ from the number of their entry.
    pub(super) aliases: ByNumber<u64>,
    /// The held grants, by the number of their acquire.
    pub(super) held: ByNumber<Held>,
    /// The operations queued for the next frame.
    pub(super) outgoing: Vec<Operation>,
    outgoing_value_bytes: usize,

    pub(super) renew_at: Moment,
    /// When the oldest unanswered renewal was sent.
    pub(super) unanswered_since: Option<Moment>,
    pub(super) give_up_at: Moment,
    pub(super) retry_at: Moment,
    pub(super) idle_at: Moment,
    pub(super) closing: Option<Closing>,
}

impl Connection {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        link: Link,
        options: Options,
        requests: mpsc::Receiver<Request>,
        background_releases: mpsc::UnboundedReceiver<u64>,
        numbers: Arc<AtomicU64>,
        events: broadcast::Sender<KeeperEvent>,
    ) -> Connection {
        Connection {
            transport,
            options,
            requests,
            background_releases,
            callers_gone: false,
            taken: Vec::new(),
            released: Vec::new(),
            numbers,
            events,
            link: LinkState::Up(link),
            next_host: 0,
            failures: 0,
            redirects: 0,
            pending_redirect: None,
            leader: None,
            node: None,
            leader_check: LeaderCheck::new(Moment::now()),
            sessions: Sessions::default(),
            work: ByNumber::default(),
            aliases: ByNumber::default(),
            held: ByNumber::default(),
            outgoing: Vec::new(),
            outgoing_value_bytes: 0,
            renew_at: Moment::NEVER,
            unanswered_since: None,
            give_up_at: Moment::NEVER,
            retry_at: Moment::NEVER,
            idle_at: Moment::NEVER,
            closing: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut timer = Box::pin(tokio::time::sleep(SLICE));
        let mut armed = Moment::now().plus(SLICE);
        while !self.is_finished() {
            self.flush();
            armed = self.arm(timer.as_mut(), armed);
            // Under load another event is always ready: timers must not starve.
            if Moment::now() >= armed {
                self.upkeep(Moment::now());
                self.flush();
                armed = self.arm(timer.as_mut(), Moment::NEVER);
            }
            match self.next_event(timer.as_mut()).await {
                Event::Requests => {
                    // Releases of dropped guards go into the same frame, before the requests: they may be for the same
                    // lock. (A background release that overtakes its own acquire is harmless: see `wait.rs`.)
                    self.drain_background_releases();
                    self.on_requests();
                }
                Event::CallersGone => {
                    self.callers_gone = true;
                    self.close(None, Moment::now());
                }
                Event::BackgroundReleases => self.on_background_releases(),
                Event::Frame(Ok(frame)) => {
                    let now = Moment::now();
                    match leader_check::is_only_unavailable(&frame) {
                        true => self.leader_check.on_unavailable(now),
                        false => self.leader_check.on_answer(now),
                    }
                    self.on_frame(frame, now);
                }
                Event::Frame(Err(error)) => self.drop_link(&error, Moment::now()),
                Event::Writable => {}
                Event::Opened(Ok(link)) => self.on_link(link, Moment::now()),
                Event::Opened(Err(error)) => self.on_link_error(&error, Moment::now()),
                Event::ReportedLeader(reported) => self.on_reported_leader(reported, Moment::now()),
                Event::Timer => {
                    armed = Moment::NEVER;
                    self.upkeep(Moment::now());
                }
            }
        }
        for reply in self.closing.into_iter().flat_map(|closing| closing.replies) {
            let _ = reply.send(());
        }
    }

    async fn next_event(&mut self, timer: Pin<&mut Sleep>) -> Event {
        let takes = match &self.link {
            _ if self.callers_gone => false,
            LinkState::Up(_) => self.outgoing.len() < OUTGOING_MAX,
            _ => self.work.len() < DETACHED_WORK_MAX,
        };
        let has_outgoing = !self.outgoing.is_empty();
        let link = async {
            match &mut self.link {
                LinkState::Up(link) if has_outgoing || link.frames.has_unsent() => tokio::select! {
                    biased;
                    frame = link.answers.next() => Event::Frame(frame),
                    () = link.frames.writable() => Event::Writable,
                },
                LinkState::Up(link) => Event::Frame(link.answers.next().await),
                LinkState::Opening(opening) => Event::Opened(opening.await),
                LinkState::Down { .. } => std::future::pending().await,
            }
        };
        let leader_query = async {
            match &mut self.leader_check.query {
                Some(query) => Event::ReportedLeader(query.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            event = link => event,
            event = leader_query => event,
            count = self.requests.recv_many(&mut self.taken, TAKEN_MAX), if takes => match count {
                0 => Event::CallersGone,
                _ => Event::Requests,
            },
            1.. = self.background_releases.recv_many(&mut self.released, TAKEN_MAX) => Event::BackgroundReleases,
            () = timer => Event::Timer,
        }
    }

    fn on_requests(&mut self) {
        let now = Moment::now();
        let mut taken = std::mem::take(&mut self.taken);
        for request in taken.drain(..) {
            self.accept(request, now);
        }
        self.taken = taken;
    }

    fn drain_background_releases(&mut self) {
        // In batches, as with requests, so that neither starves the other.
        while self.released.len() < TAKEN_MAX
            && let Ok(number) = self.background_releases.try_recv()
        {
            self.released.push(number);
        }
        if !self.released.is_empty() {
            self.on_background_releases();
        }
    }

    fn on_background_releases(&mut self) {
        let now = Moment::now();
        let mut released = std::mem::take(&mut self.released);
        for number in released.drain(..) {
            self.release_in_background(number, now);
        }
        self.released = released;
    }

    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, LinkState::Up(_))
    }

    pub(super) fn emit(&self, event: KeeperEvent) {
        // An error means that there are no subscribers.
        let _ = self.events.send(event);
    }

    /// Queues an operation for the next frame.
    pub(super) fn push(&mut self, wire: u64, operation: OperationKind) {
        if let OperationKind::PutValue(put) = &operation {
            self.outgoing_value_bytes += put.value.len();
        }
        self.outgoing.push(Operation { id: wire, kind: Some(operation) });
    }

    /// Sends the queued operations as one frame, if the link can accept one.
    fn flush(&mut self) {
        match &self.link {
            LinkState::Up(link) if !self.outgoing.is_empty() && link.frames.is_writable() => {}
            _ => return,
        }
        let count = self.frame_length();
        let operations = if count == self.outgoing.len() {
            self.outgoing_value_bytes = 0;
            let next = Vec::with_capacity(count.min(64));
            std::mem::replace(&mut self.outgoing, next)
        } else {
            self.outgoing.drain(..count).collect()
        };
        if let LinkState::Up(link) = &mut self.link {
            link.frames.send(ClientFrame { operations });
        }
    }

    /// The number of queued operations that fit into one frame.
    fn frame_length(&self) -> usize {
        let count = self.outgoing.len().min(FRAME_OPERATIONS_MAX);
        if self.outgoing_value_bytes <= FRAME_VALUE_BYTES_MAX {
            return count;
        }
        let mut bytes = 0;
        for (index, operation) in self.outgoing[..count].iter().enumerate() {
            if let Some(OperationKind::PutValue(put)) = &operation.kind {
                bytes += put.value.len();
            }
            if bytes > FRAME_VALUE_BYTES_MAX {
                return index.max(1);
            }
        }
        count
    }

    /// Sets the timer if something is due before it would fire.
    fn arm(&self, timer: Pin<&mut Sleep>, armed: Moment) -> Moment {
        let due = self.next_due();
        if armed != Moment::NEVER && armed <= due {
            return armed;
        }
        let now = Moment::now();
        let due = due.min(now.plus(SLICE));
        timer.reset(tokio::time::Instant::now() + due.since(now));
        due
    }

    /// Drops the link: the operations in flight are resent on the next one, or answered `Unknown`.
    pub(super) fn drop_link(&mut self, error: &LinkError, now: Moment) {
        if !self.is_up() {
            return;
        }
        tracing::debug!(why = %error.why, "lost the connection");
        self.emit(KeeperEvent::Disconnected { why: error.why.clone() });
        // Operations that were never passed to the link did not happen.
        for operation in std::mem::take(&mut self.outgoing) {
            let number = self.aliases.get(&operation.id).copied().unwrap_or(operation.id);
            if let Some(entry) = self.work.get_mut(&number) {
                entry.sent = false;
            }
        }
        self.outgoing_value_bytes = 0;
        self.aliases.clear();
        self.sessions.detach();
        self.unanswered_since = None;
        self.node = None;
        self.pending_redirect = None;
        self.leader_check = LeaderCheck::new(now);
        self.requeue_in_flight();
        self.on_link_error(error, now);
    }

    /// Schedules the next connection attempt after a failure.
    fn on_link_error(&mut self, error: &LinkError, now: Moment) {
        self.failures += 1;
        self.leader = error.leader.clone();
        self.redirects = if self.leader.is_some() { self.redirects + 1 } else { 0 };
        let pause = match &self.leader {
            // Follow a redirect at once, but back off if two nodes redirect to each other.
            Some(_) if self.redirects <= 2 => Duration::ZERO,
            _ => self.at_most_half_a_renewal(backoff::pause_in_fail_over(self.failures)),
        };
        if self.leader.is_none() {
            self.next_host += 1;
        }
        self.link = LinkState::Down { until: now.plus(pause) };
    }

    /// Bounds a pause: a recovered cell grants every session one full time to live, and the next renewal must arrive within it.
    fn at_most_half_a_renewal(&self, pause: Duration) -> Duration {
        match self.sessions.renewal_interval() {
            Some(interval) => pause.min((interval / 2).max(backoff::PAUSE_MIN)),
            None => pause,
        }
    }

    /// Connects to the next node. With sessions to renew, the attempt is limited by the renewal interval.
    pub(super) fn open_link(&mut self) {
        let opening = self.transport.open(self.next_host, self.leader.take());
        self.link = LinkState::Opening(match self.sessions.renewal_interval() {
            Some(interval) => with_timeout(interval.max(RENEWAL_TIMEOUT_MIN), opening),
            None => opening,
        });
    }

    /// Uses a new link: attaches the sessions first, then sends all pending work.
    fn on_link(&mut self, link: Link, now: Moment) {
        self.emit(KeeperEvent::Connected { address: link.address.clone() });
        self.link = LinkState::Up(link);
        self.leader_check = LeaderCheck::new(now);
        let sessions: Vec<_> = self.sessions.all().cloned().collect();
        for session in sessions {
            let number = self.next_number();
            self.submit(number, Entry::new(number, Moment::NEVER, Work::Attach { session }), now);
        }
        self.renew(now);
        self.submit_all(now);
    }

    fn is_finished(&self) -> bool {
        match &self.closing {
            Some(closing) => {
                (self.work.is_empty() && self.outgoing.is_empty()) || Moment::now() >= closing.until
            }
            None => false,
        }
    }
}

fn with_timeout(limit: Duration, opening: Opening) -> Opening {
    Box::pin(async move {
        match tokio::time::timeout(limit, opening).await {
            Ok(result) => result,
            Err(_) => Err(LinkError::new(smol_str::format_smolstr!("no answer within {limit:?}"))),
        }
    })
}
