//! The floor above which a restored cell gives its tokens and versions (S1).
//!
//! A backup does not tell what was given after it was taken: by the old cell, which may have gone on, and by cells
//! that were restored from it before. The floor has to be above all of it. By default it is the time of the restore, in
//! microseconds since 2020-01-01 UTC. Every cell begins at 0 or at the floor of its own restore, and gives fewer
//! than [`TOKENS_PER_SECOND_MAX`] tokens in a second on average, so its tokens never catch up with the floor of a later restore.
//! In 2120 the floor is 3.2 * 10^15, about a third of 2^53, and it reaches 2^53 in the year 2305.
//!
//! This is arithmetic only; the time is an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::Token;
use lockkeeper_net::utc::shown;

/// The rate at which the floor rises. A lock table applies about half as many commands in a second on one processor,
/// and a version of one value rises by one with a command as well.
pub const TOKENS_PER_SECOND_MAX: u64 = 1_000_000;

/// 2020-01-01T00:00:00Z, where the floor is 0, since 1970.
const EPOCH: Duration = Duration::from_secs(1_577_836_800);
/// 2026-01-01T00:00:00Z: no version of Lockkeeper that restores like this is older.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);
/// 2126-01-01T00:00:00Z: a clock beyond it is wrong, or this version is very old.
const LATEST: Duration = Duration::from_secs(4_922_899_200);
/// The clock of the machine that wrote the backup may be ahead of ours by this much.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(60);
/// A restored cell has at least this many tokens left: eleven days at the highest rate.
const TOKENS_LEFT_MIN: u64 = 1_000_000_000_000;

/// Where the floor comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloorSource {
    /// The time of the restore, UTC.
    Clock(SystemTime),
    /// The operator: no token and no version up to this number is given.
    Given(u64),
}

/// What is known of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupFacts {
    /// The highest token or version of a value in it.
    pub highest_number: u64,
    /// When its file was written, by the clock of the machine that wrote it.
    pub written: Option<SystemTime>,
}

/// Why there is no floor. Nothing was restored.
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
        /// What the clock says.
        now: SystemTime,
        /// When the backup's file was written.
        written: SystemTime,
    },
    /// The cell of the backup has given higher numbers than this time allows.
    #[error(
        "the backup has given the token or version {highest}, and the clock of this machine ({}) allows only {floor}: \
         the clock is behind, or that cell began with --tokens-above. {NEXT_STEP}",
        shown(*now)
    )]
    BackupAheadOfClock {
        /// What the clock says.
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
        /// What was given.
        given: u64,
        /// The highest number of the backup.
        highest: u64,
    },
    /// Tokens end at 2^53.
    #[error(
        "tokens stay below 2^53 = 9007199254740992, and above {floor} there are fewer than {TOKENS_LEFT_MIN} left: give \
         a lower --tokens-above, or start a new cell and have the gates forget the old tokens"
    )]
    NoTokensLeft {
        /// The floor.
        floor: u64,
    },
}

const NEXT_STEP: &str = "Set the clock right and repeat the restore, or give --tokens-above N, with N above every token \
    that was ever given by the old cell and by cells restored from its backups";

/// The floor for a restore: the restored cell gives only numbers above it.
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

/// No margin is added to the backup's own numbers: it would make the floors of two restores equal. If
/// the backup is ahead of the clock, the clock says nothing about what was given since.
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

    /// Some time in November 2026, in seconds since 1970.
    const NOW: u64 = 1_795_000_000;
    const YEAR: u64 = 31_556_952;

    fn clock(seconds: u64) -> FloorSource {
        FloorSource::Clock(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    fn backup(highest_number: u64) -> BackupFacts {
        BackupFacts { highest_number, written: None }
    }

    #[test]
    fn later_restores_of_one_backup_start_above_all_that_a_cell_can_have_given() {
        let mut before = 0;
        for seconds in (NOW..NOW + 99 * YEAR).step_by(YEAR as usize / 7) {
            let floor = token_floor(clock(seconds), backup(5_000)).unwrap();
            // A cell that began at the earlier floor and has given tokens at the highest rate ever since.
            assert!(floor >= before, "{floor} after {before}");
            before = floor + (YEAR / 7) * TOKENS_PER_SECOND_MAX;
            assert!(floor < 1 << 53);
        }
        let [one, other] = [NOW, NOW + 1].map(|seconds| token_floor(clock(seconds), backup(5_000)).unwrap());
        assert_eq!(other - one, TOKENS_PER_SECOND_MAX);
    }

    #[test]
    fn a_cell_that_was_never_restored_is_far_below() {
        // Six years at half a million tokens in a second, day and night.
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
    fn given_floors_are_taken_as_they_are_or_refused() {
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
