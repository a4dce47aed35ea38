//! A session is a lease, and a key with that lease whose revision is the condition of every entry.

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
    /// The mod-revision of the session's key. Invariant: it never moves back.
    revision: AtomicI64,
    /// Taken while a renewal is under way: one that was given up takes its stream with it.
    renewals: Mutex<Option<Renewals>>,
}

struct Renewals {
    requests: mpsc::Sender<LeaseRequest>,
    answers: Answers<LeaseKeepAliveResponse>,
}

impl Lease {
    pub(super) fn revision(&self) -> i64 {
        self.revision.load(Ordering::Acquire)
    }

    pub(super) fn saw_revision(&self, revision: i64) {
        self.revision.fetch_max(revision, Ordering::AcqRel);
    }

    pub(super) fn name(&self) -> String {
        name_of(self.id)
    }
}

pub(super) fn name_of(lease: i64) -> String {
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
        // etcd may grant more than was asked for. The guard keeps to what its user named, or to less.
        let ttl = ttl.min(Duration::from_secs(granted.ttl.max(0).cast_unsigned()));
        Ok(Opened { id: lease.name(), session: lease, ttl })
    }

    pub(super) async fn renew_lease(&self, lease: &Lease) -> Result<(), Failure> {
        let mut place = lease.renewals.lock().await;
        let ended = || Failure::unreachable("the stream of renewals has ended");
        let mut renewals = match place.take() {
            Some(renewals) => {
                renewals.requests.send(LeaseRequest { id: lease.id }).await.map_err(|_| ended())?;
                renewals
            }
            None => {
                let (requests, asked) = mpsc::channel(1);
                // etcd answers the call itself only with the first renewal.
                requests.send(LeaseRequest { id: lease.id }).await.map_err(|_| ended())?;
                let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
                let answers = self.client.stream("/etcdserverpb.Lease/LeaseKeepAlive", asked).await?;
                Renewals { requests, answers }
            }
        };
        let answer = renewals.answers.next(&self.client).await?;
        *place = Some(renewals);
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

/// A stream of one request that does not end: etcd ends its side when ours does.
pub(super) fn once<Q: Send + 'static>(request: Q) -> impl tokio_stream::Stream<Item = Q> + Send {
    tokio_stream::once(request).chain(tokio_stream::pending())
}
