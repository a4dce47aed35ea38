//! The failure of a verb: its message, and the exit code that scripts rely on.

use lockkeeper::{Code, Error};
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

    /// A failure with a code of the contract.
    pub(crate) fn of(code: Code, message: impl Into<String>) -> Failure {
        Failure::new(code.as_str(), exit_code(code), message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::of(Code::Invalid, message)
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

/// The exit code for each code of the contract.
fn exit_code(code: Code) -> u8 {
    match code {
        Code::Invalid | Code::TooLarge | Code::Unsupported => USAGE,
        Code::Unavailable | Code::NotLeader | Code::Limit => UNAVAILABLE,
        Code::Busy => BUSY,
        Code::Timeout => TIMED_OUT,
        Code::SessionLost | Code::NotHeld => LOST,
        Code::StaleToken
        | Code::VersionMismatch
        | Code::Deadlock
        | Code::Wounded
        | Code::Died
        | Code::Unauthenticated
        | Code::Forbidden => OTHER,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let exit = match (error.contract_code(), &error) {
            (Some(code), _) => exit_code(code),
            (None, Error::Lost { .. }) => LOST,
            (None, _) => OTHER,
        };
        Failure::new(error.code(), exit, error.to_string())
    }
}
