//! The server of a recipe, for both kinds of recipes.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use lockkeeper_core::Token;
use smol_str::SmolStr;

use crate::capabilities::{Capabilities, Finding};
use crate::error::Error;
use crate::limiter::Taken;
use crate::view::{ForcedRelease, LockPage, LockState, TokenCheck};

/// One or several servers that store locks. Operations are unsupported by default.
pub(crate) trait Server: Send + Sync + 'static {
    fn capabilities(&self) -> &'static Capabilities;

    /// The name and address of the server for messages, such as `Redis at 10.0.0.1:6379`.
    fn address(&self) -> String;

    /// Finds weak spots in the server's configuration.
    fn examine(&self) -> impl Future<Output = Result<Vec<Finding>, Failure>> + Send;

    fn who(&self, _lock: &str) -> impl Future<Output = Result<LockState, Failure>> + Send {
        self.unsupported("report the holders of a lock")
    }

    fn locks(
        &self,
        _prefix: &str,
        _limit: usize,
        _after: &str,
    ) -> impl Future<Output = Result<LockPage, Failure>> + Send {
        self.unsupported("list locks")
    }

    fn check_token(
        &self,
        lock: &str,
        token: Token,
    ) -> impl Future<Output = Result<TokenCheck, Failure>> + Send {
        async move {
            if !self.capabilities().who {
                return self.unsupported("check a token").await;
            }
            let state = self.who(lock).await?;
            let valid = state.holders.iter().any(|holder| holder.token == token.0);
            Ok(TokenCheck { valid, last_token: state.last_token })
        }
    }

    /// Removes all holders of a lock.
    fn force_release(&self, _lock: &str) -> impl Future<Output = Result<ForcedRelease, Failure>> + Send {
        self.unsupported("release a lock by force")
    }

    fn take_rate(
        &self,
        _limiter: &str,
        _permits: u64,
        _rate_per_s: f64,
        _burst: u64,
    ) -> impl Future<Output = Result<Taken, Failure>> + Send {
        self.unsupported("limit a rate")
    }

    /// Closes the connections. Called when the keeper is closed and holds nothing.
    fn close(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    fn unsupported<T: Send>(&self, operation: &str) -> impl Future<Output = Result<T, Failure>> + Send {
        let engine = self.capabilities().engine;
        let error = Error::unsupported(format!("the engine {engine} cannot {operation}"));
        std::future::ready(Err(Failure::Refused(error)))
    }
}

/// Why a call of a recipe failed.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The server reports that the session has ended.
    #[cfg_attr(not(feature = "_sessions"), allow(dead_code))]
    Gone,
    /// No answer, or an inconclusive one: it may have happened. A retry may succeed.
    Unreachable(NoAnswer),
    /// It did not happen, and a retry will not help.
    Refused(Error),
}

/// Reason why there was no answer.
#[derive(Debug, Clone)]
pub(crate) struct NoAnswer {
    why: SmolStr,
    /// `why` is a complete message, with the server's address and the next step.
    is_message: bool,
}

impl Failure {
    pub(crate) fn unreachable(why: impl Into<SmolStr>) -> Failure {
        Failure::Unreachable(NoAnswer { why: why.into(), is_message: false })
    }

    pub(super) fn no_answer_within(limit: Duration) -> Failure {
        Failure::unreachable(format!("no answer within {limit:?}"))
    }

    /// Converts the failure of a call that cannot have changed anything into the error for the caller.
    pub(super) fn into_error(self, address: &str) -> Error {
        match self {
            Failure::Refused(error) => error,
            Failure::Gone => Error::SessionLost,
            Failure::Unreachable(NoAnswer { why, is_message: true }) => Error::Unavailable(why),
            Failure::Unreachable(NoAnswer { why, is_message: false }) => {
                Error::unavailable(format!("{address} does not answer ({why}): try again"))
            }
        }
    }
}

/// For recipes whose errors are complete messages.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Unavailable(why) => Failure::Unreachable(NoAnswer { why, is_message: true }),
            other => Failure::Refused(other),
        }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}
