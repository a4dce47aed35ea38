//! Many clients in one process, for measurements without faults.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::ClientOptions;
use super::access::Access;
use crate::lab::clock::now_ns;
use crate::lab::event::EventKind;

/// A group of clients and its work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClientGroup {
    /// Number of connections.
    pub(crate) keepers: usize,
    /// Number of concurrent tasks on each of them.
    pub(crate) tasks_each: usize,
    /// Number of locks over which the tasks are spread; 1 is one lock for all.
    pub(crate) locks: usize,
    /// How long a task holds a lock.
    pub(crate) hold_ms: u64,
    /// The group ends after this number of grants, or ...
    pub(crate) grants_max: u64,
    /// ... after this time.
    pub(crate) for_ms: u64,
}

struct Progress {
    left: Cell<u64>,
    granted: Cell<u64>,
    done: Notify,
}

/// Runs a group to its end. Reports when all tasks have requested a lock, and the result.
pub(super) async fn run(
    options: &ClientOptions,
    group: &ClientGroup,
    report: impl Fn(EventKind) -> Result<(), String>,
) -> Result<(), String> {
    let progress =
        Rc::new(Progress { left: group.grants_max.into(), granted: 0.into(), done: Notify::new() });
    let accesses = open(options, group).await?;
    let local = LocalSet::new();
    local
        .run_until(async {
            let began = now_ns();
            let tasks: Vec<_> = accesses
                .into_iter()
                .enumerate()
                .map(|(number, access)| {
                    let lock = match group.locks {
                        0 | 1 => options.lock.clone(),
                        locks => format!("{}/{}", options.lock, number % locks),
                    };
                    let hold = Duration::from_millis(group.hold_ms);
                    tokio::task::spawn_local(contend(access, lock, hold, Rc::clone(&progress)))
                })
                .collect();
            tokio::task::yield_now().await;
            report(EventKind::Asks)?;
            let limit = Duration::from_millis(group.for_ms);
            // The time limit is a regular end.
            let _ = tokio::time::timeout(limit, progress.done.notified()).await;
            report(EventKind::Worked { rounds: progress.granted.get(), took_ns: now_ns() - began })?;
            if progress.left.get() == 0 {
                // The last task holds the lock and all others stay queued until the process is killed: leaving the queue is
                // not part of the measurement.
                std::future::pending::<()>().await;
            }
            tasks.iter().for_each(tokio::task::JoinHandle::abort);
            for task in tasks {
                let _ = task.await;
            }
            Ok(())
        })
        .await
}

/// Opens the access of each task.
async fn open(options: &ClientOptions, group: &ClientGroup) -> Result<Vec<Access>, String> {
    let mut accesses: Vec<Access> = Vec::new();
    for number in 0..group.keepers * group.tasks_each {
        // The naive recipe sends one request at a time on a connection, so each waiter has its own.
        let shared =
            if number % group.tasks_each == 0 { None } else { accesses.last().and_then(Access::share) };
        let access = match shared {
            Some(access) => access,
            None => Access::open(&options.url, &format!("{}-{number}", options.name), options.ttl).await?,
        };
        accesses.push(access);
    }
    Ok(accesses)
}

async fn contend(mut access: Access, lock: String, hold: Duration, progress: Rc<Progress>) {
    while progress.left.get() > 0 {
        let Ok(held) = access.acquire(&lock, Duration::from_secs(600)).await else {
            // Does not retry at once while the engine does not answer.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        progress.granted.set(progress.granted.get() + 1);
        progress.left.set(progress.left.get().saturating_sub(1));
        if progress.left.get() == 0 {
            progress.done.notify_one();
            std::future::pending::<()>().await;
        }
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        // The library repeats an unanswered release in the background.
        let _ = access.release(&lock, held).await;
    }
}
