//! Counts the answers to the adversary: a run in which everything is refused shows nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Default)]
pub struct Count {
    pub accepted: u64,
    pub refused: u64,
}

/// The counts of each operation on each protocol.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<BTreeMap<(&'static str, String), Count>>>);

impl Tally {
    pub fn add(&self, protocol: &'static str, operation: &str, is_accepted: bool) {
        let mut counts = self.0.lock().unwrap();
        let count = counts.entry((protocol, operation.to_owned())).or_default();
        match is_accepted {
            true => count.accepted += 1,
            false => count.refused += 1,
        }
    }

    /// Checks that an operation was answered, and whether any answer was a success.
    pub fn check(&self, protocol: &'static str, operation: &str, is_permitted: bool) -> Result<(), String> {
        let counts = self.0.lock().unwrap();
        let Count { accepted, refused } =
            counts.get(&(protocol, operation.to_owned())).copied().unwrap_or_default();
        let is_as_expected = if is_permitted { accepted > 0 } else { accepted == 0 && refused > 0 };
        is_as_expected
            .then_some(())
            .ok_or_else(|| format!("{protocol}: {operation}: {accepted} accepted, {refused} refused"))
    }

    /// Checks that an operation was refused at times.
    pub fn check_refused(&self, protocol: &'static str, operation: &str) -> Result<(), String> {
        let counts = self.0.lock().unwrap();
        let Count { accepted, refused } =
            counts.get(&(protocol, operation.to_owned())).copied().unwrap_or_default();
        (refused > 0)
            .then_some(())
            .ok_or_else(|| format!("{protocol}: {operation}: {accepted} accepted, none refused"))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((protocol, operation), Count { accepted, refused }) in self.0.lock().unwrap().iter() {
            writeln!(f, "{protocol}: {operation}: {accepted} accepted, {refused} refused")?;
        }
        Ok(())
    }
}
