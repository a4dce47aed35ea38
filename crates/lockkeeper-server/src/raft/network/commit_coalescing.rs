//! Coalesces commit-only messages into the next AppendEntries. openraft sends one after each entry. While more entries follow, the
//! next one carries the same commit index. A follower may then apply an entry a few milliseconds later, which no client waits for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use openraft::entry::RaftEntry;
use tokio::time::{Instant, Sleep};

use crate::raft::types::{LogId, TypeConfig};

type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;

/// Maximum delay of a commit-only message. Longer than the interval between entries under load, and short enough for readers of a
/// follower.
const COALESCE_FOR: Duration = Duration::from_millis(4);

/// Stream of append requests to a member, without the commit-only ones that the next request replaces.
pub(super) struct CommitCoalescer<Requests> {
    requests: Requests,
    /// Last entry and commit index of the request that was passed on last. `None` before the first request, which is never held
    /// back: it may be a probe whose answer openraft waits for.
    last_passed: Option<(Option<LogId>, Option<LogId>)>,
    // Invariant: carries no entries.
    held_back: Option<AppendEntriesRequest>,
    until: Pin<Box<Sleep>>,
    ended: bool,
}

impl<Requests> CommitCoalescer<Requests> {
    pub(super) fn new(requests: Requests) -> CommitCoalescer<Requests> {
        let until = Box::pin(tokio::time::sleep(COALESCE_FOR));
        CommitCoalescer { requests, last_passed: None, held_back: None, until, ended: false }
    }

    /// Reports whether the request only raises the commit index.
    fn is_commit_only(&self, request: &AppendEntriesRequest) -> bool {
        let Some((last, commit)) = &self.last_passed else { return false };
        request.entries.is_empty() && request.prev_log_id == *last && request.leader_commit > *commit
    }

    fn pass(&mut self, request: AppendEntriesRequest) -> Poll<Option<AppendEntriesRequest>> {
        let last = request.entries.last().map(RaftEntry::log_id).or(request.prev_log_id);
        self.last_passed = Some((last, request.leader_commit));
        Poll::Ready(Some(request))
    }
}

impl<Requests> Stream for CommitCoalescer<Requests>
where
    Requests: Stream<Item = AppendEntriesRequest> + Unpin,
{
    type Item = AppendEntriesRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<AppendEntriesRequest>> {
        let this = &mut *self;
        while !this.ended {
            match this.requests.poll_next_unpin(context) {
                Poll::Ready(Some(request)) if this.is_commit_only(&request) => {
                    if this.held_back.replace(request).is_none() {
                        this.until.as_mut().reset(Instant::now() + COALESCE_FOR);
                    }
                }
                Poll::Ready(Some(request)) => {
                    // It covers the commit index of the one held back: commit indexes never decrease.
                    this.held_back = None;
                    return this.pass(request);
                }
                Poll::Ready(None) => this.ended = true,
                Poll::Pending if this.held_back.is_none() => return Poll::Pending,
                Poll::Pending => {
                    std::task::ready!(this.until.as_mut().poll(context));
                    break;
                }
            }
        }
        match this.held_back.take() {
            Some(request) => this.pass(request),
            None => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use openraft::EntryPayload;
    use openraft::testing::log_id;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;
    use crate::raft::types::{Entry, Vote};

    fn id(index: u64) -> Option<LogId> {
        (index > 0).then(|| log_id::<TypeConfig>(1, 1, index))
    }

    /// Builds a request with this many entries after `previous`, and this commit index.
    fn request(previous: u64, entries: u64, commit: u64) -> AppendEntriesRequest {
        let blank = |index| Entry::new(log_id::<TypeConfig>(1, 1, index), EntryPayload::Blank);
        AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: id(previous),
            entries: (previous + 1..=previous + entries).map(blank).collect(),
            leader_commit: id(commit),
        }
    }

    type Passed = CommitCoalescer<ReceiverStream<AppendEntriesRequest>>;

    fn stream() -> (mpsc::Sender<AppendEntriesRequest>, Passed) {
        let (sender, receiver) = mpsc::channel(8);
        (sender, CommitCoalescer::new(ReceiverStream::new(receiver)))
    }

    /// Returns previous entry, number of entries and commit index of the request that is ready now.
    fn now(passed: &mut Passed) -> Option<(u64, usize, u64)> {
        let request = passed.next().now_or_never()?.expect("the stream has ended");
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        Some((index(request.prev_log_id), request.entries.len(), index(request.leader_commit)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_is_merged_into_the_next_entry() {
        let (sender, mut passed) = stream();
        sender.try_send(request(7, 1, 7)).expect("open");
        assert_eq!(now(&mut passed), Some((7, 1, 7)));
        sender.try_send(request(8, 0, 8)).expect("open");
        assert_eq!(now(&mut passed), None);
        sender.try_send(request(8, 1, 8)).expect("open");
        assert_eq!(now(&mut passed), Some((8, 1, 8)));
        assert_eq!(now(&mut passed), None);
        // It is not sent again after its delay.
        tokio::time::advance(2 * COALESCE_FOR).await;
        assert_eq!(now(&mut passed), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_without_a_next_entry_is_sent_after_a_short_delay() {
        let (sender, mut passed) = stream();
        sender.try_send(request(7, 2, 7)).expect("open");
        assert_eq!(now(&mut passed), Some((7, 2, 7)));
        sender.try_send(request(9, 0, 8)).expect("open");
        assert_eq!(now(&mut passed), None);
        tokio::time::advance(COALESCE_FOR - Duration::from_millis(1)).await;
        // The latest replaces earlier ones, and does not restart the delay.
        sender.try_send(request(9, 0, 9)).expect("open");
        assert_eq!(now(&mut passed), None);
        tokio::time::advance(Duration::from_millis(2)).await;
        assert_eq!(now(&mut passed), Some((9, 0, 9)));
        assert_eq!(now(&mut passed), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_is_never_held_back() {
        let (sender, mut passed) = stream();
        // The first request of a stream probes the member's progress.
        sender.try_send(request(7, 0, 7)).expect("open");
        assert_eq!(now(&mut passed), Some((7, 0, 7)));
        // So does a request about another entry than the last, or with the same commit index.
        sender.try_send(request(5, 0, 8)).expect("open");
        assert_eq!(now(&mut passed), Some((5, 0, 8)));
        sender.try_send(request(5, 0, 8)).expect("open");
        assert_eq!(now(&mut passed), Some((5, 0, 8)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_back_commit_is_sent_when_the_requests_end() {
        let (sender, mut passed) = stream();
        sender.try_send(request(0, 1, 0)).expect("open");
        assert_eq!(now(&mut passed), Some((0, 1, 0)));
        sender.try_send(request(1, 0, 1)).expect("open");
        drop(sender);
        assert_eq!(now(&mut passed), Some((1, 0, 1)));
        assert!(passed.next().await.is_none());
        assert!(passed.next().await.is_none());
    }
}
