//! What must be true of every history of a cell, whatever happened to its nodes. One property, one file; each is
//! proven by a history that breaks it.

pub mod fifo;
pub mod history;
pub mod leases_kept;
pub mod linearizable;
pub mod no_ghosts;
pub mod no_lost_write;
pub mod one_holder;
pub mod reads_are_fresh;
pub mod refusals_are_final;
pub mod tokens_rise;

pub use history::History;

/// A property that was broken, in words.
pub type Violation = String;

/// A property: its name, and the search for what breaks it.
pub type Checker = (&'static str, fn(&History) -> Vec<Violation>);

/// Every property.
pub const ALL: [Checker; 9] = [
    ("one_holder", one_holder::check),
    ("tokens_rise", tokens_rise::check),
    ("fifo", fifo::check),
    ("no_lost_write", no_lost_write::check),
    ("reads_are_fresh", reads_are_fresh::check),
    ("linearizable", linearizable::check),
    ("leases_kept", leases_kept::check),
    ("no_ghosts", no_ghosts::check),
    ("refusals_are_final", refusals_are_final::check),
];

/// What was broken, if anything was.
pub fn check_all(history: &History) -> Vec<Violation> {
    ALL.iter().flat_map(|(_, check)| check(history)).collect()
}
