//! Redacts the details of errors: a caller sees a lock, its holders and its waiters only if it may read that lock. Every
//! failure passes here before it is sent to a client, whatever the protocol.

use lockkeeper_core::{CycleStep, Refusal};
use smol_str::SmolStr;

use crate::api::Api;
use crate::failure::Failure;

/// Replaces a name, an owner or a scope that the caller may not see.
const HIDDEN: &str = "(hidden)";

impl Api {
    /// Returns the failure with only the details that the caller may see.
    pub(crate) fn disclose(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Refused(refusal) => Failure::Refused(disclose(refusal, |lock| self.can_read(lock))),
            other => other,
        }
    }
}

/// Returns the failure for an unknown caller: all details are redacted.
pub(crate) fn disclose_nothing(failure: Failure) -> Failure {
    match failure {
        Failure::Refused(refusal) => Failure::Refused(disclose(refusal, |_| false)),
        other => other,
    }
}

fn disclose(refusal: Refusal, can_read: impl Fn(&str) -> bool) -> Refusal {
    match refusal {
        Refusal::Deadlock { cycle } if !cycle.iter().all(|step| can_read(&step.lock)) => {
            let step = |step: &CycleStep| match can_read(&step.lock) {
                true => step.clone(),
                false => CycleStep { scope: HIDDEN.into(), owner: HIDDEN.into(), lock: HIDDEN.into() },
            };
            Refusal::Deadlock { cycle: cycle.iter().map(step).collect() }
        }
        Refusal::Died { lock, .. } if !can_read(&lock) => {
            Refusal::Died { lock, older: SmolStr::new_static(HIDDEN) }
        }
        // The caller named these locks itself, and admission has checked its rights to them. `StaleToken` is about a fence,
        // which requires the right to read its lock.
        other @ (Refusal::Deadlock { .. }
        | Refusal::Died { .. }
        | Refusal::Busy { .. }
        | Refusal::Timeout { .. }
        | Refusal::NotHeld { .. }
        | Refusal::StaleToken { .. }
        | Refusal::VersionMismatch { .. }
        | Refusal::Cancelled
        | Refusal::SessionLost
        | Refusal::Wounded
        | Refusal::Invalid(_)
        | Refusal::TooLarge(_)
        | Refusal::Limit(_)) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(lock: &str) -> CycleStep {
        CycleStep {
            scope: format!("scope of {lock}").into(),
            owner: format!("owner of {lock}").into(),
            lock: lock.into(),
        }
    }

    #[test]
    fn a_cycle_shows_only_the_locks_that_the_caller_may_read() {
        let cycle = [step("ours/1"), step("theirs/1")].into_iter().collect();
        let shown = disclose(Refusal::Deadlock { cycle }, |lock| lock.starts_with("ours/"));
        let Refusal::Deadlock { cycle } = &shown else { panic!("{shown:?}") };
        assert_eq!(cycle[0], step("ours/1"));
        assert_eq!(cycle.len(), 2, "the caller sees how long the cycle is");
        assert!(!shown.to_string().contains("theirs"), "{shown}");
    }

    #[test]
    fn an_owner_is_hidden_with_its_lock() {
        let died = Refusal::Died { lock: "theirs/1".into(), older: "their owner".into() };
        assert!(!disclose(died.clone(), |_| false).to_string().contains("their owner"));
        assert_eq!(disclose(died.clone(), |_| true), died);
    }
}
