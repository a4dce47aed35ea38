//! Errors of servers.

use std::path::PathBuf;

/// Why a server could not be started or queried, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A program is not installed.
    #[error("{program} is not installed: {advice}")]
    Missing {
        /// Its name.
        program: &'static str,
        /// How to install it.
        advice: &'static str,
    },
    /// The process exited.
    #[error("{program} exited with {status}; the end of its log:\n{words}")]
    Ended {
        /// Its name.
        program: String,
        /// Its exit status.
        status: String,
        /// The end of its log.
        words: String,
    },
    /// The process did not become ready in time.
    #[error(
        "{what} was not ready within {seconds} s: check the load of this machine and try again; the end of its log:\n{words}"
    )]
    Late {
        /// The condition that was not reached.
        what: String,
        /// The time limit.
        seconds: u64,
        /// The end of its log.
        words: String,
    },
    /// A command failed.
    #[error("{command} failed: {words}")]
    Command {
        /// Its name.
        command: String,
        /// Its output on stderr.
        words: String,
    },
    /// The system refused an operation.
    #[error("{what}: {error}")]
    Io {
        /// The failed operation.
        what: String,
        /// The error of the system.
        error: std::io::Error,
    },
}

impl ServerError {
    /// Adds the failed operation to an I/O error.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ServerError {
        let what = what.into();
        move |error| ServerError::Io { what, error }
    }
}

/// The last lines of a log.
pub(crate) fn log_tail(log: &PathBuf) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
