//! Background tasks: releases of dropped guards, rollbacks of dropped acquires.

use std::future::Future;
use std::sync::Mutex;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::locked;

/// Tasks on the runtime where the keeper was connected, so that a guard can be dropped on any thread, even without a runtime.
/// Bounded: at most one task for each guard or acquire.
pub(crate) struct BackgroundTasks {
    handle: Handle,
    tasks: Mutex<JoinSet<()>>,
}

impl BackgroundTasks {
    pub(crate) fn new(handle: Handle) -> BackgroundTasks {
        BackgroundTasks { handle, tasks: Mutex::default() }
    }

    /// The runtime where the keeper was connected.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Starts a task.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = locked(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(work, &self.handle);
    }

    /// The number of running tasks.
    #[cfg(feature = "redlock")]
    pub(crate) fn running(&self) -> usize {
        let mut tasks = locked(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.len()
    }

    /// Resolves when all tasks started before have ended. Dropping the future aborts them.
    pub(crate) async fn finish(&self) {
        let mut tasks = std::mem::take(&mut *locked(&self.tasks));
        while tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_can_be_spawned_on_a_thread_without_a_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tasks = BackgroundTasks::new(runtime.handle().clone());
        let (done, is_done) = tokio::sync::oneshot::channel();
        tasks.spawn(async move { done.send(()).unwrap() });
        runtime.block_on(async {
            tasks.finish().await;
            is_done.await.unwrap();
        });
    }
}
