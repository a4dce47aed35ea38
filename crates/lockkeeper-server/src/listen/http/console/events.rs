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
use lockkeeper_api::Request;
use lockkeeper_api::session::SessionFilter;
use lockkeeper_core::{CellTime, LockName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Interval, MissedTickBehavior};

use super::super::error::{self, Error};
use super::super::on_behalf::OnBehalf;
use super::super::query::Query;
use crate::api::Api;
use crate::budget::{ByteBudget, ConnectionBudget};
use crate::console_seats::ConsoleSeat;
use crate::failure::Failure;
use crate::observe::disk::Disk;

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
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Asked {
    /// cell, locks, lock, graph, sessions, top, elections or audit.
    view: String,
    /// The lock, for the view lock.
    #[serde(default)]
    name: String,
    /// How the names begin, for the view locks.
    #[serde(default)]
    prefix: String,
    /// Where the page begins, for the views locks, sessions and elections.
    #[serde(default)]
    after: String,
    /// A part of the owner, for the view sessions.
    #[serde(default)]
    owner: String,
}

#[derive(Debug)]
enum View {
    Cell,
    Locks { prefix: String, after: String },
    Lock { name: LockName },
    Graph,
    Sessions(SessionFilter),
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
                View::Lock { name: self.name.into() }
            }
            "graph" => View::Graph,
            "sessions" => View::Sessions(SessionFilter::new(&self.after, self.owner, 0)?),
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
    OnBehalf(api): OnBehalf,
    connection: Option<Extension<ConnectionBudget>>,
    Query(asked): Query<Asked>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Error> {
    let view = asked.view()?;
    view.check_rights(&api)?;
    let seat = api.shared().console_seats.take(api.who().identity()).ok_or_else(|| Failure::Overload {
        why: "too many pages watch this node already: close some, or open another node's".into(),
        retry_after_ms: PAGE_RETRY_MS,
    })?;
    let mut ticker = tokio::time::interval(LOOK_EVERY);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let folder = api.home().log().and_then(|log| Some(log.parent()?.to_owned()));
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
        budget: api.budget(&connection.map(|Extension(connection)| connection).unwrap_or_default()),
        api,
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
    fn check_rights(&self, api: &Api) -> Result<(), Failure> {
        api.authorize(&match self {
            View::Cell => Request::Health,
            View::Locks { prefix, .. } => {
                Request::Locks { prefix: prefix.clone(), after: String::new(), limit: 0 }
            }
            View::Lock { name } => Request::Lock(name.clone()),
            View::Graph => Request::Graph(None),
            View::Sessions(filter) => Request::Sessions(filter.clone()),
            View::Top => Request::Top { limit: 0 },
            // Elections of any name are shown, like the acts of operators.
            View::Elections { .. } | View::Audit => Request::Audit { limit: 0 },
        })
    }
}

/// The last event of a page that may see no more.
fn refusal(failure: &Failure) -> Event {
    Event::default().event("error").json_data(error::body(failure)).unwrap_or_default()
}

/// One page that watches one view.
struct Watch {
    api: Api,
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
            self.view.check_rights(&self.api)?;
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
        let raft = self.api.consensus().status();
        self.seen != Some((raft.applied, raft.leader, raft.term)) || is_past(self.made, ANEW_EVERY)
    }

    fn look(&mut self) -> Option<String> {
        let raft = self.api.consensus().status();
        self.seen = Some((raft.applied, raft.leader, raft.term));
        self.made = Some(Instant::now());
        let applied = self.api.shared().table().now();
        let data = self.data();
        let sent = hash(&data);
        if self.sent == Some(sent) && !is_past(self.spoke, SPEAK_EVERY) {
            return None;
        }
        self.spoke = Some(Instant::now());
        let leads = self.api.may_answer().is_ok();
        let cell_time = match self.api.shared().leader_term.now() {
            Ok(now) => now,
            Err(_) => self.clock.now(applied),
        };
        let around = Around {
            node_id: self.api.home().identity().node_id,
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
        let api = &self.api;
        let shared = api.shared();
        if let View::Cell = self.view {
            return json(&api.cell_health(self.disk));
        }
        let view = api.local_view();
        match &self.view {
            View::Cell => String::new(),
            View::Locks { prefix, after } => json(&view.lock_list(prefix, after)),
            View::Lock { name } => json(&view.lock_in_full(name)),
            View::Graph => json(&view.graph(None)),
            View::Sessions(filter) => json(&view.sessions(&shared.expiry, filter)),
            View::Top => json(&view.top(&shared.hourly_stats, 20)),
            View::Elections { after } => json(&view.elections(after)),
            View::Audit => json(&view.audit(0)),
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
