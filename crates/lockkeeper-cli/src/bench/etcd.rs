//! The baseline on etcd: the recipe of `etcdctl lock`, directly on the gRPC API. A lease, a key below the lock's name, and
//! a watch on the preceding key. It shares only the messages of the protocol with our engine.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use lockkeeper::protocols::etcd::{self as wire, SortOrder, SortTarget};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::contender::BenchError;

const TTL_SECONDS: i64 = 120;
const RENEW_AFTER: Duration = Duration::from_secs(40);

/// One connection to etcd, with a lease of its own.
pub(super) struct BareEtcd {
    channel: Channel,
    lease: i64,
    renewed_at: Instant,
}

/// The key of a client in the queue of a lock.
pub(super) struct EtcdKey(Vec<u8>);

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Etcd(error.to_string())
}

impl BareEtcd {
    pub(super) async fn connect(host: &str) -> Result<BareEtcd, BenchError> {
        let endpoint = Endpoint::from_shared(format!("http://{host}")).map_err(failed)?.tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(failed)?;
        let mut etcd = BareEtcd { channel, lease: 0, renewed_at: Instant::now() };
        let request = wire::LeaseGrantRequest { ttl: TTL_SECONDS };
        let granted: wire::LeaseGrantResponse = etcd.call("/etcdserverpb.Lease/LeaseGrant", request).await?;
        etcd.lease = granted.id;
        Ok(etcd)
    }

    /// Renews the lease if a renewal is due.
    async fn keep_alive(&mut self) -> Result<(), BenchError> {
        if self.renewed_at.elapsed() < RENEW_AFTER {
            return Ok(());
        }
        let id = self.lease;
        let request = stream::once(async move { wire::LeaseRequest { id } });
        let mut answers: Streaming<wire::LeaseKeepAliveResponse> =
            self.stream("/etcdserverpb.Lease/LeaseKeepAlive", request.chain(stream::pending())).await?;
        let answer = answers.next().await.ok_or_else(|| failed("the stream ended"))?.map_err(failed)?;
        if answer.ttl <= 0 {
            return Err(failed("the lease expired"));
        }
        self.renewed_at = Instant::now();
        Ok(())
    }

    pub(super) async fn acquire(&mut self, lock: &str) -> Result<EtcdKey, BenchError> {
        self.keep_alive().await?;
        let prefix = format!("{lock}/").into_bytes();
        let key = format!("{lock}/{:x}", self.lease).into_bytes();
        let enter = put_if_absent(&key, self.lease, first_created(&prefix));
        let entered: wire::TxnResponse = self.call("/etcdserverpb.KV/Txn", enter).await?;
        let mine = entered.revision();
        if entered.range(1).first().map(|oldest| oldest.create_revision) == Some(mine) {
            return Ok(EtcdKey(key));
        }
        loop {
            let before: wire::RangeResponse =
                self.call("/etcdserverpb.KV/Range", last_created_before(&prefix, mine)).await?;
            let Some(predecessor) = before.kvs.into_iter().next() else { return Ok(EtcdKey(key)) };
            let from = before.header.map_or(0, |header| header.revision) + 1;
            self.until_deleted(predecessor.key, from).await?;
        }
    }

    pub(super) async fn release(&self, key: &EtcdKey) -> Result<(), BenchError> {
        let request = wire::DeleteRangeRequest { key: key.0.clone() };
        let answer: wire::DeleteRangeResponse = self.call("/etcdserverpb.KV/DeleteRange", request).await?;
        if answer.deleted == 1 { Ok(()) } else { Err(failed("the lock was no longer held")) }
    }

    /// Waits until a key is deleted.
    async fn until_deleted(&self, key: Vec<u8>, from: i64) -> Result<(), BenchError> {
        let create = wire::WatchCreateRequest {
            key,
            start_revision: from,
            filters: vec![wire::NO_PUTS],
            ..Default::default()
        };
        let request = stream::once(async move { wire::WatchRequest { create: Some(create) } });
        let mut events: Streaming<wire::WatchResponse> =
            self.stream("/etcdserverpb.Watch/Watch", request.chain(stream::pending())).await?;
        while let Some(response) = events.next().await {
            if !response.map_err(failed)?.events.is_empty() {
                return Ok(());
            }
        }
        Err(failed("the watch ended"))
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, BenchError>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(failed)?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await;
        Ok(answer.map_err(failed)?.into_inner())
    }

    async fn stream<Q, A>(
        &self,
        path: &'static str,
        requests: impl stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, BenchError>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(failed)?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.streaming(Request::new(requests), PathAndQuery::from_static(path), codec).await;
        Ok(answer.map_err(failed)?.into_inner())
    }
}

/// The oldest key that begins with the prefix.
fn first_created(prefix: &[u8]) -> wire::RangeRequest {
    wire::RangeRequest {
        key: prefix.to_vec(),
        range_end: end_of(prefix),
        limit: 1,
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Create as i32,
        ..Default::default()
    }
}

/// The newest key that was created before this revision.
fn last_created_before(prefix: &[u8], revision: i64) -> wire::RangeRequest {
    wire::RangeRequest {
        sort_order: SortOrder::Descend as i32,
        max_create_revision: revision - 1,
        ..first_created(prefix)
    }
}

/// The end of the range of all keys that begin with the prefix, which ends with a slash.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Puts a key unless it exists, and reads a range in the same transaction.
fn put_if_absent(key: &[u8], lease: i64, range: wire::RangeRequest) -> wire::TxnRequest {
    let put = wire::PutRequest { key: key.to_vec(), lease, ..Default::default() };
    // Without an end, the range is the key alone.
    let is_absent = wire::Compare::range_is_empty(key, &[]);
    wire::TxnRequest {
        compare: vec![is_absent],
        success: vec![wire::RequestOp::put(put), wire::RequestOp::range(range)],
        failure: Vec::new(),
    }
}
