//! The floor above which a restored cell gives its tokens and versions (S1).
//!
//! A backup does not contain the numbers that were given after it was taken: by the old cell, which may have continued,
//! and by cells that were restored from it earlier. The floor must be above all of them. By default it is the time of the
//! restore, in microseconds since 2020-01-01 UTC. Every cell starts at 0 or at the floor of its own restore, and gives fewer
//! than [`TOKENS_PER_SECOND_MAX`] tokens per second on average, so its tokens never reach the floor of a later restore.
//! In 2120 the floor is 3.2 * 10^15, about a third of 2^53, and it reaches 2^53 in the year 2305.
//!
//! The functions are pure; the time is an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::Token;
use lockkeeper_net::utc::shown;

/// Rate at which the floor rises. A lock table applies about half as many commands per second on one processor, and
/// each command raises a token or the version of a value by one.
pub const TOKENS_PER_SECOND_MAX: u64 = 1_000_000;

/// 2020-01-01T00:00:00Z, at which the floor is 0, since 1970.
const EPOCH: Duration = Duration::from_secs(1_577_836_800);
/// 2026-01-01T00:00:00Z: no version of Lockkeeper that restores this way is older.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);
/// 2126-01-01T00:00:00Z: a clock beyond it is wrong, or this version is very old.
const LATEST: Duration = Duration::from_secs(4_922_899_200);
/// Tolerated lead of the clock that timestamped the backup over this machine's clock.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(60);
/// Minimum number of tokens left in a restored cell: eleven days at the highest rate.
const TOKENS_LEFT_MIN: u64 = 1_000_000_000_000;

/// Source of the floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloorSource {
    /// The time of the restore, UTC.
    Clock(SystemTime),
    /// The operator: tokens and versions start above this number.
    Given(u64),
}

/// Properties of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupFacts {
    /// Highest token or version of a value in it.
    pub highest_number: u64,
    /// Time at which its file was written, by the clock of the machine that wrote it.
    pub written: Option<SystemTime>,
}

/// Reason why there is no floor. Nothing was restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FloorError {
    /// The clock is before the first version of Lockkeeper.
    #[error(
        "the clock of this machine says {}, before 2026: it is wrong, and tokens could be given twice. {NEXT_STEP}",
        shown(*.0)
    )]
    ClockTooEarly(SystemTime),
    /// The clock is a century ahead.
    #[error("the clock of this machine says {}, after 2125: it is wrong. {NEXT_STEP}", shown(*.0))]
    ClockTooLate(SystemTime),
    /// The clock is before the backup was written.
    #[error(
        "the clock of this machine says {}, but the backup was written at {}: one of the two clocks is wrong, and \
         tokens could be given twice. {NEXT_STEP}",
        shown(*now), shown(*written)
    )]
    ClockBeforeBackup {
        /// The time of the clock.
        now: SystemTime,
        /// Time at which the backup's file was written.
        written: SystemTime,
    },
    /// The cell of the backup has given higher numbers than this time allows.
    #[error(
        "the backup contains the token or version {highest}, but the clock of this machine ({}) allows only {floor}: \
         the clock is behind, or that cell was restored with --tokens-above. {NEXT_STEP}",
        shown(*now)
    )]
    BackupAheadOfClock {
        /// The time of the clock.
        now: SystemTime,
        /// The floor at that time.
        floor: u64,
        /// The highest number of the backup.
        highest: u64,
    },
    /// The given floor is too low.
    #[error(
        "--tokens-above {given} is below {highest}, the highest token or version in the backup: give a number above \
         every token that was ever given by the old cell and by cells restored from its backups"
    )]
    GivenTooLow {
        /// The given floor.
        given: u64,
        /// The highest number of the backup.
        highest: u64,
    },
    /// Too few tokens are left below 2^53.
    #[error(
        "tokens stay below 2^53 = 9007199254740992, and above {floor} fewer than {TOKENS_LEFT_MIN} are left: give a \
         lower --tokens-above, or start a new cell and reset the tokens that the gates have stored"
    )]
    NoTokensLeft {
        /// The floor.
        floor: u64,
    },
}

const NEXT_STEP: &str = "Correct the clock and repeat the restore, or give --tokens-above N, with N above every token \
    that was ever given by the old cell and by cells restored from its backups";

/// Returns the floor for a restore: the restored cell gives only numbers above it.
pub fn token_floor(source: FloorSource, backup: BackupFacts) -> Result<u64, FloorError> {
    let floor = match source {
        FloorSource::Clock(now) => floor_at(now, backup)?,
        FloorSource::Given(given) if given < backup.highest_number => {
            return Err(FloorError::GivenTooLow { given, highest: backup.highest_number });
        }
        FloorSource::Given(given) => given,
    };
    match floor.checked_add(TOKENS_LEFT_MIN) {
        Some(needed) if needed <= Token::MAX.0 => Ok(floor),
        _ => Err(FloorError::NoTokensLeft { floor }),
    }
}

/// Returns the floor at this time. The alternative, a margin on top of the backup's numbers, would make the floors of two
/// restores equal. If the backup is ahead of the clock, the clock proves nothing about the numbers given since.
fn floor_at(now: SystemTime, backup: BackupFacts) -> Result<u64, FloorError> {
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    if since_1970 < EARLIEST {
        return Err(FloorError::ClockTooEarly(now));
    }
    if since_1970 > LATEST {
        return Err(FloorError::ClockTooLate(now));
    }
    if let Some(written) = backup.written.filter(|written| now + CLOCKS_APART_MAX < *written) {
        return Err(FloorError::ClockBeforeBackup { now, written });
    }
    let age = since_1970.saturating_sub(EPOCH);
    let floor = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
    if floor <= backup.highest_number {
        return Err(FloorError::BackupAheadOfClock { now, floor, highest: backup.highest_number });
    }
    Ok(floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time in November 2026, in seconds since 1970.
    const NOW: u64 = 1_795_000_000;
    const YEAR: u64 = 31_556_952;

    fn clock(seconds: u64) -> FloorSource {
        FloorSource::Clock(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    fn backup(highest_number: u64) -> BackupFacts {
        BackupFacts { highest_number, written: None }
    }

    #[test]
    fn a_later_restore_starts_above_all_tokens_that_an_earlier_one_can_have_given() {
        let mut before = 0;
        for seconds in (NOW..NOW + 99 * YEAR).step_by(YEAR as usize / 7) {
            let floor = token_floor(clock(seconds), backup(5_000)).unwrap();
            // A cell that started at the earlier floor and has given tokens at the highest rate since.
            assert!(floor >= before, "{floor} after {before}");
            before = floor + (YEAR / 7) * TOKENS_PER_SECOND_MAX;
            assert!(floor < 1 << 53);
        }
        let [one, other] = [NOW, NOW + 1].map(|seconds| token_floor(clock(seconds), backup(5_000)).unwrap());
        assert_eq!(other - one, TOKENS_PER_SECOND_MAX);
    }

    #[test]
    fn a_cell_that_was_never_restored_stays_below_the_floor() {
        // Six years at half a million tokens per second.
        let given = 6 * YEAR * TOKENS_PER_SECOND_MAX / 2;
        let floor = token_floor(clock(NOW), backup(given)).unwrap();
        assert!(floor > given);
    }

    #[test]
    fn implausible_clocks_are_refused() {
        let floor = |seconds| token_floor(clock(seconds), backup(0));
        for seconds in [0, 1, EPOCH.as_secs(), EARLIEST.as_secs() - 1] {
            assert!(matches!(floor(seconds), Err(FloorError::ClockTooEarly(_))), "{seconds}");
        }
        floor(EARLIEST.as_secs()).unwrap();
        floor(LATEST.as_secs()).unwrap();
        for seconds in [LATEST.as_secs() + 1, LATEST.as_secs() * 100] {
            assert!(matches!(floor(seconds), Err(FloorError::ClockTooLate(_))), "{seconds}");
        }
        let before_1970 = FloorSource::Clock(UNIX_EPOCH - Duration::from_secs(1));
        assert!(matches!(token_floor(before_1970, backup(0)), Err(FloorError::ClockTooEarly(_))));
    }

    #[test]
    fn a_clock_before_the_backup_was_written_is_refused() {
        let written_after = |seconds| BackupFacts {
            highest_number: 0,
            written: Some(UNIX_EPOCH + Duration::from_secs(NOW + seconds)),
        };
        token_floor(clock(NOW), written_after(60)).unwrap();
        let refused = token_floor(clock(NOW), written_after(61)).unwrap_err();
        assert!(matches!(refused, FloorError::ClockBeforeBackup { .. }), "{refused}");
        token_floor(FloorSource::Given(7), written_after(1_000_000)).unwrap();
    }

    #[test]
    fn a_backup_ahead_of_the_clock_needs_a_given_floor() {
        let floor = token_floor(clock(NOW), backup(0)).unwrap();
        token_floor(clock(NOW), backup(floor - 1)).unwrap();
        for ahead in [floor, floor + 1, Token::MAX.0] {
            let refused = token_floor(clock(NOW), backup(ahead)).unwrap_err();
            assert!(matches!(refused, FloorError::BackupAheadOfClock { .. }), "{refused}");
            assert!(refused.to_string().contains("--tokens-above N"), "{refused}");
        }
        assert_eq!(token_floor(FloorSource::Given(floor + 5), backup(floor + 1)), Ok(floor + 5));
    }

    #[test]
    fn given_floors_are_used_unchanged_or_refused() {
        assert_eq!(token_floor(FloorSource::Given(100), backup(100)), Ok(100));
        let too_low = FloorError::GivenTooLow { given: 99, highest: 100 };
        assert_eq!(token_floor(FloorSource::Given(99), backup(100)), Err(too_low));
        let highest = Token::MAX.0 - TOKENS_LEFT_MIN;
        assert_eq!(token_floor(FloorSource::Given(highest), backup(100)), Ok(highest));
        for floor in [highest + 1, Token::MAX.0, u64::MAX] {
            let refused = token_floor(FloorSource::Given(floor), backup(100));
            assert_eq!(refused, Err(FloorError::NoTokensLeft { floor }));
        }
    }
}
