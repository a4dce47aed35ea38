//! The layer and its service.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{Either, Full};
use tower_layer::Layer;
use tower_service::Service;

use super::answer;
use super::body::FencedBody;
use super::header::Fences;
use super::tokens::Tokens;
use super::turnstile::{Cut, Permit, Turnstile};
use crate::error::Error;

/// How long a request waits for older ones to end, unless told otherwise.
const OLDER_END_WITHIN: Duration = Duration::from_secs(10);

/// The body of an answer: that of the service, or a refusal.
pub type ResponseBody<B> = Either<B, Full<Bytes>>;

/// The layer. All services made from it, and from its clones, share one memory of tokens.
#[derive(Clone)]
pub struct FenceLayer {
    gate: Arc<Settings>,
}

#[derive(Clone)]
struct Settings {
    tokens: Arc<dyn Tokens>,
    turnstile: Arc<Turnstile>,
    allow_unfenced: bool,
    only_lock: Option<String>,
    older_end_within: Duration,
}

impl FenceLayer {
    /// A layer that keeps the highest tokens there. Requests that could change something (any but GET, HEAD, OPTIONS and
    /// TRACE) must come under a lock; others may.
    pub fn new(tokens: impl Tokens) -> FenceLayer {
        let gate = Settings {
            tokens: Arc::new(tokens),
            turnstile: Arc::default(),
            allow_unfenced: false,
            only_lock: None,
            older_end_within: OLDER_END_WITHIN,
        };
        FenceLayer { gate: Arc::new(gate) }
    }

    /// Lets requests pass that come under no lock: for the time in which not all clients send the header yet. A holder
    /// that forgets the header is not stopped.
    pub fn allow_unfenced(mut self) -> FenceLayer {
        Arc::make_mut(&mut self.gate).allow_unfenced = true;
        self
    }

    /// Refuses requests that could change something under any lock but this one.
    pub fn only_lock(mut self, lock: impl Into<String>) -> FenceLayer {
        Arc::make_mut(&mut self.gate).only_lock = Some(lock.into());
        self
    }

    /// How long a request waits for older ones to end before it is answered 503. Default: 10 seconds.
    pub fn older_end_within(mut self, limit: Duration) -> FenceLayer {
        Arc::make_mut(&mut self.gate).older_end_within = limit;
        self
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer")
            .field("allow_unfenced", &self.gate.allow_unfenced)
            .field("only_lock", &self.gate.only_lock)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { inner, gate: Arc::clone(&self.gate) }
    }
}

/// A service behind the layer.
#[derive(Clone)]
pub struct FenceService<S> {
    inner: S,
    gate: Arc<Settings>,
}

impl<S: fmt::Debug> fmt::Debug for FenceService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Why a request goes no further.
struct Refused(Box<Response<Full<Bytes>>>);

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused(Box::new(answer::refusal(&error)))
    }
}

impl Settings {
    /// What a request says, if that will do.
    fn fences<B>(&self, request: &Request<B>) -> Result<Option<Fences>, Refused> {
        let fences = Fences::of(request.headers())?;
        if request.method().is_safe() {
            return Ok(fences);
        }
        match (&fences, &self.only_lock) {
            (None, _) if self.allow_unfenced => {}
            (None, _) => {
                let why = Error::invalid(
                    "this resource is written under a lock only: send the header Lockkeeper-Fence: lock=NAME;token=NUMBER with \
                     the lock that guards it and the token of your grant",
                );
                return Err(Refused(Box::new(answer::with_status(&why, StatusCode::PRECONDITION_REQUIRED))));
            }
            (Some(fences), Some(lock)) if fences.iter().any(|(named, _)| named != lock) => {
                let why = format!(
                    "this resource is guarded by the lock \"{lock}\": send its token in Lockkeeper-Fence"
                );
                return Err(Error::invalid(why).into());
            }
            (Some(_), _) => {}
        }
        Ok(fences)
    }

    /// Lets a request in: it is under way until all permits are dropped.
    async fn admit(&self, fences: &Fences, cut: &Arc<Cut>) -> Result<Vec<Permit>, Refused> {
        let mut permits = Vec::new();
        // In the order of the locks' names, so that two requests never wait for each other.
        for (lock, token) in fences.iter() {
            // The order of these three is the proof: see the module's front page.
            let permit = self.turnstile.enter(lock, token, cut);
            self.tokens.raise(lock, token).await?;
            permit.alone(self.older_end_within).await?;
            permits.push(permit);
        }
        Ok(permits)
    }
}

impl<S, B, R> Service<Request<B>> for FenceService<S>
where
    S: Service<Request<FencedBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was asked whether it is ready does the work; its clone is for the next request.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let gate = Arc::clone(&self.gate);
        Box::pin(async move {
            match serve(&gate, inner, request).await {
                Ok(served) => served.map(|response| response.map(Either::Left)),
                Err(Refused(response)) => Ok(response.map(Either::Right)),
            }
        })
    }
}

async fn serve<S, B, R>(
    gate: &Settings,
    mut inner: S,
    request: Request<B>,
) -> Result<Result<Response<R>, S::Error>, Refused>
where
    S: Service<Request<FencedBody<B>>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Send + 'static,
{
    let Some(fences) = gate.fences(&request)? else {
        return Ok(inner.call(request.map(FencedBody::unfenced)).await);
    };
    let cut = Arc::new(Cut::default());
    let permits = Arc::new(gate.admit(&fences, &cut).await?);
    let fence = (Arc::clone(&cut), Arc::clone(&permits));
    let mut request = request.map(|body| FencedBody::new(body, fence.0, fence.1));
    request.extensions_mut().insert(fences);
    let work = inner.call(request);
    // If the client goes away, the handler goes on: half a write that nobody counts as under way would be a hole.
    let work = tokio::spawn(async move {
        let response = work.await;
        drop(permits);
        response
    });
    match work.await {
        // It failed because its body did: the client is told why.
        Ok(Ok(response)) if !response.status().is_success() && cut.felt().is_some() => {
            Err(Error::StaleToken { last_token: cut.felt().unwrap_or_default() }.into())
        }
        Ok(response) => Ok(response),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::unavailable("the service is stopping: try again").into()),
        },
    }
}
