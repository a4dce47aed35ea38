//! The appends of one replication or heartbeat, on the member's shared connection.

use futures_util::stream::{Chain, Iter};
use futures_util::{Stream, StreamExt};
use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_request::Kind;
use openraft::errors::RPCError;
use tonic::Status;

use super::client::{PeerClient, Result};
use super::codec;
use super::commit_coalescing::CommitCoalescer;
use super::link::{AppendResult, AppendStream, LinkAnswer};
use crate::raft::agreement::TableHash;
use crate::raft::types::{LogId, TypeConfig};

type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
type FirstAnd<Requests> = Chain<Iter<std::array::IntoIter<AppendEntriesRequest, 1>>, Requests>;

/// Appends of openraft and their answers, in the same order.
pub(super) struct Appends<'s, Requests> {
    client: &'s PeerClient,
    requests: CommitCoalescer<FirstAnd<Requests>>,
    is_first: bool,
    /// Whether more requests may follow.
    has_more: bool,
    /// Opened by the first request with entries.
    stream: Option<AppendStream>,
    /// Previous entry and commit index of the last request, if it had no entries.
    last_empty: Option<(Option<LogId>, Option<LogId>)>,
    is_stuck: bool,
}

impl<'s, Requests> Appends<'s, Requests>
where
    Requests: Stream<Item = AppendEntriesRequest> + Unpin,
{
    pub(super) fn new(
        client: &'s PeerClient,
        first: AppendEntriesRequest,
        rest: Requests,
    ) -> Appends<'s, Requests> {
        let requests = CommitCoalescer::new(futures_util::stream::iter([first]).chain(rest));
        Appends {
            client,
            requests,
            is_first: true,
            has_more: true,
            stream: None,
            last_empty: None,
            is_stuck: false,
        }
    }

    /// Sends requests until there is an answer. `None` when all are answered and there are no more.
    pub(super) async fn next_result(&mut self) -> Option<Result<AppendResult>> {
        match self.next().await? {
            Ok(result) => Some(Ok(result)),
            Err(status) => Some(Err(RPCError::Unreachable(self.client.refused(&status)))),
        }
    }

    async fn next(&mut self) -> Option<std::result::Result<AppendResult, Status>> {
        if std::mem::take(&mut self.is_first) {
            let first = self.requests.next().await?;
            self.detect_stuck(&first);
            if first.entries.is_empty() {
                return Some(heartbeat(self.client, &first).await);
            }
            if let Err(status) = self.send(&first).await {
                return Some(Err(status));
            }
        }
        loop {
            let Some(stream) = &mut self.stream else {
                let request = self.requests.next().await?;
                self.detect_stuck(&request);
                if self.is_stuck {
                    return Some(Err(stuck()));
                }
                if let Err(status) = self.send(&request).await {
                    return Some(Err(status));
                }
                continue;
            };
            if stream.is_idle() && self.is_stuck {
                return Some(Err(stuck()));
            }
            if stream.is_idle() && !self.has_more {
                return None;
            }
            let takes_more = self.has_more && stream.has_room();
            tokio::select! {
                biased;
                answer = stream.next_answer() => return Some(answer),
                request = self.requests.next(), if takes_more => match request {
                    Some(request) => {
                        self.detect_stuck(&request);
                        if self.is_stuck {
                            self.has_more = false;
                        } else if let Err(status) = self.send(&request).await {
                            return Some(Err(status));
                        }
                    }
                    None => self.has_more = false,
                },
            }
        }
    }

    /// Detects two empty requests in a row with the same content: the entries that openraft wants to send have been purged. It can
    /// return to such an outdated plan, and would keep it until the stream ends.
    fn detect_stuck(&mut self, request: &AppendEntriesRequest) {
        let empty = request.entries.is_empty().then_some((request.prev_log_id, request.leader_commit));
        self.is_stuck = empty.is_some() && empty == self.last_empty;
        self.last_empty = empty;
    }

    async fn send(&mut self, request: &AppendEntriesRequest) -> std::result::Result<(), Status> {
        // An entry that was read from the log can always be encoded.
        let body = codec::encode_append(request).map_err(|error| {
            tracing::error!(%error, "failed to encode entries for replication");
            Status::internal(error)
        })?;
        if self.stream.is_none() {
            let links = &self.client.links;
            let limit = links.shared.timing.connect_within();
            let stream = self.client.link.open_stream(links.next_stream(), limit).await?;
            self.stream = Some(stream);
        }
        if let Some(stream) = &mut self.stream {
            let reserved = stream.reserve().await?;
            stream.send(reserved, body, request.vote, majority(self.client));
        }
        Ok(())
    }
}

/// Sends a first request without entries: a heartbeat, or a probe of the member's progress. The member handles it concurrently with
/// the entries of other streams.
async fn heartbeat(
    client: &PeerClient,
    request: &AppendEntriesRequest,
) -> std::result::Result<AppendResult, Status> {
    let body = codec::encode_append(request).map_err(Status::internal)?;
    let kind = Kind::Heartbeat(peer::AppendRequest { body, stream: 0, majority: majority(client) });
    match client.link.call(kind, Some(request.vote)).await? {
        LinkAnswer::Append(result) => Ok(result),
        _ => Err(Status::internal("the answer to an append has the wrong type")),
    }
}

/// Returns the table hash that a majority has reported.
fn majority(client: &PeerClient) -> Option<peer::TableHash> {
    client.links.shared.agreement.majority_hash().map(TableHash::to_wire)
}

fn stuck() -> Status {
    Status::unavailable("the entries that the member needs are no longer in the log")
}
