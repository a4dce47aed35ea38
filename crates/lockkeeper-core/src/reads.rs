//! Counter of the records that reads visit, so that tests can check how the cost of a read grows with the table. Compiles
//! to nothing without the feature `mutations`.

#[cfg(feature = "mutations")]
mod counter {
    use std::cell::Cell;

    thread_local! {
        static RECORDS: Cell<u64> = const { Cell::new(0) };
    }

    /// Counts visited records.
    pub(crate) fn count(records: usize) {
        RECORDS.set(RECORDS.get() + records as u64);
    }

    /// The number of records visited on this thread since the last call.
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
