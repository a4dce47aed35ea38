//! The error codes of the contract, each with its HTTP and its gRPC status.

use std::fmt;
use std::str::FromStr;

use lockkeeper_core::Refusal;

/// Error for a text that is not a code of the contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an error code of Lockkeeper")]
pub struct UnknownCode;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $http:literal, $grpc:ident;)*) => {
        /// The reason why a request failed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: [Code; [$(Code::$name),*].len()] = [$(Code::$name),*];

            /// The code as written in answers.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// The HTTP status of an answer with this code.
            pub const fn http_status(self) -> u16 {
                match self { $(Code::$name => $http,)* }
            }

            /// The gRPC status of an answer with this code.
            pub const fn grpc_status(self) -> GrpcStatus {
                match self { $(Code::$name => GrpcStatus::$grpc,)* }
            }

            /// What the code means, for documentation.
            pub const fn description(self) -> &'static str {
                match self { $(Code::$name => concat!($($doc),+).trim_ascii(),)* }
            }
        }

        impl FromStr for Code {
            type Err = UnknownCode;

            fn from_str(text: &str) -> Result<Code, UnknownCode> {
                match text { $($text => Ok(Code::$name),)* _ => Err(UnknownCode) }
            }
        }
    };
}

codes! {
    /// The lock is held or has waiters, and the caller does not wait.
    Busy = "busy", 409, FailedPrecondition;
    /// The wait ended without a grant; the request has left the queue.
    Timeout = "timeout", 408, DeadlineExceeded;
    /// The token does not hold the lock.
    NotHeld = "not_held", 409, FailedPrecondition;
    /// The session has ended, and everything that it held is lost.
    SessionLost = "session_lost", 410, NotFound;
    /// A newer token was granted.
    StaleToken = "stale_token", 412, FailedPrecondition;
    /// The value has another version.
    VersionMismatch = "version_mismatch", 412, FailedPrecondition;
    /// The wait would close a cycle of scopes that wait for each other.
    Deadlock = "deadlock", 409, Aborted;
    /// An older scope took the locks of this one.
    Wounded = "wounded", 409, Aborted;
    /// The scope is younger than the holder's and may not wait for it.
    Died = "died", 409, Aborted;
    /// The cell does not support it.
    Unsupported = "unsupported", 501, Unimplemented;
    /// The request is malformed; the message says what to change.
    Invalid = "invalid", 400, InvalidArgument;
    /// A name, a value or the body is too large.
    TooLarge = "too_large", 413, InvalidArgument;
    /// A bound is reached, or the node is overloaded.
    Limit = "limit", 429, ResourceExhausted;
    /// The caller is not authenticated.
    Unauthenticated = "unauthenticated", 401, Unauthenticated;
    /// The caller is authenticated but not allowed to do this.
    Forbidden = "forbidden", 403, PermissionDenied;
    /// Another node is the leader; `leader` names it if it is known.
    NotLeader = "not_leader", 421, Unavailable;
    /// The cell cannot serve the request now; `may_have_happened` says whether it may have been executed.
    Unavailable = "unavailable", 503, Unavailable;
}

/// The gRPC statuses in use, with their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "defined by gRPC")]
pub enum GrpcStatus {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    Unimplemented = 12,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl From<&Refusal> for Code {
    fn from(refusal: &Refusal) -> Code {
        match refusal {
            Refusal::Busy { .. } => Code::Busy,
            Refusal::Timeout { .. } | Refusal::Cancelled => Code::Timeout,
            Refusal::NotHeld { .. } => Code::NotHeld,
            Refusal::SessionLost => Code::SessionLost,
            Refusal::StaleToken { .. } => Code::StaleToken,
            Refusal::VersionMismatch { .. } => Code::VersionMismatch,
            Refusal::Deadlock { .. } => Code::Deadlock,
            Refusal::Died { .. } => Code::Died,
            Refusal::Wounded => Code::Wounded,
            Refusal::Invalid(_) => Code::Invalid,
            Refusal::TooLarge(_) => Code::TooLarge,
            Refusal::Limit(_) => Code::Limit,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Code {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ErrorCode".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": Code::ALL.map(Code::as_str) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips() {
        for code in Code::ALL {
            assert_eq!(code.as_str().parse(), Ok(code));
            assert!((400..600).contains(&code.http_status()), "{code}");
        }
        assert_eq!("".parse::<Code>(), Err(UnknownCode));
    }
}
