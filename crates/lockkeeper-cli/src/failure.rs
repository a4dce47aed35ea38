//! The failure of a verb: its message, and the exit code that scripts rely on.

use lockkeeper::Error;
use serde_json::json;

use crate::client::Output;
use crate::escape;

/// Wrong usage.
pub(crate) const USAGE: u8 = 64;
/// No engine answers.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lease was lost.
pub(crate) const LOST: u8 = 70;
/// The lock is held and `--no-wait` was given.
pub(crate) const BUSY: u8 = 75;
/// The wait timed out.
pub(crate) const TIMED_OUT: u8 = 124;
/// Anything else.
pub(crate) const OTHER: u8 = 1;

/// A failure with its message.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The stable code of the HTTP contract, where there is one.
    pub(crate) code: &'static str,
    pub(crate) exit: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: &'static str, exit: u8, message: impl Into<String>) -> Failure {
        Failure { code, exit, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new("invalid", USAGE, message)
    }

    pub(crate) fn other(message: impl Into<String>) -> Failure {
        Failure::new("fatal", OTHER, message)
    }

    /// Prints a line of text, or the error of the HTTP contract, to stderr.
    pub(crate) fn print(&self, output: Output) {
        match output {
            Output::Table => eprintln!("lockkeeper: {}", escape::lines(&self.message)),
            Output::Json => {
                let error = json!({"error": {"code": self.code, "message": self.message}});
                eprintln!("{}", escape::json(&error.to_string()));
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let exit = match &error {
            Error::Invalid(_) | Error::TooLarge(_) | Error::Unsupported(_) => USAGE,
            Error::Unavailable(_) | Error::NotLeader { .. } | Error::Limit(_) => UNAVAILABLE,
            Error::Contended { .. } => BUSY,
            Error::Timeout { .. } => TIMED_OUT,
            Error::Lost { .. } | Error::SessionLost | Error::NotHeld { .. } => LOST,
            _ => OTHER,
        };
        Failure::new(error.code(), exit, error.to_string())
    }
}
