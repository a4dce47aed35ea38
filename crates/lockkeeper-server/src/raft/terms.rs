//! Plausibility check of terms.
//!
//! Raft persists every higher term in a message. Without certificates, any sender can claim to be a member, and a single
//! message with the highest possible term would disable a cell permanently: no election can exceed it, and it is on disk.
//! So a term that no series of elections can have reached is refused before anything is persisted, in every message from
//! members (`network/service.rs`).
//!
//! A term rises by one with each election. With pre-votes (`enable_pre_vote`) an election needs a majority that hears no
//! leader, so terms rise at most once per election timeout (0.2 s): a node would have to miss more than two days of failed
//! elections to be [`LEAP_MAX`] behind. It then recovers like any lost node: it is removed from the cell and added again
//! with an empty folder.

use super::types::Vote;

/// Maximum difference between a message's term and this node's.
const LEAP_MAX: u64 = 1_000_000;
/// Highest term that a node without members accepts: it has no term to compare with.
const FIRST_TERM_MAX: u64 = 1 << 62;
/// Highest term with which a node starts. An attacker needs more than 10^12 messages to get there in leaps.
const TERM_MAX: u64 = 1 << 63;

/// Returns the highest term that a node accepts.
pub(super) fn highest_plausible(own_term: u64, has_members: bool) -> u64 {
    match has_members {
        true => own_term.saturating_add(LEAP_MAX).min(TERM_MAX),
        false => FIRST_TERM_MAX,
    }
}

/// Checks the term of the vote on disk.
pub(crate) fn check_persisted(vote: Option<&Vote>) -> Result<(), String> {
    match vote {
        Some(vote) if vote.leader_id.term > TERM_MAX => Err(format!(
            "the log has a vote in term {}, which no election can have reached: a sender outside the cell has sent it to \
             this node. Protect the peer port first: docs/security.md, --peer-ca",
            vote.leader_id.term
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plausible_term_is_accepted() {
        assert_eq!(highest_plausible(7, true), 1_000_007);
        assert!(highest_plausible(u64::MAX, true) <= TERM_MAX);
        assert!(
            highest_plausible(0, false) < TERM_MAX,
            "a node starts with any term that it has accepted, and accepts higher ones"
        );
    }

    #[test]
    fn an_implausible_term_on_disk_is_refused() {
        assert!(check_persisted(None).is_ok());
        assert!(check_persisted(Some(&Vote::new(FIRST_TERM_MAX, 1))).is_ok());
        let refused = check_persisted(Some(&Vote::new(u64::MAX, 2))).unwrap_err();
        assert!(refused.contains("18446744073709551615") && refused.contains("--peer-ca"), "{refused}");
    }
}
