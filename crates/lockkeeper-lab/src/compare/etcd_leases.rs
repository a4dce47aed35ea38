//! Leases of etcd, many on one connection.

use futures_util::{StreamExt, stream};
use lockkeeper::protocols::etcd::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest,
};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::CompareError;

/// A connection to a member of etcd.
pub(super) struct EtcdLeases {
    channel: Channel,
}

impl EtcdLeases {
    pub(super) async fn connect(host: &str) -> Result<EtcdLeases, CompareError> {
        let endpoint = Endpoint::from_shared(format!("http://{host}")).map_err(failed)?.tcp_nodelay(true);
        Ok(EtcdLeases { channel: endpoint.connect().await.map_err(failed)? })
    }

    pub(super) async fn open(&self, ttl_s: i64) -> Result<i64, CompareError> {
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<LeaseGrantRequest, LeaseGrantResponse>::default();
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseGrant");
        let answer = grpc.unary(Request::new(LeaseGrantRequest { ttl: ttl_s }), path, codec).await;
        Ok(answer.map_err(failed)?.into_inner().id)
    }

    /// Renews all leases once on one stream and returns how many are alive.
    pub(super) async fn keep_alive(&self, leases: &[i64]) -> Result<usize, CompareError> {
        let requests: Vec<_> = leases.iter().map(|&id| LeaseRequest { id }).collect();
        let requests = stream::iter(requests).chain(stream::pending());
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<LeaseRequest, LeaseKeepAliveResponse>::default();
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let answers = grpc.streaming(Request::new(requests), path, codec).await;
        let mut answers: Streaming<LeaseKeepAliveResponse> = answers.map_err(failed)?.into_inner();
        let mut alive = 0;
        for _ in leases {
            let answer = answers.next().await.ok_or_else(|| failed("the stream ended"))?;
            alive += usize::from(answer.map_err(failed)?.ttl > 0);
        }
        Ok(alive)
    }

    async fn ready(&self) -> Result<Grpc<Channel>, CompareError> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(failed)?;
        Ok(grpc)
    }
}

fn failed(error: impl std::fmt::Display) -> CompareError {
    CompareError::Protocol(format!("etcd: {error}"))
}
