//! The elections and who leads them: they are locks with a prefix of their own.

use serde::Serialize;

use super::Look;
use crate::election::PREFIX;

/// Elections in a page.
const PAGE: usize = 50;
/// Candidates of each that are named.
const CANDIDATES: usize = 5;

/// A page of elections, in the order of their names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ElectionList {
    /// The elections.
    pub elections: Vec<Election>,
    /// There are more behind the last.
    pub more: bool,
}

/// An election.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Election {
    election: String,
    lock: String,
    leader: Option<Leader>,
    /// How many stand for it besides.
    candidates: u32,
    /// The next of them, in order.
    next: Vec<Candidate>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Leader {
    owner: String,
    value: String,
    epoch: u64,
    held_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Candidate {
    owner: String,
    value: String,
    waited_ms: u64,
}

impl Look<'_> {
    /// A page of elections behind the one of this name.
    pub fn elections(&self, after: &str) -> ElectionList {
        let after = if after.is_empty() { String::new() } else { format!("{PREFIX}{after}") };
        let views = self.table.lock_views(PREFIX, &after, self.now, CANDIDATES).take(PAGE + 1);
        let mut elections: Vec<Election> = views
            .map(|view| Election {
                election: view.name.strip_prefix(PREFIX).unwrap_or(&view.name).to_owned(),
                lock: view.name.to_string(),
                leader: view.holders.first().map(|holder| Leader {
                    owner: holder.owner.to_string(),
                    value: holder.value.to_string(),
                    epoch: holder.token.0,
                    held_ms: holder.held_ms,
                }),
                candidates: view.waiting,
                next: view
                    .queue
                    .iter()
                    .map(|waiter| Candidate {
                        owner: waiter.owner.to_string(),
                        value: waiter.value.to_string(),
                        waited_ms: waiter.waited_ms,
                    })
                    .collect(),
            })
            .collect();
        let more = elections.len() > PAGE;
        elections.truncate(PAGE);
        ElectionList { elections, more }
    }
}
