//! Why a server could not be had.

use std::path::PathBuf;

/// Why a server could not be started or asked, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A program is not on this machine.
    #[error("{program} is not installed: {advice}")]
    Missing {
        /// Which.
        program: &'static str,
        /// How to get it.
        advice: &'static str,
    },
    /// The process ended by itself.
    #[error("{program} ended by itself with {status}; its last words:\n{words}")]
    Ended {
        /// Which.
        program: String,
        /// Its exit status.
        status: String,
        /// The end of its log.
        words: String,
    },
    /// It did not get ready in time.
    #[error(
        "{what} was not ready within {seconds} s: look for what else keeps the machine busy, and try again; its last words:\n{words}"
    )]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
        /// The end of its log.
        words: String,
    },
    /// A command that had to succeed did not.
    #[error("{command} failed: {words}")]
    Command {
        /// Which.
        command: String,
        /// What it said.
        words: String,
    },
    /// The machine did not let us.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What came of it.
        error: std::io::Error,
    },
}

impl ServerError {
    /// Gives an I/O error the words that say what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ServerError {
        let what = what.into();
        move |error| ServerError::Io { what, error }
    }
}

/// The end of a log, for people.
pub(crate) fn last_words(log: &PathBuf) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
