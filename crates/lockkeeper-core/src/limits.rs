//! All bounds of the lock table (S11). At a bound the answer is a clear refusal, and releases and keep-alives still work.

use crate::command::{Command, Fence, Waiting};
use crate::refusal::Refusal;

/// Longest name of a lock or key of a value, in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// Longest request id, in bytes.
pub const REQUEST_BYTES_MAX: usize = 128;
/// Longest description of an owner, in bytes.
pub const OWNER_BYTES_MAX: usize = 512;
/// Longest reason given for a force-release, in bytes.
pub const REASON_BYTES_MAX: usize = 1_024;
/// Largest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Shortest time to live of a session.
pub const TTL_MS_MIN: u64 = 100;
/// Longest time to live of a session.
pub const TTL_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Longest limited wait for a lock. A wait without a limit has none.
pub const WAIT_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;
/// Longest lock-delay (S9).
pub const LOCK_DELAY_MS_MAX: u64 = 60_000;
/// Largest capacity of a counted lock.
pub const CAPACITY_MAX: u32 = 1_000_000;
/// Maximum number of locks that one request can ask for.
pub const LOCKS_PER_REQUEST_MAX: usize = 128;
/// Maximum number of sessions in a cell.
pub const SESSIONS_MAX: usize = 1_000_000;
/// Maximum number of locks that are held, waited for or closed in a cell.
pub const LOCKS_MAX: usize = 10_000_000;
/// Maximum number of grants that one session can hold.
pub const GRANTS_PER_SESSION_MAX: u32 = 2_000_000;
/// Maximum number of requests of one session that can wait.
pub const WAITS_PER_SESSION_MAX: u32 = 100_000;
/// Maximum number of requests that can wait for one lock. One release can admit all of them at once (readers), and that
/// entry must stay short.
pub const WAITERS_PER_LOCK_MAX: u32 = 10_000;
/// Maximum number of locks that one scope can hold: an older scope may have to take them all in one entry.
pub const LOCKS_PER_SCOPE_MAX: u32 = 256;
/// Maximum number of locks that one scope can wait for, in all its requests together.
pub const WAITS_PER_SCOPE_MAX: u32 = 256;
/// Maximum number of idle scopes whose age is remembered.
pub const IDLE_SCOPES_REMEMBERED_MAX: usize = 65_536;
/// Maximum number of waiters among which a hand-over searches for a candidate by its owner. A candidate with a value is
/// found at any place.
pub const CANDIDATES_EXAMINED_MAX: usize = 256;
/// Longest value of a candidate, in bytes.
pub const CANDIDATE_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of rate limiters in use.
pub const LIMITERS_MAX: usize = 1_000_000;
/// Largest burst of a rate limiter.
pub const BURST_MAX: u64 = 1_000_000_000;
/// Longest time between two permits of a rate: a day.
pub const INTERVAL_NS_MAX: u64 = 24 * 60 * 60 * 1_000_000_000;
/// Maximum number of values in a cell.
pub const VALUES_MAX: usize = 1_000_000;
/// Maximum number of answers to settled requests (released or refused) that are remembered for retries, per session.
pub const SETTLED_PER_SESSION_MAX: u32 = 256;
/// Number of these answers that a full table keeps per session, or fewer if newer ones are larger.
pub const SETTLED_IN_FULL_TABLE: u32 = 16;
/// Maximum number of free locks whose last token is remembered individually; older ones are covered by one common bound.
pub const FREE_LOCKS_REMEMBERED_MAX: usize = 65_536;
// The constants below are work budgets of one entry, in steps (see `work.rs` and ADR 0018). Work
// beyond them continues in the next entries, and others are served in between. They belong to the cell version: a node
// with different ones would compute a different table.

/// Budget for work that earlier entries deferred. Also the maximum for one deadlock search, so that a deferred search can
/// always complete.
pub const BACKLOG_STEPS_PER_ENTRY: u64 = 8_192;
/// Budget for ends of waits and lock-delays, and for all commands of an entry beyond [`STEPS_PER_COMMAND`].
pub const COMMAND_STEPS_PER_ENTRY: u64 = 4_096;
/// Budget added for each command, so that the ordinary hand-off to the next holder is never deferred.
pub const STEPS_PER_COMMAND: u64 = 8;
/// The leader closes an entry when the estimated cost of its commands reaches this (see `Command::cost`).
pub const ENTRY_COST_MAX: u64 = 32_768;
/// Budget for freeing what ended sessions held.
pub const REAP_STEPS_PER_ENTRY: u64 = 4_096;
/// Budget for forgetting the answers and scopes of ended sessions, after their locks are freed.
pub const FORGET_STEPS_PER_ENTRY: u64 = 512;
/// Maximum number of steps of an indivisible piece of work, such as wounding one scope. The last piece of an entry may
/// begin with one step left.
pub const STEPS_PER_PIECE_MAX: u64 = 4_096;

/// Default maximum size of the table in logical bytes. Administrators can set another.
pub const STATE_BYTES_MAX: u64 = 1 << 30;
/// Lowest maximum that can be set: a session and its locks would not fit below it.
pub const STATE_BYTES_SETTING_MIN: u64 = 1 << 20;
/// Highest maximum that can be set.
pub const STATE_BYTES_SETTING_MAX: u64 = 1 << 44;

/// Longest name of an identity, in bytes.
pub const IDENTITY_BYTES_MAX: usize = 256;
/// Longest change of the access rules, in bytes.
const CHANGE_BYTES_MAX: usize = 2 * 1024;
/// Maximum number of access rules.
pub const RULES_MAX: usize = 10_000;
/// Maximum number of access rules of one identity: every request checks them.
pub const RULES_PER_IDENTITY_MAX: usize = 256;
/// Maximum number of access tokens.
pub const TOKENS_MAX: usize = 100_000;
/// Maximum number of namespaces, and of identities, with quotas of their own.
pub const QUOTAS_MAX: usize = 10_000;

/// Checks every length in a command. The node checks before it queues the command, so that nothing oversized reaches the
/// log; the table checks again on apply.
pub fn check_sizes(command: &Command) -> Result<(), Refusal> {
    match command {
        Command::OpenSession { owner, identity, .. } => {
            let identity_bytes = identity.as_ref().map_or(0, |identity| identity.len());
            check_length("identity", identity_bytes, IDENTITY_BYTES_MAX)?;
            check_length("owner", owner.len(), OWNER_BYTES_MAX)
        }
        Command::Acquire(request) => {
            if request.locks.as_slice().len() > LOCKS_PER_REQUEST_MAX {
                return Err(Refusal::limit(format!(
                    "the request names {} locks; at most {LOCKS_PER_REQUEST_MAX} are allowed",
                    request.locks.as_slice().len()
                )));
            }
            let request_bytes = request.request.as_ref().map_or(0, |id| id.len());
            check_length("request id", request_bytes, REQUEST_BYTES_MAX)?;
            check_length(
                "name of the scope",
                request.scope.as_ref().map_or(0, |name| name.len()),
                NAME_BYTES_MAX,
            )?;
            let value_bytes = request.value.as_ref().map_or(0, |value| value.len());
            check_length("candidate's value", value_bytes, CANDIDATE_BYTES_MAX)?;
            request.locks.as_slice().iter().try_for_each(|name| check_name("name of the lock", name))
        }
        Command::Cancel { what: Waiting::Request(id), .. } => {
            check_length("request id", id.len(), REQUEST_BYTES_MAX)
        }
        Command::Release { lock, .. } => check_length("name of the lock", lock.len(), NAME_BYTES_MAX),
        Command::ForceRelease { lock, reason, by } => {
            check_length("identity", by.len(), IDENTITY_BYTES_MAX)?;
            check_length("name of the lock", lock.len(), NAME_BYTES_MAX)?;
            check_length("reason", reason.len(), REASON_BYTES_MAX)
        }
        Command::PutValue { key, value, fence, .. } => {
            check_length("key", key.len(), NAME_BYTES_MAX)?;
            check_fence(fence.as_ref())?;
            check_length("value", value.len(), VALUE_BYTES_MAX)
        }
        Command::DeleteValue { key, fence, .. } => {
            check_length("key", key.len(), NAME_BYTES_MAX)?;
            check_fence(fence.as_ref())
        }
        Command::HandOver { lock, to, .. } => {
            check_length("name of the lock", lock.len(), NAME_BYTES_MAX)?;
            check_length("candidate", to.len(), CANDIDATE_BYTES_MAX)
        }
        Command::ChangeAccess { by, change } => {
            check_length("identity", by.len(), IDENTITY_BYTES_MAX)?;
            check_length("change", change.bytes(), CHANGE_BYTES_MAX)
        }
        Command::AuditNote { by, text } => {
            check_length("identity", by.len(), IDENTITY_BYTES_MAX)?;
            check_length("note", text.len(), REASON_BYTES_MAX)
        }
        Command::TakeRate(take) => check_length("name of the limiter", take.limiter.len(), NAME_BYTES_MAX),
        Command::Cancel { what: Waiting::Ticket(_), .. }
        | Command::CloseSession { .. }
        | Command::ExpireSession { .. }
        | Command::RaiseCellVersion { .. }
        | Command::Tick => Ok(()),
        #[cfg(feature = "next-version")]
        Command::NextVersionNote { text } => check_length("note", text.len(), REASON_BYTES_MAX),
    }
}

fn check_fence(fence: Option<&Fence>) -> Result<(), Refusal> {
    check_length("name of the fence's lock", fence.map_or(0, |fence| fence.lock.len()), NAME_BYTES_MAX)
}

/// Checks that a name is not empty, not too long and without control characters.
pub fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::invalid(format!("the {what} is empty: give it a name such as \"orders/4472\"")));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Refusal::too_large(format!(
            "the {what} is {} bytes long; at most {NAME_BYTES_MAX} are allowed",
            name.len()
        )));
    }
    if name.chars().any(char::is_control) {
        return Err(Refusal::invalid(format!("the {what} contains a control character: use printable text")));
    }
    Ok(())
}

/// Checks that a text is not longer than `bytes_max`.
pub fn check_length(what: &str, length: usize, bytes_max: usize) -> Result<(), Refusal> {
    if length > bytes_max {
        return Err(Refusal::too_large(format!(
            "the {what} is {length} bytes long; at most {bytes_max} are allowed"
        )));
    }
    Ok(())
}

/// Checks that a number is within a range.
pub fn check_range(what: &str, value: u64, min: u64, max: u64) -> Result<(), Refusal> {
    if value < min || value > max {
        return Err(Refusal::invalid(format!("{what} is {value}; it must be between {min} and {max}")));
    }
    Ok(())
}
