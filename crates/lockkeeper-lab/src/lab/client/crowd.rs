//! Many clients in one process: for what is asked of numbers, not of faults.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::ClientOptions;
use super::access::Access;
use crate::lab::clock::now_ns;
use crate::lab::event::What;

/// How a crowd is made up and what it does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Crowd {
    /// Connections.
    pub(crate) keepers: usize,
    /// Who asks at once on each of them.
    pub(crate) tasks_each: usize,
    /// Locks among which the tasks are spread; 1 is one for all.
    pub(crate) locks: usize,
    /// How long a holder holds.
    pub(crate) hold_ms: u64,
    /// It ends after so many grants...
    pub(crate) grants_max: u64,
    /// ... or after this time.
    pub(crate) for_ms: u64,
}

struct Progress {
    left: Cell<u64>,
    granted: Cell<u64>,
    done: Notify,
}

/// Runs a crowd to its end; says when all have asked, and what came of it.
pub(super) async fn run(
    options: &ClientOptions,
    crowd: &Crowd,
    say: impl Fn(What) -> Result<(), String>,
) -> Result<(), String> {
    let progress =
        Rc::new(Progress { left: crowd.grants_max.into(), granted: 0.into(), done: Notify::new() });
    let accesses = open(options, crowd).await?;
    let local = LocalSet::new();
    local
        .run_until(async {
            let began = now_ns();
            let tasks: Vec<_> = accesses
                .into_iter()
                .enumerate()
                .map(|(number, access)| {
                    let lock = match crowd.locks {
                        0 | 1 => options.lock.clone(),
                        locks => format!("{}/{}", options.lock, number % locks),
                    };
                    let hold = Duration::from_millis(crowd.hold_ms);
                    tokio::task::spawn_local(contend(access, lock, hold, Rc::clone(&progress)))
                })
                .collect();
            tokio::task::yield_now().await;
            say(What::Asks)?;
            let limit = Duration::from_millis(crowd.for_ms);
            // Time over is an end like another.
            let _ = tokio::time::timeout(limit, progress.done.notified()).await;
            say(What::Worked { rounds: progress.granted.get(), took_ns: now_ns() - began })?;
            if progress.left.get() == 0 {
                // The last one holds, and everybody else stays in its queue, until the process is ended: how they leave
                // is not part of what is measured.
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

/// An access for each task.
async fn open(options: &ClientOptions, crowd: &Crowd) -> Result<Vec<Access>, String> {
    let mut accesses: Vec<Access> = Vec::new();
    for number in 0..crowd.keepers * crowd.tasks_each {
        // The naive recipe has one request at a time on a connection, so each waiter has its own.
        let shared =
            if number % crowd.tasks_each == 0 { None } else { accesses.last().and_then(Access::again) };
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
            // An engine that does not answer at the moment: not at once again.
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
        // A release that is not answered is repeated by the library in the background.
        let _ = access.release(&lock, held).await;
    }
}
