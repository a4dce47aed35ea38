//! Sessions. A session is a lease, and a key with that lease whose mod-revision is the condition of every entry.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio_stream::StreamExt;

use super::Etcd;
use super::client::Answers;
use super::wire::{
    Header, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest, PutRequest,
    PutResponse,
};
use crate::engines::runtime::Failure;
use crate::engines::runtime::sessions::Opened;

/// A lease.
pub(crate) struct Lease {
    pub(super) id: i64,
    /// The session's key.
    pub(super) key: Vec<u8>,
    /// The latest known mod-revision of the session's key. Invariant: it never decreases.
    revision: AtomicI64,
    /// Empty during a renewal: a renewal that is dropped also drops its stream.
    renewals: Mutex<Option<RenewalStream>>,
}

struct RenewalStream {
    requests: mpsc::Sender<LeaseRequest>,
    answers: Answers<LeaseKeepAliveResponse>,
}

impl Lease {
    pub(super) fn revision(&self) -> i64 {
        self.revision.load(Ordering::Acquire)
    }

    pub(super) fn observe_revision(&self, revision: i64) {
        self.revision.fetch_max(revision, Ordering::AcqRel);
    }

    pub(super) fn name(&self) -> String {
        lease_name(self.id)
    }
}

pub(super) fn lease_name(lease: i64) -> String {
    format!("{lease:016x}")
}

impl Etcd {
    pub(super) async fn open_lease(&self, ttl: Duration) -> Result<Opened<Lease>, Failure> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX);
        let granted: LeaseGrantResponse =
            self.client.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl: seconds }).await?;
        let key = self.session_key(granted.id);
        let put = PutRequest {
            key: key.clone(),
            value: self.owner.clone().into_bytes(),
            lease: granted.id,
            ..PutRequest::default()
        };
        let put: PutResponse = self.client.call("/etcdserverpb.KV/Put", put).await?;
        let revision = put.header.unwrap_or(Header { revision: 0 }).revision;
        let lease =
            Lease { id: granted.id, key, revision: AtomicI64::new(revision), renewals: Mutex::default() };
        // etcd may grant more than requested: the guard uses the shorter of the two.
        let ttl = ttl.min(Duration::from_secs(granted.ttl.max(0).cast_unsigned()));
        Ok(Opened { id: lease.name(), session: lease, ttl })
    }

    pub(super) async fn renew_lease(&self, lease: &Lease) -> Result<(), Failure> {
        let mut slot = lease.renewals.lock().await;
        let closed = || Failure::unreachable("the renewal stream was closed");
        let mut stream = match slot.take() {
            Some(stream) => {
                stream.requests.send(LeaseRequest { id: lease.id }).await.map_err(|_| closed())?;
                stream
            }
            None => {
                let (requests, receiver) = mpsc::channel(1);
                // Sent before the stream is opened, because etcd sends the response headers only with its first answer.
                requests.send(LeaseRequest { id: lease.id }).await.map_err(|_| closed())?;
                let receiver = tokio_stream::wrappers::ReceiverStream::new(receiver);
                let answers = self.client.stream("/etcdserverpb.Lease/LeaseKeepAlive", receiver).await?;
                RenewalStream { requests, answers }
            }
        };
        let answer = stream.answers.next(&self.client).await?;
        *slot = Some(stream);
        if answer.ttl <= 0 { Err(Failure::Gone) } else { Ok(()) }
    }

    pub(super) async fn close_lease(&self, lease: &Lease) -> Result<(), Failure> {
        let revoke = LeaseRequest { id: lease.id };
        match self.client.call::<_, PutResponse>("/etcdserverpb.Lease/LeaseRevoke", revoke).await {
            Ok(_) | Err(Failure::Gone) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// A stream with one request that never ends, because etcd closes its side when ours ends.
pub(super) fn once_then_pending<Q: Send + 'static>(request: Q) -> impl tokio_stream::Stream<Item = Q> + Send {
    tokio_stream::once(request).chain(tokio_stream::pending())
}
