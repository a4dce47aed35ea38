//! Properties of every history of a cell, whatever faults happened. Each property has its own file and a test with a history
//! that violates it.

pub mod cell_time;
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

/// Description of a violated property.
pub type Violation = String;

/// A property: its name, and its check.
pub type Checker = (&'static str, fn(&History) -> Vec<Violation>);

/// Every property.
pub const ALL: [Checker; 10] = [
    ("one_holder", one_holder::check),
    ("tokens_rise", tokens_rise::check),
    ("fifo", fifo::check),
    ("no_lost_write", no_lost_write::check),
    ("reads_are_fresh", reads_are_fresh::check),
    ("linearizable", linearizable::check),
    ("leases_kept", leases_kept::check),
    ("no_ghosts", no_ghosts::check),
    ("refusals_are_final", refusals_are_final::check),
    ("cell_time", cell_time::check),
];

/// Runs all checks.
pub fn check_all(history: &History) -> Vec<Violation> {
    ALL.iter().flat_map(|(_, check)| check(history)).collect()
}
