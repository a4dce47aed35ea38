//! Why a scenario could not be played.

use lockkeeper_testkit::ServerError;

/// Why a scenario could not be played to its end.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A server could not be had.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A client process did not do what it was told.
    #[error("client {client}: {why}")]
    Client {
        /// Which.
        client: String,
        /// In words.
        why: String,
    },
    /// It makes no sense for this engine.
    #[error("{0}")]
    NotApplicable(&'static str),
    /// The machine did not let us.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What came of it.
        error: std::io::Error,
    },
}

impl LabError {
    /// Whether something has to be installed first.
    pub fn is_missing(&self) -> bool {
        matches!(self, LabError::Server(ServerError::Missing { .. }))
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> LabError {
        let what = what.into();
        move |error| LabError::Io { what, error }
    }
}
