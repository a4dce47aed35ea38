//! Reads durations such as `10s`, `500ms`, `2m`, `1h30m`, and formats them.

use std::time::Duration;

/// Parses a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is not a duration (try 10s, 500ms, 2m or 1h30m)");
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let seconds_per_unit = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "" if number.chars().all(|c| c.is_ascii_digit()) && !number.is_empty() => {
                return Err(format!("\"{text}\" has no unit (try {text}s; units are ms, s, m, h, d)"));
            }
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(number * seconds_per_unit).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// Formats a duration in at most two units.
pub(crate) fn humanize(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..10 if duration.subsec_millis() >= 100 => format!("{seconds}.{} s", duration.subsec_millis() / 100),
        1..60 => format!("{seconds} s"),
        60..3_600 => two_units(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two_units(seconds / 3_600, "h", seconds / 60 % 60, "min"),
        _ => two_units(seconds / 86_400, "d", seconds / 3_600 % 24, "h"),
    }
}

fn two_units(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {large_unit}"),
        small => format!("{large} {large_unit} {small} {small_unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, millis) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("0s", 0),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_rejected() {
        for text in ["", "s", "10", "ten", "10x", "-1s", "1..s", "10s5", "99999999999999999999d"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("10").unwrap_err().contains("10s"));
    }

    #[test]
    fn durations_have_at_most_two_units() {
        for (millis, text) in [
            (12, "12 ms"),
            (1_000, "1 s"),
            (1_530, "1.5 s"),
            (59_900, "59 s"),
            (65_000, "1 min 5 s"),
            (7_200_000, "2 h"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(humanize(Duration::from_millis(millis)), text);
        }
    }
}
