//! Errors of a comparison.

use lockkeeper_testkit::ServerError;

/// Why a target could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A server could not be started.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The library could not reach the engine.
    #[error(transparent)]
    Engine(#[from] lockkeeper::Error),
    /// `lockkeeper bench` failed.
    #[error("lockkeeper bench failed: {0}")]
    Bench(String),
    /// A node or a member did not answer as expected.
    #[error("{0}")]
    Protocol(String),
    /// The system refused something.
    #[error("{what}: {error}")]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The error of the system.
        error: std::io::Error,
    },
    /// No target could be measured.
    #[error("nothing could be measured: {0}")]
    Nothing(String),
}

impl CompareError {
    pub(super) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> CompareError {
        move |error| CompareError::Io { what, error }
    }

    pub(super) fn protocol(error: impl std::fmt::Display) -> CompareError {
        CompareError::Protocol(error.to_string())
    }
}
