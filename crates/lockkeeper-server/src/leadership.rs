//! Takes office when raft makes this node the leader, and leaves it when raft no longer does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkeeper_core::mutation::{self, Mutation};
use tokio::time::Instant;

use crate::failure::Failure;
use crate::raft::log::LogStore;
use crate::raft::{Consensus, RaftStatus};
use crate::shared::Shared;

/// Between two tries to have the leadership confirmed.
const CONFIRM_AGAIN: Duration = Duration::from_millis(20);
/// How often a leader looks whether a majority still answers.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long the entries under way may take to be applied before a leader that hands over leaves them to their fate.
const FINISH_WITHIN: Duration = Duration::from_millis(500);
/// After a hand-over the clients hear from whoever they ask where the leader is, and go there. Longer than the pause
/// between two tries of theirs: a stream that is cut while something of its client is on its way leaves that in doubt.
const STAY_AT_LEAST: Duration = Duration::from_millis(120);
/// Clients that ask nothing are sent away then.
const STAY_AT_MOST: Duration = Duration::from_millis(300);
const LOOK_WHO_IS_LEFT: Duration = Duration::from_millis(2);
/// While it hands over, a node does not take office again.
const YIELD_FOR: Duration = Duration::from_secs(3);

/// Follows raft until it ends; says why it ended.
pub(crate) async fn follow(shared: Arc<Shared>, consensus: Consensus, log: LogStore) -> String {
    // A leader that has not heard a majority for so long leaves office, so that nobody waits for it in vain. Raft keeps it as the
    // leader, and it takes office again when they are back.
    let alone_after = consensus.timing().alone_after();
    let mut status = consensus.status();
    let mut silent_until = None::<Instant>;
    let mut tries_since = None::<Instant>;
    let mut barrier = None::<Barrier>;
    let mut was_stopped = false;
    loop {
        if silent_until.is_some_and(|until| Instant::now() >= until || !status.leads) {
            consensus.set_heartbeats(true);
            (silent_until, tries_since) = (None, None);
        }
        if let Some(why) = status.stopped {
            leave(&shared, &RaftStatus { stopped: Some(why.clone()), ..RaftStatus::default() });
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
        let in_office = shared.leader_term.term() == Some(status.term);
        if is_stopped {
            // It proposes nothing either, so that another one is elected.
            (tries_since, barrier) = (None, None);
            leave(&shared, &status);
        } else if silent_until.is_some() {
            tracing::debug!("nobody answers this leader: it waits for another one");
        } else if status.leads && !in_office {
            leave(&shared, &status);
            let tries = *tries_since.get_or_insert_with(Instant::now);
            let pending =
                barrier.take().filter(|pending| pending.term == status.term && !pending.has_ended());
            let pending =
                barrier.insert(pending.unwrap_or_else(|| Barrier::new(&shared, &consensus, status.term)));
            match pending.passed_within(alone_after).await {
                Ok(()) if consensus.check_agreement().is_ok() => {
                    (tries_since, barrier) = (None, None);
                    take(&shared, status.term);
                }
                // The next barrier brings the members' next reports.
                Ok(()) => tokio::time::sleep(LOOK_AGAIN).await,
                Err(_) if tries.elapsed() >= alone_after && is_alone(&consensus) => {
                    // Whoever hears nobody may still be heard, and nobody stands for election as long as a leader is heard. So
                    // it falls silent for long enough that another can be elected, and then tries again: it may be the only one
                    // that can lead.
                    consensus.set_heartbeats(false);
                    silent_until = Some(Instant::now() + consensus.timing().silent_for());
                }
                Err(failure) => {
                    tracing::debug!(%failure, "the leadership is not confirmed yet");
                    tokio::time::sleep(CONFIRM_AGAIN).await;
                    status = consensus.status();
                    continue;
                }
            }
        } else if !status.leads {
            (tries_since, barrier) = (None, None);
            consensus.forget_reports();
            leave(&shared, &status);
        } else if is_alone(&consensus) {
            tracing::error!("a majority of the members does not answer: nothing can be granted");
            leave(&shared, &status);
        } else if let Err(found) = consensus.check_agreement() {
            tracing::error!(
                "nothing is granted until a majority is known to have the same lock table: {found}"
            );
            leave(&shared, &status);
        }
        // A leader's entries travel while its own disk writes them. Everybody else has nothing to do meanwhile, and
        // the thread that would write costs more than it saves.
        log.use_log_thread(status.leads && !consensus.is_alone());
        status = tokio::select! {
            biased;
            changed = consensus.changed(&status) => changed,
            () = tokio::time::sleep(LOOK_AGAIN) => consensus.status(),
        };
    }
}

/// What a leader must have behind it before it takes office (S3): an entry that it proposed after it left office or was
/// elected is applied. Otherwise an expiry of an earlier tenure could still be in the log, not committed, and end a session
/// whose renewal has been acknowledged since.
///
/// It is proposed once for each try to take office, however long that takes: otherwise a leader without a majority would
/// fill its log with them.
struct Barrier {
    term: u64,
    // Invariant: `Some` until it has ended.
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

    /// `Ok` if it is passed. After a failure it cannot pass any more.
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

/// Whether a majority has not answered for long.
fn is_alone(consensus: &Consensus) -> bool {
    consensus.lease().silence().is_none_or(|silence| silence > consensus.timing().alone_after())
}

/// Hands the leadership to another member, if this node leads and there is one. Before it asks for that, it
/// stops answering: an election that the leader has asked for does not wait for its lease to end. What was under way gets
/// its answer first, because nobody else could give it; what comes later is refused, and its client asks the next leader.
pub(crate) async fn hand_over(shared: &Shared, consensus: &Consensus) -> Result<(), Failure> {
    if !consensus.status().leads {
        return Ok(());
    }
    let successor = consensus
        .successor()
        .ok_or_else(|| Failure::Unavailable("no other member can take over the leadership now".to_owned()))?;
    tracing::info!(to = successor, "handing over the leadership");
    shared.leader_term.yield_for(YIELD_FOR);
    shared.leader_term.close();
    let began = Instant::now();
    while shared.callers.expects_answers() && began.elapsed() < FINISH_WITHIN {
        tokio::time::sleep(LOOK_WHO_IS_LEFT).await;
    }
    resign(shared, &RaftStatus { leads: true, ..consensus.status() });
    let handed_over = consensus.hand_over(successor).await;
    let status = consensus.status();
    shared.leader_term.leave(status.leader_address.filter(|_| !status.leads));
    let began = Instant::now();
    let stays =
        |time: Duration| time < STAY_AT_LEAST || (time < STAY_AT_MOST && shared.callers.has_streams());
    while handed_over.is_ok() && stays(began.elapsed()) {
        tokio::time::sleep(LOOK_WHO_IS_LEFT).await;
    }
    shared.callers.send_away();
    handed_over
}

fn take(shared: &Shared, term: u64) {
    let table = shared.table();
    // The timer task does the rest of both, in slices.
    shared.expiry.take_over(&table);
    shared.orphans.take_over(&table);
    if !shared.leader_term.take(term, table.now()) {
        drop(table);
        shared.expiry.stop();
        return;
    }
    let counts = table.counts();
    drop(table);
    shared.timers_changed.notify_one();
    tracing::info!(term, sessions = counts.sessions, locks = counts.locks, "this node leads the cell");
}

fn leave(shared: &Shared, status: &RaftStatus) {
    if resign(shared, status) {
        shared.callers.send_away();
    }
}

/// Leaves office, and says whether this node was in it. Its clients stay.
fn resign(shared: &Shared, status: &RaftStatus) -> bool {
    let was_in_office = shared.leader_term.term().is_some();
    if was_in_office {
        tracing::warn!(term = status.term, leader = ?status.leader, "this node no longer leads the cell");
    }
    let leader = status.leader_address.clone().filter(|_| !status.leads);
    shared.leader_term.leave(leader.clone());
    if was_in_office {
        shared.expiry.stop();
        shared.no_tick_under_way();
        shared.queue.refuse_queued(&match leader {
            Some(leader) => Failure::NotLeader { leader: Some(leader) },
            None => Failure::no_leader(),
        });
        shared.callers.fail_all(&Failure::unknown("the leader has changed"));
    }
    was_in_office
}
