//! Statistics of the last hour: how long requests waited and locks were held, and how many were granted and lost.
//!
//! Counted per minute of cell time, on every node as it applies the log, so that a follower's console has them too.
//! Counting costs a few nanoseconds: it reads no clock and allocates nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_api::top::{Hour, Spread};
use lockkeeper_core::CellTime;

/// Number of minutes that are kept.
pub const MINUTES: usize = 60;
/// Four buckets for each doubling of the time, up to about twelve days.
const BUCKETS: usize = 120;

/// The counts of one minute.
#[derive(Debug, Clone)]
struct Minute {
    number: u64,
    waits: [u32; BUCKETS],
    holds: [u32; BUCKETS],
    granted: u32,
    lost: u32,
}

impl Minute {
    fn new(number: u64) -> Minute {
        Minute { number, waits: [0; BUCKETS], holds: [0; BUCKETS], granted: 0, lost: 0 }
    }
}

/// The statistics of the last hour.
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

    /// Counts a grant after this wait.
    pub fn granted(&self, now: CellTime, waited_ms: u64) {
        if let Some(minute) = self.minute(now).last_mut() {
            minute.granted += 1;
            minute.waits[bucket(waited_ms)] += 1;
        }
    }

    /// Counts the end of a grant that was held for this long; `lost` if it was taken from its holder.
    pub fn freed(&self, now: CellTime, held_ms: u64, lost: bool) {
        if let Some(minute) = self.minute(now).last_mut() {
            minute.holds[bucket(held_ms)] += 1;
            minute.lost += u32::from(lost);
        }
    }

    /// Returns the hour before this moment.
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

/// Returns the bucket of a time. 0, 1, 2 and 3 have their own, then there are four for each doubling.
fn bucket(ms: u64) -> usize {
    let bucket = match ms {
        0..4 => ms as usize,
        _ => {
            let doubling = ms.ilog2() as usize;
            4 * (doubling - 1) + (ms >> (doubling - 2)) as usize % 4
        }
    };
    bucket.min(BUCKETS - 1)
}

/// Returns the longest time in a bucket.
fn upper_bound(bucket: usize) -> u64 {
    match bucket {
        0..4 => bucket as u64,
        _ => {
            let (doubling, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
            ((4 + quarter + 1) << (doubling - 2)) - 1
        }
    }
}

fn spread<'a>(minutes: impl Iterator<Item = &'a [u32; BUCKETS]>) -> Spread {
    let mut sums = [0u64; BUCKETS];
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
        Duration::from_millis(found.map_or(0, upper_bound))
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
    fn every_time_is_in_the_bucket_that_fits() {
        for ms in (0..10_000).chain([1 << 20, (1 << 20) + 1, 1 << 29]) {
            let bucket = bucket(ms);
            assert!(
                upper_bound(bucket) >= ms,
                "{ms} is in bucket {bucket}, which ends at {}",
                upper_bound(bucket)
            );
            assert!(
                bucket == 0 || upper_bound(bucket - 1) < ms,
                "{ms} fits into an earlier bucket than {bucket}"
            );
            assert!(upper_bound(bucket) <= ms + ms / 4, "{ms} is rounded to {}", upper_bound(bucket));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn minutes_older_than_an_hour_are_dropped() {
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
