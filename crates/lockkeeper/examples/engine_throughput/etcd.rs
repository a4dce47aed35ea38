//! etcd: a transaction to enter the queue and a delete to leave it, as gRPC calls with `tonic`.

use std::net::SocketAddr;

use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::{Recipe, random_hex};

// The message types of the engine; the rest of this recipe is independent of it.
use lockkeeper::protocols::etcd::{
    self as wire, Compare, PutRequest, RangeRequest, RequestOp, SortOrder, SortTarget,
};

const SESSION: &[u8] = b"direct/session";

/// One connection, one lease.
pub(crate) struct Lease {
    channel: Channel,
    id: i64,
    /// The revision of the session's key: the condition of every entry.
    revision: i64,
}

impl Lease {
    pub(crate) async fn open(address: SocketAddr) -> Lease {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap().tcp_nodelay(true);
        let mut lease = Lease { channel: endpoint.connect().await.unwrap(), id: 0, revision: 0 };
        let request = wire::LeaseGrantRequest { ttl: 600 };
        lease.id =
            lease.call::<_, wire::LeaseGrantResponse>("/etcdserverpb.Lease/LeaseGrant", request).await.id;
        let put = PutRequest { key: SESSION.to_vec(), lease: lease.id, ..PutRequest::default() };
        let put: wire::PutResponse = lease.call("/etcdserverpb.KV/Put", put).await;
        lease.revision = put.header.unwrap().revision;
        lease
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> A
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let codec = ProstCodec::<Q, A>::default();
        grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await.unwrap().into_inner()
    }
}

impl Recipe for Lease {
    async fn pair(&self, client: usize) {
        let prefix = format!("direct/locks/{client}/");
        let key = format!("{prefix}x-{:x}-{}", self.id, random_hex::<16>()).into_bytes();
        let put = PutRequest {
            key: key.clone(),
            value: b"direct".to_vec(),
            lease: self.id,
            ..PutRequest::default()
        };
        let queue = RangeRequest {
            key: prefix.clone().into_bytes(),
            range_end: format!("{}0", &prefix[..prefix.len() - 1]).into_bytes(),
            limit: 1,
            sort_order: SortOrder::Ascend as i32,
            sort_target: SortTarget::Create as i32,
            keys_only: true,
            ..RangeRequest::default()
        };
        let own = RangeRequest { key: key.clone(), keys_only: true, ..RangeRequest::default() };
        let session = RangeRequest { key: SESSION.to_vec(), keys_only: true, ..RangeRequest::default() };
        let txn = wire::TxnRequest {
            compare: vec![Compare::mod_revision_is(SESSION, self.revision)],
            success: vec![
                RequestOp::put(put),
                RequestOp::range(queue.clone()),
                RequestOp::range(own.clone()),
            ],
            failure: vec![RequestOp::range(session), RequestOp::range(own), RequestOp::range(queue)],
        };
        let entered: wire::TxnResponse = self.call("/etcdserverpb.KV/Txn", txn).await;
        assert!(entered.succeeded && entered.range(1)[0].key == key);
        let delete = wire::DeleteRangeRequest { key };
        let deleted: wire::DeleteRangeResponse = self.call("/etcdserverpb.KV/DeleteRange", delete).await;
        assert_eq!(deleted.deleted, 1);
    }
}
