//! What must be true of every history of a cell, whatever happened to its nodes. One property, one file; each is
//! proven by a history that breaks it.

pub mod history;
pub mod no_ghosts;
pub mod no_lost_write;
pub mod one_holder;
pub mod reads_are_fresh;
pub mod tokens_rise;

pub use history::History;

/// A property that was broken, in words.
pub type Violation = String;

/// Every property; what was broken, if anything was.
pub fn check_all(history: &History) -> Vec<Violation> {
    [
        one_holder::check(history),
        tokens_rise::check(history),
        no_lost_write::check(history),
        reads_are_fresh::check(history),
        no_ghosts::check(history),
    ]
    .concat()
}
