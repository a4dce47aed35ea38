//! The recipe that people use on etcd today (the one of `etcdctl lock`), straight on its gRPC calls, as a yardstick: a
//! lease, a key below the lock's name, and a watch on the key before it. Nothing of our engine is in it.

use futures_util::StreamExt;
use futures_util::stream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::super::contender::BenchError;
use super::etcd_wire as wire;

const TTL_SECONDS: i64 = 60;

/// One connection to etcd, with a lease of its own.
pub(crate) struct BareEtcd {
    channel: Channel,
    lease: i64,
}

/// What is held.
pub(crate) struct EtcdKey(Vec<u8>);

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Etcd(error.to_string())
}

impl BareEtcd {
    pub(crate) async fn connect(host: &str) -> Result<BareEtcd, BenchError> {
        let endpoint = Endpoint::from_shared(format!("http://{host}")).map_err(failed)?.tcp_nodelay(true);
        let mut etcd = BareEtcd { channel: endpoint.connect().await.map_err(failed)?, lease: 0 };
        etcd.lease = etcd.open_lease(TTL_SECONDS).await?;
        Ok(etcd)
    }

    pub(super) async fn open_lease(&self, ttl: i64) -> Result<i64, BenchError> {
        let granted: wire::LeaseGrantResponse =
            self.call("/etcdserverpb.Lease/LeaseGrant", wire::LeaseGrantRequest { ttl }).await?;
        Ok(granted.id)
    }

    /// The member at this address, and who leads.
    pub(super) async fn status(&self) -> Result<wire::StatusResponse, BenchError> {
        self.call("/etcdserverpb.Maintenance/Status", wire::StatusRequest {}).await
    }

    /// Renews all leases once on one stream; answers how many are alive.
    pub(super) async fn keep_alive(&self, leases: Vec<i64>) -> Result<usize, BenchError> {
        let count = leases.len();
        let asked = stream::iter(leases.into_iter().map(|id| wire::LeaseKeepAliveRequest { id }));
        let mut answers: Streaming<wire::LeaseKeepAliveResponse> =
            self.stream("/etcdserverpb.Lease/LeaseKeepAlive", asked.chain(stream::pending())).await?;
        let mut alive = 0;
        for _ in 0..count {
            let answer =
                answers.next().await.ok_or_else(|| failed("the stream has ended"))?.map_err(failed)?;
            alive += usize::from(answer.ttl > 0);
        }
        Ok(alive)
    }

    pub(crate) async fn acquire(&self, lock: &str) -> Result<EtcdKey, BenchError> {
        let prefix = format!("{lock}/").into_bytes();
        let key = format!("{lock}/{:x}", self.lease).into_bytes();
        let first_of_all = wire::RangeRequest::first_created(&prefix);
        let entered: wire::TxnResponse = self
            .call("/etcdserverpb.KV/Txn", wire::TxnRequest::put_if_absent(&key, self.lease, first_of_all))
            .await?;
        let mine = entered.header.as_ref().map_or(0, |header| header.revision);
        if entered.first_created() == Some(mine) {
            return Ok(EtcdKey(key));
        }
        loop {
            let before: wire::RangeResponse = self
                .call("/etcdserverpb.KV/Range", wire::RangeRequest::last_created_before(&prefix, mine))
                .await?;
            let Some(before_me) = before.kvs.into_iter().next() else { return Ok(EtcdKey(key)) };
            let from = before.header.map_or(0, |header| header.revision) + 1;
            self.deleted(before_me.key, from).await?;
        }
    }

    pub(crate) async fn release(&self, key: &EtcdKey) -> Result<(), BenchError> {
        let request = wire::DeleteRangeRequest { key: key.0.clone() };
        let answer: wire::DeleteRangeResponse = self.call("/etcdserverpb.KV/DeleteRange", request).await?;
        if answer.deleted == 1 { Ok(()) } else { Err(failed("the lock was not held any more")) }
    }

    /// Waits until a key is gone.
    async fn deleted(&self, key: Vec<u8>, from: i64) -> Result<(), BenchError> {
        let create = wire::WatchCreateRequest { key, start_revision: from, filters: vec![wire::NO_PUTS] };
        let asked = stream::once(async move { wire::WatchRequest { create: Some(create) } });
        let mut events: Streaming<wire::WatchResponse> =
            self.stream("/etcdserverpb.Watch/Watch", asked.chain(stream::pending())).await?;
        while let Some(told) = events.next().await {
            if !told.map_err(failed)?.events.is_empty() {
                return Ok(());
            }
        }
        Err(failed("the watch has ended"))
    }

    async fn call<Q, A>(&self, path: &'static str, asked: Q) -> Result<A, BenchError>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(failed)?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(Request::new(asked), PathAndQuery::from_static(path), codec).await;
        Ok(answer.map_err(failed)?.into_inner())
    }

    async fn stream<Q, A>(
        &self,
        path: &'static str,
        asked: impl stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, BenchError>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(failed)?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.streaming(Request::new(asked), PathAndQuery::from_static(path), codec).await;
        Ok(answer.map_err(failed)?.into_inner())
    }
}
