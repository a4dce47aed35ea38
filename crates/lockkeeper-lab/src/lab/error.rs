//! Errors of a run.

use lockkeeper_testkit::ServerError;

/// Why a scenario did not complete.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A server could not be started or asked.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A client process failed.
    #[error("client {client}: {why}")]
    Client {
        /// Its name.
        client: String,
        /// The error.
        why: String,
    },
    /// The scenario does not apply to this engine.
    #[error("{0}")]
    NotApplicable(&'static str),
    /// The system refused an operation.
    #[error("{what}: {error}")]
    Io {
        /// The failed operation.
        what: String,
        /// The error of the system.
        error: std::io::Error,
    },
}

impl LabError {
    /// Whether a server is not installed.
    pub fn is_missing(&self) -> bool {
        matches!(self, LabError::Server(ServerError::Missing { .. }))
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> LabError {
        let what = what.into();
        move |error| LabError::Io { what, error }
    }
}
