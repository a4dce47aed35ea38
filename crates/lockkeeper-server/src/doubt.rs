//! What to do about a request of which nobody knows whether it has happened (S12): not everything can be repeated.

use lockkeeper_core::{Acquire, Command};

use crate::calls::OWN_REQUEST_PREFIX;

/// For whoever does not know what it was.
pub(crate) const ANYTHING: &str =
    "with a request id, repeat it with the same one; without, look what has become of it first";

/// The next step for a command.
pub(crate) fn next_step(command: &Command) -> &'static str {
    match command {
        Command::Acquire(request) if has_id(request) => "repeat it with the same request id",
        Command::Acquire(_) => {
            "look who holds the lock before you repeat it, or close the session, which gives everything back; with a \
             request id it could simply be repeated"
        }
        Command::Release { .. } => "repeat it: not_held means that it has happened",
        Command::CloseSession { .. } => "repeat it: session_lost means that it has happened",
        Command::Cancel { .. } => "repeat it",
        Command::OpenSession { .. } => "open another session; this one, if it was opened, ends by itself",
        Command::PutValue { .. } | Command::DeleteValue { .. } => "read the value before you repeat it",
        Command::ForceRelease { .. } => {
            "look who holds the lock before you repeat it: by now it may be the next one"
        }
        Command::HandOver { .. } => "look who holds the lock before you repeat it",
        Command::TakeRate(_) => "the permits may be gone: repeat it only if it may take them twice",
        Command::ChangeAccess { .. } => "look at the rules, tokens and quotas before you repeat it",
        Command::AuditNote { .. } => "look at the members before you repeat it",
        // The node asks for these itself, and asks again.
        Command::ExpireSession { .. } | Command::Tick => ANYTHING,
    }
}

/// Whether the client has given an id: one of the node's own is not known to it.
fn has_id(request: &Acquire) -> bool {
    request.request.as_ref().is_some_and(|id| !id.starts_with(OWN_REQUEST_PREFIX))
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Locks, SessionId, Token};

    use super::*;
    use crate::failure::Failure;

    fn words(command: &Command) -> String {
        Failure::unknown("the leader has changed").in_doubt(next_step(command)).to_string()
    }

    #[test]
    fn only_what_has_a_request_id_is_to_be_repeated_with_it() {
        let session = SessionId(1);
        let acquire = Acquire::new(session, Locks::One("a".into()));
        let with = |id: &str| Command::Acquire(Acquire { request: Some(id.into()), ..acquire.clone() });
        assert!(words(&with("r1")).ends_with("repeat it with the same request id"));
        let put = Command::PutValue { key: "k".into(), value: vec![1].into(), fence: None, if_version: None };
        let force = Command::ForceRelease { lock: "a".into(), reason: "stuck".into(), by: "".into() };
        let open = Command::OpenSession { session, ttl_ms: 1_000, owner: "me".into(), identity: None };
        let release = Command::Release { session, lock: "a".into(), token: Token(1), forget: false };
        for (command, next) in [
            (with("~1-1"), "look who holds the lock"),
            (Command::Acquire(acquire.clone()), "look who holds the lock"),
            (put, "read the value before you repeat it"),
            (force, "look who holds the lock"),
            (open, "open another session"),
            (release, "not_held means that it has happened"),
        ] {
            let said = words(&command);
            assert!(said.contains("it may have happened") && said.contains(next), "{said}");
            assert!(!said.contains("the same request id"), "it has none: {said}");
        }
    }
}
