//! The last hour in figures: how long requests waited and locks were held, and how many were granted and lost.
//!
//! Counted in slots of a minute of cell time, on every node as it applies the log, so that a follower's console has
//! them too. Counting one costs a few nanoseconds: there is no clock to read and nothing to allocate.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_api::top::{Hour, Spread};
use lockkeeper_core::CellTime;

/// Minutes that are kept.
pub const MINUTES: usize = 60;
/// Four steps for each doubling of the time, up to about twelve days.
const STEPS: usize = 120;

/// Counts of one minute.
#[derive(Debug, Clone)]
struct Minute {
    number: u64,
    waits: [u32; STEPS],
    holds: [u32; STEPS],
    granted: u32,
    lost: u32,
}

impl Minute {
    fn new(number: u64) -> Minute {
        Minute { number, waits: [0; STEPS], holds: [0; STEPS], granted: 0, lost: 0 }
    }
}

/// The last hour.
#[derive(Debug, Default)]
pub struct HourlyStats {
    inner: Mutex<Vec<Minute>>,
}

impl HourlyStats {
    fn minute(&self, now: CellTime) -> MutexGuard<'_, Vec<Minute>> {
        let number = now.0 / 60_000_000;
        let mut minutes = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if minutes.last().is_none_or(|last| last.number < number) {
            minutes.push(Minute::new(number));
            let first = number.saturating_sub(MINUTES as u64 - 1);
            minutes.retain(|minute| minute.number >= first);
        }
        minutes
    }

    /// A request was granted after this wait.
    pub fn granted(&self, now: CellTime, waited_ms: u64) {
        if let Some(minute) = self.minute(now).last_mut() {
            minute.granted += 1;
            minute.waits[step(waited_ms)] += 1;
        }
    }

    /// A lock was held for this long; `lost` if it was taken from its holder.
    pub fn freed(&self, now: CellTime, held_ms: u64, lost: bool) {
        if let Some(minute) = self.minute(now).last_mut() {
            minute.holds[step(held_ms)] += 1;
            minute.lost += u32::from(lost);
        }
    }

    /// The hour before this moment.
    pub fn hour(&self, now: CellTime) -> Hour {
        let minutes = self.minute(now);
        let last = minutes.last().map_or(0, |minute| minute.number);
        let series = |figure: fn(&Minute) -> u32| {
            let of = |number| minutes.iter().find(|minute| minute.number == number).map_or(0, figure);
            (0..MINUTES as u64).rev().map(|back| last.checked_sub(back).map_or(0, of)).collect()
        };
        Hour {
            waited: spread(minutes.iter().map(|minute| &minute.waits)),
            held: spread(minutes.iter().map(|minute| &minute.holds)),
            granted: series(|minute| minute.granted),
            lost: series(|minute| minute.lost),
        }
    }
}

/// 0, 1, 2 and 3 have steps of their own, then there are four for each doubling.
fn step(ms: u64) -> usize {
    let step = match ms {
        0..4 => ms as usize,
        _ => {
            let doubling = ms.ilog2() as usize;
            4 * (doubling - 1) + (ms >> (doubling - 2)) as usize % 4
        }
    };
    step.min(STEPS - 1)
}

/// The longest time that falls into a step.
fn longest(step: usize) -> u64 {
    match step {
        0..4 => step as u64,
        _ => {
            let (doubling, quarter) = (step / 4 + 1, step as u64 % 4);
            ((4 + quarter + 1) << (doubling - 2)) - 1
        }
    }
}

fn spread<'a>(minutes: impl Iterator<Item = &'a [u32; STEPS]>) -> Spread {
    let mut sums = [0u64; STEPS];
    for minute in minutes {
        for (sum, count) in sums.iter_mut().zip(minute) {
            *sum += u64::from(*count);
        }
    }
    let count: u64 = sums.iter().sum();
    let at = |of_hundred: u64| {
        let wanted = (count * of_hundred).div_ceil(100);
        let mut seen = 0;
        let found = sums.iter().position(|sum| {
            seen += sum;
            seen >= wanted && count > 0
        });
        Duration::from_millis(found.map_or(0, longest))
    };
    Spread { count, p50: at(50), p99: at(99) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(number: u64) -> CellTime {
        CellTime(number * 60_000_000)
    }

    #[test]
    fn every_time_has_its_step() {
        for ms in (0..10_000).chain([1 << 20, (1 << 20) + 1, 1 << 29]) {
            let step = step(ms);
            assert!(longest(step) >= ms, "{ms} is in step {step}, which ends at {}", longest(step));
            assert!(step == 0 || longest(step - 1) < ms, "{ms} could be in an earlier step than {step}");
            assert!(longest(step) <= ms + ms / 4, "{ms} is rounded to {}", longest(step));
        }
        assert_eq!(step(u64::MAX), STEPS - 1);
    }

    #[test]
    fn an_hour_and_no_more() {
        let stats = HourlyStats::default();
        stats.granted(minutes(0), 1_000_000);
        for ms in 0..100 {
            stats.granted(minutes(59), ms);
            stats.freed(minutes(59), 10 * ms, ms == 7);
        }
        let hour = stats.hour(minutes(59));
        assert_eq!((hour.granted[0], hour.granted[59], hour.lost[59]), (1, 100, 1));
        assert_eq!(hour.waited.count, 101);
        let hour = stats.hour(minutes(60));
        assert_eq!((hour.granted[58], hour.granted[59], hour.waited.count), (100, 0, 100));
        assert!((49..=61).contains(&hour.waited.p50.as_millis()), "{hour:?}");
        assert!((98..=123).contains(&hour.waited.p99.as_millis()), "{hour:?}");
        assert_eq!(stats.hour(minutes(500)).held, Spread::default());
    }
}
