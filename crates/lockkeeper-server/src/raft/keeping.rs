//! Keeps the connections to all members, and the heartbeats as frequent as the followers need them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use tokio::time::Instant;

use super::Raft;
use super::acks::Acks;
use super::network::Links;
use super::timing::Timing;
use super::types::Member;

/// How often the members are compared with the connections.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a round trip that does not fit is reported.
const REPORT_EVERY: Duration = Duration::from_secs(30);
/// A follower hears so many heartbeats within its promise.
const HEARTBEATS_PER_PROMISE: u32 = 3;

/// Runs until it is aborted.
pub(super) async fn run(
    raft: Raft,
    links: Arc<Links>,
    acks: Arc<Acks>,
    timing: Timing,
    sends_heartbeats: Arc<AtomicBool>,
) {
    let mut known: Vec<(u64, Member)> = Vec::new();
    let mut looked = None::<Instant>;
    let mut reported = None::<Instant>;
    loop {
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            looked = Some(Instant::now());
            keep(&raft, &links, &mut known);
            if reported.is_none_or(|reported| reported.elapsed() >= REPORT_EVERY) && report(&links, &timing) {
                reported = Some(Instant::now());
            }
        }
        let pause = match heartbeat_needed(&raft, &acks, &timing) {
            // A leader that has to fall silent is replaced only if none of its heartbeats is heard.
            Some(pause) if sends_heartbeats.load(Ordering::Relaxed) => {
                let _ = raft.trigger().heartbeat().await;
                pause
            }
            _ => LOOK_EVERY,
        };
        tokio::time::sleep(pause).await;
    }
}

fn keep(raft: &Raft, links: &Links, known: &mut Vec<(u64, Member)>) {
    let (own, members) = {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let members: Vec<(u64, Member)> =
            metrics.membership_config.nodes().map(|(id, member)| (*id, member.clone())).collect();
        (metrics.id, members)
    };
    if members != *known {
        links.keep(own, &members);
        *known = members;
    }
}

/// Reports the slowest member whose round trip does not fit the timing; whether there is one.
fn report(links: &Links, timing: &Timing) -> bool {
    let slowest = links.round_trips().into_iter().max_by_key(|(_, round_trip)| *round_trip);
    let Some((node, round_trip)) = slowest.filter(|(_, slowest)| *slowest > timing.round_trip_max()) else {
        return false;
    };
    tracing::warn!(
        node,
        round_trip_ms = round_trip.as_millis() as u64,
        limit_ms = timing.round_trip_max().as_millis() as u64,
        "the round trip to a member is too long for this timing, leaders may change without need: set a slower --timing on all nodes"
    );
    true
}

/// While the timing of a cell is changed, a follower may have a shorter promise than this leader expects from its own settings, and
/// would stand for election between two of its heartbeats. For such followers the leader sends more: in which time the next one.
fn heartbeat_needed(raft: &Raft, acks: &Acks, timing: &Timing) -> Option<Duration> {
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
