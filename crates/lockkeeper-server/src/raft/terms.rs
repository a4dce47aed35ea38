//! Which terms a node accepts.
//!
//! Raft persists every higher term that a member names. Where members have no certificates anybody can claim to be one,
//! and a single message with the highest number there is would end a cell for good: no election can count beyond it, and
//! the number is on the disk. So a term that no history of elections can have reached is refused before anything is
//! persisted, on every way that members have to this node (`network/service.rs`).
//!
//! A term rises by one with each election. With pre-votes (`enable_pre_vote`) an election needs a majority that hears no
//! leader, so terms rise at most once in an election timeout (0.2 s): a node that was away would have to miss more than
//! two days of nothing but failed elections to be [`LEAP_MAX`] behind. Its way back is that of any lost node: it is removed
//! from the cell and added again with an empty folder.

use super::types::Vote;

/// How far another member can be ahead of this node.
const LEAP_MAX: u64 = 1_000_000;
/// The highest term that a node without members accepts: it has nothing to compare with.
const FIRST_TERM_MAX: u64 = 1 << 62;
/// Above this a node does not start. A stranger who goes there by leaps has to send more than 10^12 messages.
const TERM_MAX: u64 = 1 << 63;

/// The highest term that a node in this term accepts.
pub(super) fn highest_plausible(own_term: u64, has_members: bool) -> u64 {
    match has_members {
        true => own_term.saturating_add(LEAP_MAX).min(TERM_MAX),
        false => FIRST_TERM_MAX,
    }
}

/// What is wrong with the vote that a node has on its disk, if something is.
pub(crate) fn check_persisted(vote: Option<&Vote>) -> Result<(), String> {
    match vote {
        Some(vote) if vote.leader_id.term > TERM_MAX => Err(format!(
            "the log has a vote in term {}, which no election can have reached: somebody who is not a member of the cell \
             has sent it to this node. Protect the members' port first: docs/security.md, --peer-ca",
            vote.leader_id.term
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_that_elections_can_have_reached_is_accepted() {
        assert_eq!(highest_plausible(7, true), 1_000_007);
        assert!(highest_plausible(u64::MAX, true) <= TERM_MAX);
        assert!(highest_plausible(0, false) < TERM_MAX, "it can start with what it believed, and leap on");
    }

    #[test]
    fn an_impossible_term_on_the_disk_is_named() {
        assert!(check_persisted(None).is_ok());
        assert!(check_persisted(Some(&Vote::new(FIRST_TERM_MAX, 1))).is_ok());
        let refused = check_persisted(Some(&Vote::new(u64::MAX, 2))).unwrap_err();
        assert!(refused.contains("18446744073709551615") && refused.contains("--peer-ca"), "{refused}");
    }
}
