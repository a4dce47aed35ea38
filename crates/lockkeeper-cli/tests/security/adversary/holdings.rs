//! What the adversary holds, so that its releases, hand-overs and closes succeed and are expensive.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as Answer;
use lockkeeper_api::v1::operation::Kind;

use super::frames::Frames;
use super::operations::{CROWDED, acquire, long};
use crate::fixture::Caller;

/// Grants of each kind.
const GRANTS: u64 = 40;
/// Waiters of each kind.
const WAITERS: u64 = 40;
/// A full-size value of a candidate.
const VALUE_BYTES: usize = 4_000;
/// The sessions end by themselves.
const TTL_MS: u64 = 30_000;

/// Sessions with grants and waiters of their own, which one round uses up.
#[derive(Default)]
pub struct Holdings {
    /// Distinguishes the names of this round.
    pub number: u64,
    /// Holds the locks and elections below.
    pub holder: String,
    /// Waits for them.
    pub waiter: String,
    /// Has grants and waits that a close ends.
    pub full: String,
    /// Locks with their tokens.
    pub held: Vec<(String, u64)>,
    /// A lock with many holders and waiters.
    pub crowd: String,
    /// An election with a candidate, to hand over, and its epoch.
    pub handed_over: (String, u64),
    /// An election to resign from, and its epoch.
    pub resigned: (String, u64),
    /// A value to delete.
    pub value: String,
    // Requests of a closed connection would leave the queues.
    _frames: Option<Frames>,
}

/// The value of the candidate that leadership is handed over to.
pub fn candidate() -> String {
    "c".repeat(VALUE_BYTES)
}

/// The id of a waiting request of the session `waiter`.
pub fn waiting_request(number: u64) -> String {
    format!("waiter-{}", number % WAITERS)
}

/// A wait without a limit.
pub fn waits(session: &str, lock: &str, request: String) -> v1::AcquireRequest {
    v1::AcquireRequest { wait_forever: true, request, ..acquire(session, lock) }
}

fn token(answer: &Answer) -> io::Result<u64> {
    match answer {
        Answer::Grant(grant) => Ok(grant.token),
        other => Err(io::Error::other(format!("not granted: {other:?}"))),
    }
}

impl Holdings {
    /// Acquires them. Fails if the node refuses anything.
    pub async fn acquire(caller: &Caller) -> io::Result<Holdings> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut frames = Frames::connect(caller).await?;
        let opened =
            vec![Kind::OpenSession(v1::OpenSessionRequest { ttl_ms: TTL_MS, owner: "o".repeat(500) }); 3];
        let sessions = frames.call(opened).await?.into_iter().map(|answer| match answer {
            Answer::OpenSession(opened) => Ok(opened.session),
            other => Err(io::Error::other(format!("not opened: {other:?}"))),
        });
        let [holder, waiter, full] = sessions
            .collect::<io::Result<Vec<String>>>()?
            .try_into()
            .map_err(|_| io::Error::other("three sessions"))?;
        let mut holdings = Holdings {
            number,
            holder,
            waiter,
            full,
            crowd: long("crowd", number),
            handed_over: (format!("adversary/handed-over/{number}"), 0),
            resigned: (format!("adversary/resigned/{number}"), 0),
            value: format!("adversary/deleted/{number}"),
            ..Holdings::default()
        };
        holdings.take(&mut frames).await?;
        holdings.queue(&mut frames).await?;
        holdings._frames = Some(frames);
        Ok(holdings)
    }

    async fn take(&mut self, frames: &mut Frames) -> io::Result<()> {
        let names: Vec<String> =
            (0..GRANTS).map(|place| long("staged", GRANTS * self.number + place)).collect();
        let held = names.iter().map(|name| {
            Kind::Acquire(v1::AcquireRequest {
                scope: "staged".into(),
                ..acquire(&self.holder, name.clone())
            })
        });
        let shared = (0..GRANTS).map(|place| {
            Kind::Acquire(v1::AcquireRequest {
                mode: Some(v1::Mode::Shared.into()),
                request: format!("shared-{place}"),
                ..acquire(&self.holder, self.crowd.clone())
            })
        });
        let full = (0..GRANTS)
            .map(|place| Kind::Acquire(acquire(&self.full, long("full", GRANTS * self.number + place))));
        let leads = |election: &str| {
            let lock = format!("election/{election}");
            Kind::Acquire(v1::AcquireRequest { value: candidate(), ..acquire(&self.holder, lock) })
        };
        let elections = [leads(&self.handed_over.0), leads(&self.resigned.0)];
        let answers = frames.call(held.chain(shared).chain(full).chain(elections).collect()).await?;
        let mut tokens = answers.iter().map(token).collect::<io::Result<Vec<u64>>>()?;
        self.resigned.1 = tokens.pop().unwrap_or_default();
        self.handed_over.1 = tokens.pop().unwrap_or_default();
        self.held = names.into_iter().zip(tokens).collect();
        Ok(())
    }

    /// Fills the queues. The waiters are not answered before they are granted.
    async fn queue(&self, frames: &mut Frames) -> io::Result<()> {
        let crowd = (0..WAITERS).map(|place| {
            Kind::Acquire(v1::AcquireRequest {
                value: candidate(),
                scope: format!("crowd-{place}"),
                ..waits(&self.waiter, &self.crowd, waiting_request(place))
            })
        });
        let full =
            (0..WAITERS).map(|place| Kind::Acquire(waits(&self.full, CROWDED, format!("full-{place}"))));
        let candidate = Kind::Acquire(v1::AcquireRequest {
            value: candidate(),
            ..waits(&self.waiter, &format!("election/{}", self.handed_over.0), "candidate".into())
        });
        frames.send(crowd.chain(full).chain([candidate]).collect()).await?;
        // When this is answered, the earlier ones wait.
        let put =
            v1::PutValueRequest { key: self.value.clone(), value: vec![1; 60 << 10], ..Default::default() };
        match frames.call(vec![Kind::PutValue(put)]).await?.first() {
            Some(Answer::PutValue(_)) => Ok(()),
            other => Err(io::Error::other(format!("not stored: {other:?}"))),
        }
    }
}
