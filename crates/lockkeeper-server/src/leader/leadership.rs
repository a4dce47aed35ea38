//! Starts serving when raft elects this node, and stops when it no longer leads.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkeeper_core::mutation::{self, Mutation};
use tokio::time::Instant;

use crate::failure::Failure;
use crate::raft::log::LogStore;
use crate::raft::{Consensus, RaftStatus};
use crate::shared::Shared;

/// Pause between two attempts to confirm the leadership.
const CONFIRM_RETRY: Duration = Duration::from_millis(20);
/// Interval at which a leader checks its quorum.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit for entries in flight before a leader transfers its leadership without waiting for them.
const FINISH_WITHIN: Duration = Duration::from_millis(500);
/// Minimum time for which streams stay open after a transfer. Clients learn the new leader from the answer to their next
/// request, so it is longer than the pause between their retries. A stream that is closed while a request is in flight
/// leaves its outcome unknown.
const STREAMS_STAY_MIN: Duration = Duration::from_millis(120);
/// Idle streams are closed after this time.
const STREAMS_STAY_MAX: Duration = Duration::from_millis(300);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Time after the start of a transfer in which the node does not start serving again.
const YIELD_FOR: Duration = Duration::from_secs(3);

/// Follows raft's state until raft stops. Returns the reason.
pub(crate) async fn follow(shared: Arc<Shared>, consensus: Consensus, log: LogStore) -> String {
    // A leader that has not heard from a majority for this time stops serving, so that its clients do not wait in vain. It
    // remains raft's leader, and serves again when the majority is back.
    let quorum_lost_after = consensus.timing().quorum_lost_after();
    let mut status = consensus.status();
    let mut silent_until = None::<Instant>;
    let mut tries_since = None::<Instant>;
    let mut barrier = None::<Barrier>;
    let mut was_stopped = false;
    loop {
        if silent_until.is_some_and(|until| Instant::now() >= until || !status.leads) {
            consensus.pause_heartbeats(false);
            (silent_until, tries_since) = (None, None);
        }
        if let Some(why) = status.stopped {
            stop_serving(&shared, &RaftStatus { stopped: Some(why.clone()), ..RaftStatus::default() });
            return why;
        }
        let is_stopped = consensus.stopped_by_disagreement().is_some();
        if std::mem::replace(&mut was_stopped, is_stopped) != is_stopped {
            consensus.set_eligible(!is_stopped);
        }
        if consensus.end_failed_hand_over(&status).await {
            shared.leader_term.yield_for(Duration::ZERO);
            status = consensus.status();
        }
        let is_serving = shared.leader_term.term() == Some(status.term);
        if is_stopped {
            // It proposes no barrier either, so that another leader is elected.
            (tries_since, barrier) = (None, None);
            stop_serving(&shared, &status);
        } else if silent_until.is_some() {
            tracing::debug!("no quorum: heartbeats are paused so that another leader can be elected");
        } else if status.leads && !is_serving {
            stop_serving(&shared, &status);
            let tries = *tries_since.get_or_insert_with(Instant::now);
            let pending =
                barrier.take().filter(|pending| pending.term == status.term && !pending.has_ended());
            let pending =
                barrier.insert(pending.unwrap_or_else(|| Barrier::new(&shared, &consensus, status.term)));
            match pending.passed_within(quorum_lost_after).await {
                Ok(()) if consensus.check_agreement().is_ok() => {
                    (tries_since, barrier) = (None, None);
                    consensus.take_doubt();
                    start_serving(&shared, status.term);
                }
                // The next barrier collects the members' next reports.
                Ok(()) => tokio::time::sleep(CHECK_INTERVAL).await,
                Err(_) if tries.elapsed() >= quorum_lost_after && has_lost_quorum(&consensus) => {
                    // The others may still receive this leader's heartbeats, which prevent elections. So it pauses them for
                    // long enough that another leader can be elected, and then tries again: it may be the only node that can
                    // lead.
                    consensus.pause_heartbeats(true);
                    silent_until = Some(Instant::now() + consensus.timing().heartbeat_pause());
                }
                Err(failure) => {
                    tracing::debug!(%failure, "the leadership is not confirmed yet");
                    tokio::time::sleep(CONFIRM_RETRY).await;
                    status = consensus.status();
                    continue;
                }
            }
        } else if !status.leads {
            (tries_since, barrier) = (None, None);
            consensus.forget_reports();
            stop_serving(&shared, &status);
        } else if has_lost_quorum(&consensus) {
            tracing::error!(
                "lost leadership: no answer from a majority for {quorum_lost_after:?}, nothing can be granted"
            );
            stop_serving(&shared, &status);
        } else if let Err(found) = consensus.check_agreement() {
            tracing::error!(
                "nothing is granted until a majority is known to have the same lock table: {found}"
            );
            stop_serving(&shared, &status);
        } else if status.leads && consensus.take_doubt() {
            // Settled before this task saw it. Commands that were refused meanwhile are repeated by a new tenure.
            tracing::info!("the lock tables were compared: serving again after a new barrier");
            stop_serving(&shared, &status);
        }
        // A leader sends its entries while its own disk writes them. Other nodes have nothing to do meanwhile, and
        // the log's thread would cost them more than it saves.
        log.use_log_thread(status.leads && !consensus.is_alone());
        status = tokio::select! {
            biased;
            changed = consensus.changed(&status) => changed,
            // Nothing is granted after a difference is known (S13).
            () = consensus.agreement_changed() => consensus.status(),
            () = tokio::time::sleep(CHECK_INTERVAL) => consensus.status(),
        };
    }
}

/// Condition that a leader must meet before it starts serving (S3): an entry that it proposed after it was elected or last
/// stopped serving is applied. Otherwise an uncommitted expiry of an earlier tenure could still be in the log and end a
/// session whose renewal has been acknowledged since.
///
/// It is proposed only once per attempt, however long that takes: otherwise a leader without a quorum would fill its log
/// with barriers.
struct Barrier {
    term: u64,
    // Invariant: `Some` until it has passed or failed.
    passing: Option<BoxFuture<'static, Result<(), Failure>>>,
}

impl Barrier {
    fn new(shared: &Arc<Shared>, consensus: &Consensus, term: u64) -> Barrier {
        let (shared, consensus) = (shared.clone(), consensus.clone());
        let passing = Box::pin(async move {
            consensus.confirm_leadership().await?;
            if mutation::is_on(Mutation::ServeBeforeBarrier) {
                return Ok(());
            }
            let now = shared.table().now();
            consensus.commit_barrier(shared.proposer_id, now).await
        });
        Barrier { term, passing: Some(passing) }
    }

    /// Waits until it has passed. After a failure it can no longer pass.
    async fn passed_within(&mut self, limit: Duration) -> Result<(), Failure> {
        let Some(passing) = &mut self.passing else { return Err(Failure::no_majority()) };
        match tokio::time::timeout(limit, passing).await {
            Ok(ended) => {
                self.passing = None;
                ended
            }
            Err(_) => Err(Failure::no_majority()),
        }
    }

    fn has_ended(&self) -> bool {
        self.passing.is_none()
    }
}

/// Reports whether no majority has answered for [`Timing::quorum_lost_after`](crate::raft::Timing).
fn has_lost_quorum(consensus: &Consensus) -> bool {
    consensus.lease().silence().is_none_or(|silence| silence > consensus.timing().quorum_lost_after())
}

/// Transfers the leadership to another member, if this node leads and there is one. First it stops serving, because an
/// election that the leader has requested does not wait for its lease to end. Requests in flight are answered before that,
/// because no other node can answer them; later requests are refused, and their clients ask the next leader.
pub(crate) async fn hand_over(shared: &Shared, consensus: &Consensus) -> Result<(), Failure> {
    if !consensus.status().leads {
        return Ok(());
    }
    let successor = consensus
        .successor()
        .ok_or_else(|| Failure::Unavailable("no other member can take over the leadership now".to_owned()))?;
    hand_over_to(shared, consensus, successor).await
}

/// The same, to this member.
pub(crate) async fn hand_over_to(
    shared: &Shared,
    consensus: &Consensus,
    successor: u64,
) -> Result<(), Failure> {
    tracing::info!(to = successor, "handing over the leadership");
    shared.leader_term.yield_for(YIELD_FOR);
    shared.leader_term.close();
    let began = Instant::now();
    while shared.callers.has_pending_answers() && began.elapsed() < FINISH_WITHIN {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    resign(shared, &RaftStatus { leads: true, ..consensus.status() });
    let handed_over = consensus.hand_over(successor).await;
    let status = consensus.status();
    shared.leader_term.end(status.leader_address.filter(|_| !status.leads));
    let began = Instant::now();
    let stays =
        |time: Duration| time < STREAMS_STAY_MIN || (time < STREAMS_STAY_MAX && shared.callers.has_streams());
    while handed_over.is_ok() && stays(began.elapsed()) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    shared.callers.end_streams();
    handed_over
}

fn start_serving(shared: &Shared, term: u64) {
    let table = shared.table();
    // The timer task completes both take-overs in slices.
    shared.expiry.take_over(&table);
    shared.orphans.take_over(&table);
    if !shared.leader_term.begin(term, table.now()) {
        drop(table);
        shared.expiry.stop();
        return;
    }
    let counts = table.counts();
    drop(table);
    shared.give_back_again();
    shared.timers_changed.notify_one();
    tracing::info!(term, sessions = counts.sessions, locks = counts.locks, "this node leads the cell");
}

fn stop_serving(shared: &Shared, status: &RaftStatus) {
    if resign(shared, status) {
        shared.callers.end_streams();
    }
}

/// Stops serving without closing the clients' streams. Returns whether this node was serving.
fn resign(shared: &Shared, status: &RaftStatus) -> bool {
    let was_serving = shared.leader_term.term().is_some();
    if was_serving {
        tracing::warn!(term = status.term, leader = ?status.leader, "this node no longer leads the cell");
    }
    let leader = status.leader_address.clone().filter(|_| !status.leads);
    shared.leader_term.end(leader.clone());
    if was_serving {
        shared.expiry.stop();
        shared.tick_finished();
        shared.queue.refuse_queued(&match leader {
            Some(leader) => Failure::NotLeader { leader: Some(leader) },
            None => Failure::no_leader(),
        });
        shared.callers.fail_all(&Failure::unknown("the leader has changed"));
    }
    was_serving
}
