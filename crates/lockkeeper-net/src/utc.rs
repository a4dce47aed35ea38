//! Wall-clock time for people; in a simulation, the wall clock of the host. It is recorded and displayed, and never decides
//! anything: a wrong clock changes what is displayed and nothing else.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970-01-01 UTC; 0 if the clock is set before that.
pub fn now_ms() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(host) = crate::simulation::host() {
        return host.wall_clock() / 1_000_000;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Formats a time that [`now_ms`] returned.
pub fn shown_ms(utc_ms: u64) -> String {
    shown(UNIX_EPOCH + Duration::from_millis(utc_ms))
}

/// Formats a time for people, such as `2026-11-18 09:05:00 UTC`.
pub fn shown(time: SystemTime) -> String {
    let Ok(since_1970) = time.duration_since(UNIX_EPOCH) else { return "a time before 1970".to_owned() };
    let seconds = since_1970.as_secs();
    let (year, month, day) = date_of(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Returns year, month and day in the Gregorian calendar for a number of days since 1970-01-01. The algorithm counts years
/// from March, so that the leap day is the last of its year.
fn date_of(days_since_1970: u64) -> (u64, u64, u64) {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let days = days_since_1970 + 719_468;
    let day_of_era = days % DAYS_IN_400_YEARS;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / (DAYS_IN_400_YEARS - 1)) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = days / DAYS_IN_400_YEARS * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_dates() {
        let shown_at = |seconds| shown(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(shown_at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(shown_at(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(shown_at(1_577_836_800), "2020-01-01 00:00:00 UTC");
        assert_eq!(shown_at(1_767_225_600 - 1), "2025-12-31 23:59:59 UTC");
        assert_eq!(shown_at(4_922_899_200), "2126-01-01 00:00:00 UTC");
    }
}
