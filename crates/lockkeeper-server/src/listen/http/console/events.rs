//! The live side of the console: one view as server-sent events, each of them the whole view, sent when it changes.
//!
//! It shows what this node has applied, also on a follower, and says so. All durations are counted up to `as_of_ms`,
//! so that a view in which nothing happens does not change; the page adds the time since.

use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use lockkeeper_core::history::ShortSession;
use lockkeeper_core::{CellTime, Right};
use serde::{Deserialize, Serialize};
use tokio::time::{Interval, MissedTickBehavior};

use super::super::error::{self, Error};
use super::super::on_behalf::OnBehalf;
use super::super::query::Query;
use crate::budget::{ByteBudget, ConnectionBudget};
use crate::calls::Calls;
use crate::console_seats::ConsoleSeat;
use crate::failure::Failure;
use crate::observe::disk::Disk;
use crate::observe::sessions::Wanted;

/// A page that found no seat looks again after this.
const PAGE_RETRY_MS: u64 = 5_000;
/// Between two looks at whether something has changed.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A view is made anew at least this often: how far the members are is in no entry of the log.
const ANEW_EVERY: Duration = Duration::from_secs(1);
/// Also if nothing has changed, the page hears from the node this often.
const SPEAK_EVERY: Duration = Duration::from_secs(2);
/// How often the disk is looked at.
const DISK_EVERY: Duration = Duration::from_secs(5);

/// What the page wants to see.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Asked {
    view: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    after: String,
    #[serde(default)]
    owner: String,
}

#[derive(Debug)]
enum View {
    Cell,
    Locks { prefix: String, after: String },
    Lock { name: String },
    Graph,
    Sessions { owner: String, after: Option<ShortSession> },
    Top,
    Elections { after: String },
    Audit,
}

impl Asked {
    fn view(self) -> Result<View, Failure> {
        Ok(match self.view.as_str() {
            "cell" => View::Cell,
            "locks" => View::Locks { prefix: self.prefix, after: self.after },
            "lock" => {
                lockkeeper_core::limits::check_name("name of the lock", &self.name)?;
                View::Lock { name: self.name }
            }
            "graph" => View::Graph,
            "sessions" => View::Sessions { owner: self.owner, after: Wanted::behind(&self.after)? },
            "top" => View::Top,
            "elections" => View::Elections { after: self.after },
            "audit" => View::Audit,
            other => {
                return Err(Failure::Invalid(format!(
                    "there is no view \"{other}\": choose cell, locks, lock, graph, sessions, top, elections or audit"
                )));
            }
        })
    }
}

pub(in super::super) async fn events(
    OnBehalf(calls): OnBehalf,
    connection: Option<Extension<ConnectionBudget>>,
    Query(asked): Query<Asked>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Error> {
    let view = asked.view()?;
    view.check_rights(&calls)?;
    let seat =
        calls.shared().console_seats.take(calls.who().identity()).ok_or_else(|| Failure::Overload {
            why: "too many pages watch this node already: close some, or open another node's".into(),
            retry_after_ms: PAGE_RETRY_MS,
        })?;
    let mut ticker = tokio::time::interval(LOOK_EVERY);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let folder = calls.home().log().and_then(|log| Some(log.parent()?.to_owned()));
    let watch = Watch {
        view,
        ticker,
        folder,
        disk: None,
        disk_seen: None,
        seen: None,
        made: None,
        sent: None,
        spoke: None,
        clock: Clock { base: CellTime::default(), since: Instant::now() },
        budget: calls.budget(&connection.map(|Extension(connection)| connection).unwrap_or_default()),
        calls,
        _seat: seat,
    };
    Ok(Sse::new(futures_util::stream::unfold(Some(watch), |watch| async move {
        let mut watch = watch?;
        Some(match watch.next().await {
            Ok(text) => (Ok(Event::default().data(text)), Some(watch)),
            Err(failure) => (Ok(refusal(&failure)), None),
        })
    })))
}

impl View {
    /// Whether the caller may see it. Asked before each event: rules and tokens change while a page watches.
    fn check_rights(&self, calls: &Calls) -> Result<(), Failure> {
        match self {
            View::Cell => calls.must_have_rights(),
            View::Locks { prefix, .. } => calls.may_all(Right::Read, prefix),
            View::Lock { name } => calls.may(Right::Read, name),
            View::Graph | View::Sessions { .. } | View::Top | View::Elections { .. } | View::Audit => {
                calls.may_all(Right::Read, "")
            }
        }
    }
}

/// The last event of a page that may see no more.
fn refusal(failure: &Failure) -> Event {
    Event::default().event("error").json_data(error::envelope(failure)).unwrap_or_default()
}

/// One page that watches one view.
struct Watch {
    calls: Calls,
    budget: ByteBudget,
    view: View,
    ticker: Interval,
    folder: Option<PathBuf>,
    disk: Option<Disk>,
    disk_seen: Option<Instant>,
    /// The entry, the leader and the term at the last look.
    seen: Option<(u64, Option<u64>, u64)>,
    made: Option<Instant>,
    /// A hash of what was sent last: the text itself may be long.
    sent: Option<u64>,
    spoke: Option<Instant>,
    clock: Clock,
    _seat: ConsoleSeat,
}

/// Cell time between entries, also on a follower.
struct Clock {
    base: CellTime,
    since: Instant,
}

impl Clock {
    fn now(&mut self, applied: CellTime) -> CellTime {
        if applied != self.base {
            *self = Clock { base: applied, since: Instant::now() };
        }
        CellTime(self.base.0 + self.since.elapsed().as_micros() as u64)
    }
}

/// What comes around every view.
#[derive(Serialize)]
struct Around {
    node_id: u64,
    leader: Option<u64>,
    leader_address: Option<String>,
    /// Whether this node may answer for the cell.
    leads: bool,
    term: u64,
    as_of_ms: u64,
    cell_time_ms: u64,
}

impl Watch {
    /// Waits for something new to show, or for the end of the caller's rights.
    async fn next(&mut self) -> Result<String, Failure> {
        loop {
            self.ticker.tick().await;
            self.look_at_disk().await;
            self.view.check_rights(&self.calls)?;
            if !self.is_due() || self.budget.check_read().is_err() {
                continue;
            }
            let permit = self.budget.read_turn().await;
            let text = self.look();
            drop(permit);
            if let Some(text) = text {
                return Ok(text);
            }
        }
    }

    async fn look_at_disk(&mut self) {
        let Some(folder) = self.folder.clone().filter(|_| matches!(self.view, View::Cell)) else { return };
        if self.disk_seen.is_some_and(|seen| seen.elapsed() < DISK_EVERY) {
            return;
        }
        self.disk_seen = Some(Instant::now());
        let looked = tokio::task::spawn_blocking(move || Disk::of(&folder)).await;
        self.disk = looked.ok().and_then(Result::ok);
    }

    /// Whether there may be something new to show.
    fn is_due(&self) -> bool {
        let raft = self.calls.consensus().status();
        self.seen != Some((raft.applied, raft.leader, raft.term)) || is_past(self.made, ANEW_EVERY)
    }

    fn look(&mut self) -> Option<String> {
        let raft = self.calls.consensus().status();
        self.seen = Some((raft.applied, raft.leader, raft.term));
        self.made = Some(Instant::now());
        let applied = self.calls.shared().table().now();
        let data = self.data();
        let sent = hash(&data);
        if self.sent == Some(sent) && !is_past(self.spoke, SPEAK_EVERY) {
            return None;
        }
        self.spoke = Some(Instant::now());
        let leads = self.calls.may_answer().is_ok();
        let cell_time = match self.calls.shared().leader_term.now() {
            Ok(now) => now,
            Err(_) => self.clock.now(applied),
        };
        let around = Around {
            node_id: self.calls.home().identity().node_id,
            leader: raft.leader,
            leader_address: raft.leader_address,
            leads,
            term: raft.term,
            as_of_ms: applied.0 / 1_000,
            cell_time_ms: cell_time.0.max(applied.0) / 1_000,
        };
        let text = format!("{{\"around\":{},\"data\":{data}}}", json(&around));
        self.sent = Some(sent);
        Some(text)
    }

    fn data(&self) -> String {
        let calls = &self.calls;
        let shared = calls.shared();
        if let View::Cell = self.view {
            return json(&calls.cell_health(self.disk));
        }
        let look = calls.look_here();
        match &self.view {
            View::Cell => String::new(),
            View::Locks { prefix, after } => json(&look.locks(prefix, after)),
            // The name was checked when the page asked for it.
            View::Lock { name } => json(&look.lock_in_full(name).ok()),
            View::Graph => json(&look.graph(None).ok()),
            View::Sessions { owner, after } => {
                let wanted = Wanted { after: *after, owner: owner.clone(), limit: 0 };
                json(&look.sessions(&shared.expiry, &wanted))
            }
            View::Top => json(&look.top(&shared.hourly_stats, 20)),
            View::Elections { after } => json(&look.elections(after)),
            View::Audit => json(&look.audit(0)),
        }
    }
}

fn is_past(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}

fn hash(text: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn json(view: &impl Serialize) -> String {
    // Plain data with text keys can always be written as JSON.
    serde_json::to_string(view).unwrap_or_else(|_| "null".to_owned())
}
