//! Seeded random numbers.

use std::time::Duration;

/// A seeded random number generator (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// Any seed gives a good sequence.
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True with a probability of 1 in `times`.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A random duration in a range.
    pub(super) fn between_ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from * 1_000 + self.below((to.saturating_sub(from)) * 1_000 + 1))
    }

    /// A random element.
    pub(super) fn one_of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.below(things.len() as u64) as usize]
    }

    /// A new generator, seeded by this one.
    pub(super) fn fork(&mut self) -> Random {
        Random(self.next())
    }
}
