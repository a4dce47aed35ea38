//! Counts the records that reads look at, so that tests can tell how a read's cost grows with the table. Counted only with
//! the feature `mutations`; without it this compiles to nothing.

#[cfg(feature = "mutations")]
mod counter {
    use std::cell::Cell;

    thread_local! {
        static RECORDS: Cell<u64> = const { Cell::new(0) };
    }

    /// Counts records that a read has looked at.
    pub(crate) fn count(records: usize) {
        RECORDS.set(RECORDS.get() + records as u64);
    }

    /// The records that reads on this thread have looked at since this was last asked.
    pub fn take() -> u64 {
        RECORDS.take()
    }
}

#[cfg(not(feature = "mutations"))]
mod counter {
    /// Counts nothing.
    pub(crate) const fn count(_: usize) {}
}

pub(crate) use counter::count;
#[cfg(feature = "mutations")]
pub use counter::take;
