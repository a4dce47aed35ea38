//! Keeps a connection to each member open, and sends extra heartbeats to followers whose promise is shorter than the leader's.

use std::sync::Arc;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use tokio::time::Instant;

use super::acks::Acks;
use super::eligibility::Eligibility;
use super::network::Links;
use super::timing::Timing;
use super::types::Member;
use super::{Consensus, Raft};

/// Interval at which the connections are compared with the membership.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// Interval at which a round trip that exceeds the timing is logged.
const REPORT_EVERY: Duration = Duration::from_secs(30);
/// Number of heartbeats during one promise of a follower.
const HEARTBEATS_PER_PROMISE: u32 = 3;

/// Maintains connections and heartbeats until the task is aborted.
pub(super) async fn run(
    raft: Raft,
    links: Arc<Links>,
    acks: Arc<Acks>,
    timing: Timing,
    eligibility: Arc<Eligibility>,
) {
    let mut known: Vec<(u64, Member)> = Vec::new();
    let mut checked = None::<Instant>;
    let mut reported = None::<Instant>;
    loop {
        if checked.is_none_or(|checked| checked.elapsed() >= CHECK_EVERY) {
            checked = Some(Instant::now());
            sync_connections(&raft, &links, &mut known);
            if reported.is_none_or(|reported| reported.elapsed() >= REPORT_EVERY) && report(&links, &timing) {
                reported = Some(Instant::now());
            }
        }
        let pause = match extra_heartbeat_interval(&raft, &acks, &timing) {
            // A leader that must be replaced sends no heartbeats: followers that hear one would not stand for election.
            Some(pause) if eligibility.may_send_heartbeats() => {
                let _ = raft.trigger().heartbeat().await;
                pause
            }
            _ => CHECK_EVERY,
        };
        tokio::time::sleep(pause).await;
    }
}

fn sync_connections(raft: &Raft, links: &Links, known: &mut Vec<(u64, Member)>) {
    let (own, members) = {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let members: Vec<(u64, Member)> =
            metrics.membership_config.nodes().map(|(id, member)| (*id, member.clone())).collect();
        (metrics.id, members)
    };
    if members != *known {
        links.set_members(own, &members);
        *known = members;
    }
}

impl Consensus {
    /// Returns the longest round trip to another voter. One that is not measured yet counts as the longest that the timing
    /// supports.
    pub(crate) fn longest_round_trip(&self) -> Duration {
        let measured = self.links.round_trips();
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let voters = metrics.membership_config.membership().voter_ids().filter(|id| *id != self.node_id);
        let round_trip = |id: u64| measured.get(&id).copied().unwrap_or_else(|| self.timing.round_trip_max());
        voters.map(round_trip).max().unwrap_or_default()
    }
}

/// Logs the slowest member whose round trip exceeds the timing. Returns whether there is one.
fn report(links: &Links, timing: &Timing) -> bool {
    let slowest = links.round_trips().into_iter().max_by_key(|(_, round_trip)| *round_trip);
    let Some((node, round_trip)) = slowest.filter(|(_, slowest)| *slowest > timing.round_trip_max()) else {
        return false;
    };
    tracing::warn!(
        node,
        round_trip_ms = round_trip.as_millis() as u64,
        limit_ms = timing.round_trip_max().as_millis() as u64,
        "the round trip to a member is too long for this timing, leaders may change unnecessarily: set a slower --timing on all nodes"
    );
    true
}

/// Returns the interval of the extra heartbeats, if they are needed. While a rolling restart changes the timing of a cell, a follower may
/// have a shorter promise than this leader's settings imply, and would stand for election between two regular heartbeats.
fn extra_heartbeat_interval(raft: &Raft, acks: &Acks, timing: &Timing) -> Option<Duration> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    if metrics.state != ServerState::Leader {
        return None;
    }
    let voters = metrics.membership_config.membership().voter_ids();
    let shortest = acks.shortest_promise(metrics.vote, voters)?;
    let pause = shortest / HEARTBEATS_PER_PROMISE;
    (pause < timing.heartbeat * 9 / 10 && !pause.is_zero()).then_some(pause)
}
