//! The one task of a keeper: it owns the link, the sessions and all that is in hand.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_api::v1::operation::Kind as Asked;
use lockkeeper_api::v1::{ClientFrame, Operation, ServerFrame};
use smol_str::SmolStr;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::Sleep;

use super::scout::{self, Doubt, Verdict};
use super::session::Sessions;
use super::transport::{Link, Opening, Refused, Transport};
use super::upkeep::PATIENCE_MIN;
use super::work::{ByNumber, Entry, Held, Request, Work};
use crate::backoff;
use crate::clock::{Moment, SLICE};
use crate::events::Event as KeeperEvent;
use crate::options::Options;

/// Most operations in one frame.
const FRAME_OPERATIONS_MAX: usize = 1_024;
/// Most bytes of values in one frame: nodes take frames of 4 MiB.
const FRAME_VALUE_BYTES_MAX: usize = 1 << 20;
/// Most operations that gather for the next frames; then requests are left in their queue, and callers wait.
const OUTGOING_MAX: usize = 8 * FRAME_OPERATIONS_MAX;
/// Most work that gathers while there is no link.
const DETACHED_WORK_MAX: usize = 200_000;
/// Most requests that are taken at once.
const TAKEN_MAX: usize = 1_024;

/// What can happen to the connection.
enum Event {
    /// Callers want something.
    Asked,
    /// No caller and no guard is left.
    CallersGone,
    /// Callers no longer want what they asked for.
    GivenBack,
    /// The node says something, or the link is gone.
    Frame(Result<ServerFrame, Refused>),
    /// The link can take a frame.
    Room,
    /// There is a link, or there is none.
    Opened(Result<Link, Refused>),
    /// Another node has said who leads.
    Verdict(Verdict),
    /// It is time to look at the clock.
    Timer,
}

pub(super) enum LinkState {
    Up(Link),
    Opening(Opening),
    Down { until: Moment },
}

/// The keeper is being closed.
pub(super) struct Closing {
    pub(super) until: Moment,
    pub(super) replies: Vec<oneshot::Sender<()>>,
}

pub(super) struct Connection {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) options: Options,
    requests: mpsc::Receiver<Request>,
    give_backs: mpsc::UnboundedReceiver<u64>,
    /// There will be no more requests: the queue of requests is closed.
    callers_gone: bool,
    taken: Vec<Request>,
    given_back: Vec<u64>,
    pub(super) numbers: Arc<AtomicU64>,
    pub(super) events: broadcast::Sender<KeeperEvent>,

    pub(super) link: LinkState,
    /// Which node to try next, and how often it went wrong since the last good answer.
    next_host: usize,
    pub(super) failures: usize,
    /// How many nodes in a row have named another one as the leader.
    pub(super) redirects: usize,
    /// Another node leads: go there once the present frame is dealt with, and nothing would be in doubt by that.
    pub(super) moved: Option<Option<SmolStr>>,
    leader: Option<SmolStr>,
    /// The id of the node that we are connected to, if it has told.
    pub(super) node: Option<u64>,
    pub(super) doubt: Doubt,

    pub(super) sessions: Sessions,
    /// All that waits for an answer, by number. Invariant: what is not `sent` goes out as soon as there is a link that
    /// speaks for its session.
    pub(super) work: ByNumber<Entry>,
    /// Wire ids that are not the number of their entry.
    pub(super) aliases: ByNumber<u64>,
    /// What guards hold, by the number of the acquire.
    pub(super) held: ByNumber<Held>,
    /// Operations that gather for the next frame.
    pub(super) outgoing: Vec<Operation>,
    outgoing_value_bytes: usize,

    pub(super) renew_at: Moment,
    /// When the oldest renewal that was not answered was sent.
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
        give_backs: mpsc::UnboundedReceiver<u64>,
        numbers: Arc<AtomicU64>,
        events: broadcast::Sender<KeeperEvent>,
    ) -> Connection {
        Connection {
            transport,
            options,
            requests,
            give_backs,
            callers_gone: false,
            taken: Vec::new(),
            given_back: Vec::new(),
            numbers,
            events,
            link: LinkState::Up(link),
            next_host: 0,
            failures: 0,
            redirects: 0,
            moved: None,
            leader: None,
            node: None,
            doubt: Doubt::none(Moment::now()),
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
            // Under load there is always something else to do first: what is due must not wait for a quiet turn.
            if Moment::now() >= armed {
                self.upkeep(Moment::now());
                self.flush();
                armed = self.arm(timer.as_mut(), Moment::NEVER);
            }
            match self.next_event(timer.as_mut()).await {
                Event::Asked => {
                    // What was dropped goes out with what is asked, in the same frame, and before it: it may be the same
                    // lock. (A give-back that overtakes its own acquire is harmless: see `wait.rs`.)
                    self.take_give_backs();
                    self.on_requests();
                }
                Event::CallersGone => {
                    self.callers_gone = true;
                    self.close(None, Moment::now());
                }
                Event::GivenBack => self.on_give_backs(),
                Event::Frame(Ok(frame)) => {
                    let now = Moment::now();
                    match scout::has_nothing_to_give(&frame) {
                        true => self.doubt.grow(now),
                        false => self.doubt.dispel(now),
                    }
                    self.on_frame(frame, now);
                }
                Event::Frame(Err(refused)) => self.drop_link(&refused, Moment::now()),
                Event::Room => {}
                Event::Opened(Ok(link)) => self.on_link(link, Moment::now()),
                Event::Opened(Err(refused)) => self.on_refused(&refused, Moment::now()),
                Event::Verdict(verdict) => self.on_verdict(verdict, Moment::now()),
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
                LinkState::Up(link) if has_outgoing || link.frames.is_behind() => tokio::select! {
                    biased;
                    frame = link.answers.next() => Event::Frame(frame),
                    () = link.frames.room() => Event::Room,
                },
                LinkState::Up(link) => Event::Frame(link.answers.next().await),
                LinkState::Opening(opening) => Event::Opened(opening.await),
                LinkState::Down { .. } => std::future::pending().await,
            }
        };
        let scout = async {
            match &mut self.doubt.scout {
                Some(scout) => Event::Verdict(scout.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            event = link => event,
            event = scout => event,
            count = self.requests.recv_many(&mut self.taken, TAKEN_MAX), if takes => match count {
                0 => Event::CallersGone,
                _ => Event::Asked,
            },
            1.. = self.give_backs.recv_many(&mut self.given_back, TAKEN_MAX) => Event::GivenBack,
            () = timer => Event::Timer,
        }
    }

    fn on_requests(&mut self) {
        let now = Moment::now();
        let mut taken = std::mem::take(&mut self.taken);
        for request in taken.drain(..) {
            self.take(request, now);
        }
        self.taken = taken;
    }

    fn take_give_backs(&mut self) {
        // Some at a time, as with requests: others have their turn, and the link has room for what is asked.
        while self.given_back.len() < TAKEN_MAX
            && let Ok(number) = self.give_backs.try_recv()
        {
            self.given_back.push(number);
        }
        if !self.given_back.is_empty() {
            self.on_give_backs();
        }
    }

    fn on_give_backs(&mut self) {
        let now = Moment::now();
        let mut given_back = std::mem::take(&mut self.given_back);
        for number in given_back.drain(..) {
            self.give_back(number, now);
        }
        self.given_back = given_back;
    }

    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, LinkState::Up(_))
    }

    pub(super) fn tell(&self, event: KeeperEvent) {
        // Nobody may be listening.
        let _ = self.events.send(event);
    }

    /// Puts an operation into the next frame.
    pub(super) fn push(&mut self, wire: u64, asked: Asked) {
        if let Asked::PutValue(put) = &asked {
            self.outgoing_value_bytes += put.value.len();
        }
        self.outgoing.push(Operation { id: wire, kind: Some(asked) });
    }

    /// Gives the link all that has gathered, as one frame, if it can take one.
    fn flush(&mut self) {
        match &self.link {
            LinkState::Up(link) if !self.outgoing.is_empty() && link.frames.has_room() => {}
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

    /// How many of the operations that have gathered fit into one frame.
    fn frame_length(&self) -> usize {
        let count = self.outgoing.len().min(FRAME_OPERATIONS_MAX);
        if self.outgoing_value_bytes <= FRAME_VALUE_BYTES_MAX {
            return count;
        }
        let mut bytes = 0;
        for (index, operation) in self.outgoing[..count].iter().enumerate() {
            if let Some(Asked::PutValue(put)) = &operation.kind {
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

    /// The link is gone: what was on it is sent again on the next one, or answered `Unknown`.
    pub(super) fn drop_link(&mut self, refused: &Refused, now: Moment) {
        if !self.is_up() {
            return;
        }
        tracing::debug!(why = %refused.why, "the connection is gone");
        self.tell(KeeperEvent::Disconnected { why: refused.why.clone() });
        // What was never handed to the link did not happen.
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
        self.moved = None;
        self.doubt = Doubt::none(now);
        self.forget_link();
        self.on_refused(refused, now);
    }

    /// There is no link: when to try which node next.
    fn on_refused(&mut self, refused: &Refused, now: Moment) {
        self.failures += 1;
        self.leader = refused.leader.clone();
        self.redirects = if self.leader.is_some() { self.redirects + 1 } else { 0 };
        let pause = match &self.leader {
            // To the leader at once; but two nodes that point at each other must not keep us spinning.
            Some(_) if self.redirects <= 2 => Duration::ZERO,
            _ => self.at_most_half_a_renewal(backoff::pause_in_fail_over(self.failures)),
        };
        if self.leader.is_none() {
            self.next_host += 1;
        }
        self.link = LinkState::Down { until: now.plus(pause) };
    }

    /// A cell that is back gives every session its full time once: whoever rests for longer comes too late.
    fn at_most_half_a_renewal(&self, pause: Duration) -> Duration {
        match self.sessions.renewal_interval() {
            Some(interval) => pause.min((interval / 2).max(backoff::FIRST)),
            None => pause,
        }
    }

    /// Tries the next node. With sessions to renew there is no time to wait long for one that does not answer.
    pub(super) fn open_link(&mut self) {
        let opening = self.transport.open(self.next_host, self.leader.take());
        self.link = LinkState::Opening(match self.sessions.renewal_interval() {
            Some(interval) => within(interval.max(PATIENCE_MIN), opening),
            None => opening,
        });
    }

    /// There is a link: speak for our sessions first, then send all that waits.
    fn on_link(&mut self, link: Link, now: Moment) {
        self.tell(KeeperEvent::Connected { address: link.address.clone() });
        self.link = LinkState::Up(link);
        self.doubt = Doubt::none(now);
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

fn within(limit: Duration, opening: Opening) -> Opening {
    Box::pin(async move {
        match tokio::time::timeout(limit, opening).await {
            Ok(result) => result,
            Err(_) => Err(Refused::because(smol_str::format_smolstr!("no answer within {limit:?}"))),
        }
    })
}
