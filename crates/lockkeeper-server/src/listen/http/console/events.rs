//! Live views of the console as server-sent events. Each event is the whole view, sent when it changes.
//!
//! A view shows what this node has applied, also on a follower, and says so. All durations are measured up to `as_of_ms`, so
//! that a view without changes stays the same; the page adds the time since.

use std::convert::Infallible;
use std::hash::{Hash, Hasher};
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

use super::super::caller_api::CallerApi;
use super::super::error::{self, Error};
use super::super::query::Query;
use crate::api::Api;
use crate::failure::Failure;
use crate::limits::budget::{ByteBudget, ConnectionBudget};
use crate::limits::console_seats::ConsoleSeat;
use crate::observe::disk::Disk;

/// When a page that found no seat should retry.
const PAGE_RETRY_MS: u64 = 5_000;
/// How often to check for changes.
const POLL_EVERY: Duration = Duration::from_millis(250);
/// A view is rebuilt at least this often: the progress of members is not in the log.
const REBUILD_EVERY: Duration = Duration::from_secs(1);
/// An unchanged view is sent again this often, to show that the node is alive.
const RESEND_EVERY: Duration = Duration::from_secs(2);

/// The view that a page subscribes to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ViewQuery {
    /// cell, locks, lock, graph, sessions, top, elections or audit.
    view: String,
    /// The lock, for the view lock.
    #[serde(default)]
    name: String,
    /// A prefix of the names, for the view locks.
    #[serde(default)]
    prefix: String,
    /// The entry before the page, for the views locks, sessions and elections.
    #[serde(default)]
    after: String,
    /// A substring of the owner, for the view sessions.
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

impl ViewQuery {
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
                    "unknown view \"{other}\": choose cell, locks, lock, graph, sessions, top, elections or audit"
                )));
            }
        })
    }
}

pub(in super::super) async fn events(
    CallerApi(api): CallerApi,
    connection: Option<Extension<ConnectionBudget>>,
    Query(query): Query<ViewQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Error> {
    let view = query.view()?;
    view.check_rights(&api)?;
    let seat =
        api.shared().console_seats.take(api.principal().identity()).ok_or_else(|| Failure::Overload {
            why: "too many console pages watch this node: close some, or open the console of another node"
                .into(),
            retry_after_ms: PAGE_RETRY_MS,
        })?;
    let mut ticker = tokio::time::interval(POLL_EVERY);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watch = Watch {
        view,
        ticker,
        disk: None,
        seen: None,
        built_at: None,
        sent: None,
        sent_at: None,
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
    /// Checks that the caller may see the view. Called before each event, because rules and tokens can change.
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
            // Shows elections of any name, like the acts of operators.
            View::Elections { .. } | View::Audit => Request::Audit { limit: 0 },
        })
    }
}

/// Returns the last event of a page that has lost its rights.
fn refusal(failure: &Failure) -> Event {
    Event::default().event("error").json_data(error::body(failure)).unwrap_or_default()
}

/// A page that watches a view.
struct Watch {
    api: Api,
    budget: ByteBudget,
    view: View,
    ticker: Interval,
    disk: Option<Disk>,
    /// The applied entry, the leader and the term of the last build.
    seen: Option<(u64, Option<u64>, u64)>,
    built_at: Option<Instant>,
    /// A hash of the last event, whose text may be long.
    sent: Option<u64>,
    sent_at: Option<Instant>,
    clock: Clock,
    _seat: ConsoleSeat,
}

/// Extrapolates cell time between entries, also on a follower.
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

/// The state of the node that is sent with every view.
#[derive(Serialize)]
struct NodeContext {
    node_id: u64,
    leader: Option<u64>,
    leader_address: Option<String>,
    /// Whether this node leads with a valid lease.
    leads: bool,
    term: u64,
    as_of_ms: u64,
    cell_time_ms: u64,
}

impl Watch {
    /// Waits for a changed view, or for the end of the caller's rights.
    async fn next(&mut self) -> Result<String, Failure> {
        loop {
            self.ticker.tick().await;
            self.refresh_disk().await;
            self.view.check_rights(&self.api)?;
            if !self.is_due() || self.budget.check_read().is_err() {
                continue;
            }
            let permit = self.budget.read_turn().await;
            let text = self.build_event();
            drop(permit);
            if let Some(text) = text {
                return Ok(text);
            }
        }
    }

    async fn refresh_disk(&mut self) {
        if matches!(self.view, View::Cell) {
            self.disk = self.api.disk_watch().usage().await;
        }
    }

    /// Whether the view may have changed.
    fn is_due(&self) -> bool {
        let raft = self.api.consensus().status();
        self.seen != Some((raft.applied, raft.leader, raft.term)) || is_past(self.built_at, REBUILD_EVERY)
    }

    fn build_event(&mut self) -> Option<String> {
        let raft = self.api.consensus().status();
        self.seen = Some((raft.applied, raft.leader, raft.term));
        self.built_at = Some(Instant::now());
        let applied = self.api.shared().table().now();
        let data = self.data();
        let sent = hash(&data);
        if self.sent == Some(sent) && !is_past(self.sent_at, RESEND_EVERY) {
            return None;
        }
        self.sent_at = Some(Instant::now());
        let leads = self.api.check_leads().is_ok();
        let cell_time = match self.api.shared().leader_term.now() {
            Ok(now) => now,
            Err(_) => self.clock.now(applied),
        };
        let context = NodeContext {
            node_id: self.api.home().identity().node_id,
            leader: raft.leader,
            leader_address: raft.leader_address,
            leads,
            term: raft.term,
            as_of_ms: applied.0 / 1_000,
            cell_time_ms: cell_time.0.max(applied.0) / 1_000,
        };
        let text = format!("{{\"around\":{},\"data\":{data}}}", json(&context));
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
    // Plain data with string keys always serializes to JSON.
    serde_json::to_string(view).unwrap_or_else(|_| "null".to_owned())
}
