//! The lock table as raft's state machine: applies committed entries and passes their effects to the node.

use std::fmt;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::{Stream, TryStreamExt};
use lockkeeper_core::{Applied, CellTime, LockTable};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use openraft::{EntryPayload, RaftSnapshotBuilder};
use tokio::time::Instant;

use super::agreement::{Agreement, TableHash, Verdict};
use super::departed::Departed;
use super::snapshot::{SnapshotImage, SnapshotStore};
use super::types::{LogId, Member, Membership, Proposal, SnapshotMeta, StoredMembership, TypeConfig};
use crate::limits::blocking;

/// Retry interval after a snapshot could not be written.
const RETRY: Duration = Duration::from_secs(1);

/// Commands that are applied before the task yields. An estimate, not measured.
const COMMANDS_PER_TURN: usize = 256;

/// Owner of the lock table, which handles the effects of applied entries.
pub(crate) trait TableHost: fmt::Debug + Send + Sync {
    /// Locks the lock table.
    fn table(&self) -> MutexGuard<'_, LockTable>;

    /// Reports whether this node leads the cell.
    fn leads(&self) -> bool;

    /// Delivers the answers and effects of an applied entry. `wake_before` is the time at which the table needed its next entry
    /// before this one was applied.
    fn dispatch(&self, proposal: &Proposal, applied: Applied, wake_before: Option<CellTime>);

    /// Fails all callers instead of answering them: this node's table may be wrong (S13).
    fn withhold_answers(&self);

    /// Records that a snapshot was written.
    fn snapshot_written(&self, took: Duration);
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Machine {
    host: Arc<dyn TableHost>,
    agreement: Arc<Agreement>,
    departed: Arc<Departed>,
    snapshots: SnapshotStore,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl Machine {
    /// Creates a state machine on the node's table, which was read from the snapshot with this metadata.
    pub(crate) fn new(
        host: Arc<dyn TableHost>,
        agreement: Arc<Agreement>,
        departed: Arc<Departed>,
        snapshots: SnapshotStore,
        meta: Option<SnapshotMeta>,
    ) -> Machine {
        let (applied, membership) = match meta {
            Some(meta) => (meta.last_log_id, meta.last_membership),
            None => (None, StoredMembership::default()),
        };
        agreement.reset(hash_of(&host.table()));
        agreement.set_voters(membership.membership().get_joint_config());
        Machine { host, agreement, departed, snapshots, applied, membership }
    }

    fn apply_entry(&mut self, entry: &super::types::Entry) -> Result<(), io::Error> {
        // Raft counts from 0, the table from 1: an empty table has applied nothing.
        let number = entry.log_id.index + 1;
        let mut table = self.host.table();
        match &entry.payload {
            EntryPayload::Blank => {
                table.skip(number).map_err(io::Error::other)?;
                // The first entry of every leader.
                table.note_leader(entry.log_id.leader_id.term, entry.log_id.leader_id.node_id);
                self.agreement.applied(hash_of(&table));
            }
            EntryPayload::Membership(membership) => {
                table.skip(number).map_err(io::Error::other)?;
                table.note_members(describe_members(membership));
                self.agreement.set_voters(membership.get_joint_config());
                self.agreement.applied(hash_of(&table));
                drop(table);
                self.set_membership(StoredMembership::new(Some(entry.log_id), membership.clone()));
            }
            EntryPayload::Normal(proposal) => {
                let wake_before = table.next_entry_due();
                let applied = table.apply(number, &proposal.batch).map_err(io::Error::other)?;
                self.agreement.applied(hash_of(&table));
                drop(table);
                if self.agreement.verdict() != Verdict::Serve {
                    self.host.withhold_answers();
                }
                self.host.dispatch(proposal, applied, wake_before);
                self.snapshots.count_commands(proposal.batch.commands.len() as u64);
            }
        }
        self.applied = Some(entry.log_id);
        Ok(())
    }

    fn set_membership(&mut self, membership: StoredMembership) {
        self.departed.record(&self.membership, &membership);
        self.membership = membership;
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotImage;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<Entries>(&mut self, mut entries: Entries) -> Result<(), io::Error>
    where
        Entries: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + Send,
    {
        if !self.host.leads() {
            // A follower learns the commit index together with the next entries, whose acknowledgement the leader waits for:
            // tasks that are ready to run go first.
            tokio::task::yield_now().await;
        }
        let mut commands = 0;
        while let Some((entry, responder)) = entries.try_next().await? {
            self.apply_entry(&entry)?;
            if let Some(responder) = responder {
                responder.send(());
            }
            commands += match &entry.payload {
                EntryPayload::Normal(proposal) => proposal.batch.commands.len().max(1),
                EntryPayload::Blank | EntryPayload::Membership(_) => 1,
            };
            // A node that catches up applies thousands of entries at once: other tasks run in between.
            if commands >= COMMANDS_PER_TURN {
                commands = 0;
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Refuses while this node may not save its table (S13). Raft asks again when the next snapshot is due.
    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<Builder> {
        match self.agreement.may_save_table() {
            true => Some(self.get_snapshot_builder().await),
            false => None,
        }
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            // Cheap: the copies share everything until one of them changes.
            table: self.host.table().clone(),
            meta: SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() },
            snapshots: self.snapshots.clone(),
            host: self.host.clone(),
            agreement: self.agreement.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotImage,
    ) -> Result<(), io::Error> {
        let store = self.snapshots.clone();
        let expected = meta.clone();
        let mut table = blocking::run(move || store.install(&expected, &snapshot)).await??;
        table.support(self.host.table().supported()).map_err(io::Error::other)?;
        self.agreement.reset(hash_of(&table));
        self.agreement.set_voters(meta.last_membership.membership().get_joint_config());
        let old = std::mem::replace(&mut *self.host.table(), table);
        blocking::drop_aside(old);
        self.applied = meta.last_log_id;
        self.set_membership(meta.last_membership.clone());
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<TypeConfig, SnapshotImage>>, io::Error> {
        Ok(self.snapshots.current().map(|(meta, snapshot)| openraft::Snapshot { meta, snapshot }))
    }
}

fn hash_of(table: &LockTable) -> TableHash {
    TableHash { index: table.applied(), hash: table.hash() }
}

/// Describes the members for the audit trail, such as `1 at 10.0.0.1:7420, 2 at 10.0.0.2:7420 (learns)`.
fn describe_members(membership: &Membership) -> String {
    let voters: Vec<u64> = membership.voter_ids().collect();
    let word = |(id, member): (&u64, &Member)| {
        let learns = if voters.contains(id) { "" } else { " (learns)" };
        format!("{id} at {}{learns}", member.client)
    };
    membership.nodes().map(word).collect::<Vec<_>>().join(", ")
}

/// Writes one snapshot on a separate thread, while the node continues to serve.
#[derive(Debug)]
pub(crate) struct Builder {
    table: LockTable,
    meta: SnapshotMeta,
    snapshots: SnapshotStore,
    host: Arc<dyn TableHost>,
    agreement: Arc<Agreement>,
}

impl Builder {
    /// Attempts to write the snapshot on a separate thread. The outer error means that this thread has failed. `None` if the
    /// node may no longer save its table.
    async fn try_write(&mut self) -> Result<io::Result<Option<(SnapshotMeta, SnapshotImage)>>, io::Error> {
        let (meta, store) = (self.meta.clone(), self.snapshots.clone());
        let agreement = self.agreement.clone();
        // The last handle of the table's old nodes is dropped on that thread, not on the serving thread.
        let table = std::mem::take(&mut self.table);
        let write = move |table: &LockTable| store.write(&meta, table, || agreement.may_save_table());
        let (written, table) = blocking::run_aside(move || match write(&table) {
            // Kept for a retry: the difference may turn out to be another member's.
            Ok(None) => (Ok(None), table),
            Ok(written) => (Ok(written), LockTable::new()),
            Err(error) => (Err(error), table),
        })
        .await?;
        self.table = table;
        Ok(written)
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotImage;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<TypeConfig, SnapshotImage>, io::Error> {
        let began = Instant::now();
        let (meta, snapshot) = loop {
            match self.try_write().await? {
                Ok(Some(written)) => break written,
                // The difference was detected while the snapshot was being written. Raft expects a snapshot, and gets the last
                // good one.
                Ok(None) => {
                    if let Some((meta, snapshot)) = self.snapshots.current() {
                        return Ok(openraft::Snapshot { meta, snapshot });
                    }
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => {
                    // The log is complete, so the node goes on. The log grows until there is space.
                    tracing::error!(%error, "failed to write a snapshot, retrying in a second");
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        self.host.snapshot_written(began.elapsed());
        tracing::info!(
            through = meta.last_log_id.map_or(0, |id| id.index),
            bytes = snapshot.len(),
            took_ms = began.elapsed().as_millis() as u64,
            "wrote a snapshot"
        );
        Ok(openraft::Snapshot { meta, snapshot })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use lockkeeper_core::{Batch, Command};
    use openraft::entry::RaftEntry;
    use openraft::testing::log_id;

    use super::*;
    use crate::data_dir::DataDir;
    use crate::limits::blocking::tests::dropped_aside;
    use crate::metrics::slow_acquires::SlowAcquireLog;
    use crate::metrics::{self, Metrics};
    use crate::raft::agreement::Disagreement;
    use crate::raft::encoded_batch::EncodedBatch;
    use crate::raft::types::Entry;
    use crate::shared::Shared;

    fn entry(index: u64, commands: usize) -> Entry {
        let put =
            |_| Command::PutValue { key: "k".into(), value: vec![1].into(), fence: None, if_version: None };
        let commands = (0..commands).map(put).collect();
        let batch = Arc::new(EncodedBatch::new(Batch { now: CellTime(index), utc_ms: 0, commands }));
        let proposal = Proposal { proposer: 7, sequence: index, batch };
        Entry::new(log_id::<TypeConfig>(1, 1, index), EntryPayload::Normal(proposal))
    }

    fn machine() -> Machine {
        let metrics = Metrics::new(metrics::seconds());
        let shared = Arc::new(Shared::new(1, LockTable::new(), metrics, SlowAcquireLog::new(Duration::ZERO)));
        let (snapshots, _) = SnapshotStore::open(None, u64::MAX).expect("in memory");
        let departed = Departed::new(Arc::new(DataDir::in_memory(1).expect("an identity")));
        Machine::new(shared, Arc::new(Agreement::new(1)), Arc::new(departed), snapshots, None)
    }

    /// Dropping a table of a million locks takes too long for the serving thread.
    #[tokio::test]
    async fn a_table_replaced_by_a_snapshot_is_dropped_on_another_thread() {
        let mut source = machine();
        let entries = (0..3).map(|index| Ok((entry(index, 2), None)));
        source.apply(futures_util::stream::iter(entries)).await.expect("applied");
        let taken = source.get_snapshot_builder().await.build_snapshot().await.expect("a snapshot");
        let mut target = machine();
        let before = dropped_aside();
        target.install_snapshot(&taken.meta, taken.snapshot).await.expect("installed");
        assert_eq!(target.host.table().applied(), 3);
        assert_eq!(dropped_aside(), before + 1);
    }

    /// The difference is detected while the snapshot is being written: the last good one stays.
    #[tokio::test]
    async fn a_table_that_turns_out_to_differ_replaces_no_snapshot() {
        let mut machine = machine();
        let entries = (0..3).map(|index| Ok((entry(index, 2), None)));
        machine.apply(futures_util::stream::iter(entries)).await.expect("applied");
        let good = machine.get_snapshot_builder().await.build_snapshot().await.expect("a snapshot");
        let more = (3..6).map(|index| Ok((entry(index, 2), None)));
        machine.apply(futures_util::stream::iter(more)).await.expect("applied");
        let mut builder = machine.try_create_snapshot_builder(false).await.expect("it may be saved");
        machine.agreement.stop(Disagreement { index: 6, own: 1, other: 2 });
        let kept = builder.build_snapshot().await.expect("the last good one");
        assert_eq!(kept.meta, good.meta);
        assert_eq!(machine.snapshots.current().map(|(meta, _)| meta), Some(good.meta));
        assert!(machine.try_create_snapshot_builder(false).await.is_none(), "none is begun either");
    }

    #[tokio::test]
    async fn other_tasks_run_while_a_node_catches_up() {
        const ENTRIES: u64 = 1_000;
        const COMMANDS: usize = 10;
        let mut machine = machine();
        let turns = Arc::new(AtomicUsize::new(0));
        let others = turns.clone();
        let others = tokio::spawn(async move {
            loop {
                others.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let entries = (0..ENTRIES).map(|index| Ok((entry(index, COMMANDS), None)));
        machine.apply(futures_util::stream::iter(entries)).await.expect("applied");
        others.abort();
        let at_least = ENTRIES as usize * COMMANDS / COMMANDS_PER_TURN / 2;
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns >= at_least, "{turns} turns in {ENTRIES} entries, expected {at_least}");
    }
}
