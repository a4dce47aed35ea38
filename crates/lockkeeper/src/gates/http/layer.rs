//! The tower layer and its service.

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
use super::in_flight::{BodyAbort, InFlight, Permit};
use super::tokens::Tokens;
use crate::error::Error;

/// How long a request waits for older ones by default.
const WAIT_FOR_OLDER_DEFAULT: Duration = Duration::from_secs(10);

/// Response body: that of the inner service, or a refusal.
pub type ResponseBody<B> = Either<B, Full<Bytes>>;

/// Tower layer that refuses requests with a stale token.
///
/// All services created from the layer and its clones share the tokens and the order of requests.
#[derive(Clone)]
pub struct FenceLayer {
    gate: Arc<Settings>,
}

#[derive(Clone)]
struct Settings {
    tokens: Arc<dyn Tokens>,
    in_flight: Arc<InFlight>,
    allow_unfenced: bool,
    only_lock: Option<String>,
    wait_for_older: Duration,
}

impl FenceLayer {
    /// Creates a layer that stores the highest tokens in `tokens`.
    ///
    /// Requests with unsafe methods (all but GET, HEAD, OPTIONS and TRACE) must carry a lock and a token; others may.
    pub fn new(tokens: impl Tokens) -> FenceLayer {
        let gate = Settings {
            tokens: Arc::new(tokens),
            in_flight: Arc::default(),
            allow_unfenced: false,
            only_lock: None,
            wait_for_older: WAIT_FOR_OLDER_DEFAULT,
        };
        FenceLayer { gate: Arc::new(gate) }
    }

    /// Accepts requests without the header, for a migration in which not all clients send it yet.
    ///
    /// A stale holder that omits the header is not stopped.
    pub fn allow_unfenced(mut self) -> FenceLayer {
        Arc::make_mut(&mut self.gate).allow_unfenced = true;
        self
    }

    /// Refuses requests with unsafe methods under any lock but this one.
    pub fn only_lock(mut self, lock: impl Into<String>) -> FenceLayer {
        Arc::make_mut(&mut self.gate).only_lock = Some(lock.into());
        self
    }

    /// Sets how long a request waits for those with older tokens to end before it is answered 503. Default: 10 seconds.
    pub fn wait_for_older(mut self, limit: Duration) -> FenceLayer {
        Arc::make_mut(&mut self.gate).wait_for_older = limit;
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

/// Service wrapped by a [`FenceLayer`].
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

/// The response to a refused request.
struct Refused(Box<Response<Full<Bytes>>>);

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused(Box::new(answer::refusal(&error)))
    }
}

impl Settings {
    /// The fences of a request, or the refusal.
    fn fences<B>(&self, request: &Request<B>) -> Result<Option<Fences>, Refused> {
        let fences = Fences::from_headers(request.headers())?;
        if request.method().is_safe() {
            return Ok(fences);
        }
        match (&fences, &self.only_lock) {
            (None, _) if self.allow_unfenced => {}
            (None, _) => {
                let why = Error::invalid(
                    "writes to this resource require a lock: send the header Lockkeeper-Fence: lock=NAME;token=NUMBER with \
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

    /// Admits a request: it is in flight until all permits are dropped.
    async fn admit(&self, fences: &Fences, abort: &Arc<BodyAbort>) -> Result<Vec<Permit>, Refused> {
        let mut permits = Vec::new();
        // Sorted by lock, so that two requests never wait for each other.
        for (lock, token) in fences.iter() {
            // The order of these three steps matters: see the module documentation.
            let permit = self.in_flight.enter(lock, token, abort);
            self.tokens.raise(lock, token).await?;
            permit.wait_for_older(self.wait_for_older).await?;
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
        // Call the instance that `poll_ready` was called on, and keep its clone for the next request.
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
    let abort = Arc::new(BodyAbort::default());
    let permits = Arc::new(gate.admit(&fences, &abort).await?);
    let fence = (Arc::clone(&abort), Arc::clone(&permits));
    let mut request = request.map(|body| FencedBody::new(body, fence.0, fence.1));
    request.extensions_mut().insert(fences);
    let work = inner.call(request);
    // The handler continues if the client disconnects: otherwise a partial write would no longer count as in flight.
    let work = tokio::spawn(async move {
        let response = work.await;
        drop(permits);
        response
    });
    match work.await {
        // It failed because its body was aborted: report the stale token.
        Ok(Ok(response)) if !response.status().is_success() && abort.observed().is_some() => {
            Err(Error::StaleToken { last_token: abort.observed().unwrap_or_default() }.into())
        }
        Ok(response) => Ok(response),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::unavailable("the service is stopping: try again").into()),
        },
    }
}
