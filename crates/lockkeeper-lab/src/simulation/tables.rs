//! Checks the lock tables of the nodes: they are equal on all nodes, except where a run has made one differ (S13).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_server::node::Node as Server;

use super::machine::true_now;
use super::network::MachineId;
use super::recorder::Recorder;

/// Digests of the tables after each entry, which must be equal on all nodes.
#[derive(Clone, Default)]
pub(super) struct Digests {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    known: BTreeMap<u64, (MachineId, u32)>,
    /// A node whose table differs has led: until the difference is detected, it may send its table in a snapshot.
    may_spread: bool,
    /// It has done so.
    has_spread: bool,
}

impl Digests {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compare(&self, node: MachineId, (through, digest): (u64, u32)) -> Option<String> {
        let mut inner = self.inner();
        let (first, expected) = *inner.known.entry(through).or_insert((node, digest));
        if expected != digest && inner.may_spread {
            inner.has_spread = true;
            return None;
        }
        (expected != digest)
            .then(|| format!("nodes {first} and {node} have different tables after entry {through}"))
    }

    /// Whether this digest is known to be equal or different.
    fn is_equal(&self, (through, digest): (u64, u32)) -> Option<bool> {
        self.inner().known.get(&through).map(|(_, expected)| *expected == digest)
    }
}

/// Checks the table of one process.
pub(super) struct TableWatch {
    id: MachineId,
    digests: Digests,
    /// Whether the table may differ, across restarts.
    damaged: Arc<AtomicBool>,
    /// Whether it is known to differ.
    differs: bool,
    serving_since: Option<Duration>,
    /// Time limit for noticing a diverged table.
    detection_max: Duration,
    stopped: Stopped,
}

/// What is known of a node that a difference has stopped.
enum Stopped {
    No,
    /// A snapshot that was finished before may appear a moment later.
    JustNow,
    /// The last entry that its snapshot covers.
    Snapshot(u64),
}

impl TableWatch {
    /// Starts with a process. Without snapshots, a restart rebuilds the table from the log.
    pub(super) fn new(
        id: MachineId,
        digests: Digests,
        damaged: Arc<AtomicBool>,
        detection_max: Duration,
        has_snapshots: bool,
    ) -> TableWatch {
        if !has_snapshots {
            damaged.store(false, Ordering::Relaxed);
        }
        let (serving_since, stopped) = (None, Stopped::No);
        TableWatch { id, digests, damaged, differs: false, serving_since, detection_max, stopped }
    }

    /// Makes the table of this node differ from the others.
    pub(super) fn damage(&mut self, server: &Server) {
        server.api().make_table_different();
        self.damaged.store(true, Ordering::Relaxed);
        self.differs = true;
    }

    /// Checks the table of a node.
    pub(super) fn check(&mut self, server: &Server, recorder: &Recorder) {
        let digest = server.api().digest();
        if !self.damaged.load(Ordering::Relaxed) {
            if let Some(difference) = self.digests.compare(self.id, digest) {
                recorder.record_failure(true_now(), difference);
            }
            return;
        }
        match self.digests.is_equal(digest) {
            // A restart or a snapshot of another node has replaced the table.
            Some(true) => {
                recorder.count("damaged tables recovered");
                self.damaged.store(false, Ordering::Relaxed);
                (self.differs, self.serving_since, self.stopped) = (false, None, Stopped::No);
                return;
            }
            Some(false) => self.differs = true,
            None => {}
        }
        self.check_damaged(server, recorder);
    }

    fn check_damaged(&mut self, server: &Server, recorder: &Recorder) {
        let (id, status) = (self.id, server.api().status());
        if status.leader == Some(u64::from(id)) {
            self.digests.inner().may_spread = true;
        }
        let serves = server.api().check_leads().is_ok();
        self.serving_since = self.serving_since.filter(|_| serves).or(serves.then(true_now));
        if self.serving_since.is_some_and(|since| true_now() - since > self.detection_max)
            && self.differs
            && !self.digests.inner().has_spread
        {
            recorder
                .record_failure(true_now(), format!("node {id} keeps serving although its table differs"));
            self.serving_since = None;
        }
        self.stopped = match (&self.stopped, status.disagreement) {
            (_, None) => Stopped::No,
            (Stopped::No, Some(_)) => Stopped::JustNow,
            (Stopped::JustNow, Some(_)) => Stopped::Snapshot(status.snapshot_index),
            (Stopped::Snapshot(before), Some(_)) => {
                if status.snapshot_index > *before {
                    let what = format!("node {id} takes a snapshot although its table differs");
                    recorder.record_failure(true_now(), what);
                }
                Stopped::Snapshot(status.snapshot_index)
            }
        };
    }
}
