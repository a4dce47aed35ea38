//! A fail-over sets cell time back by at most one second (S2).

use super::Violation;
use super::history::History;

/// The longest time by which a new leader may set cell time back.
const SET_BACK_MS_MAX: u64 = 1_000;

/// Checks the cell times of leaders, in the order of their observation.
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut latest_ms = 0;
    for time in &history.leader_times {
        if time.cell_time_ms + SET_BACK_MS_MAX < latest_ms {
            violations.push(format!(
                "cell time was {latest_ms} ms, and node {} set it back to {} ms at {:?}",
                time.node, time.cell_time_ms, time.seen
            ));
            latest_ms = 0;
        }
        latest_ms = latest_ms.max(time.cell_time_ms);
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::history::LeaderTime;
    use super::*;

    #[test]
    fn time_that_is_set_back_by_more_than_a_second_is_detected() {
        for (after_fail_over, violations) in [(9_000, 0), (8_999, 1)] {
            let times = [(1, 9_000), (1, 10_000), (2, after_fail_over), (2, after_fail_over + 50)];
            let leader_times = times.map(|(node, cell_time_ms)| LeaderTime {
                node,
                cell_time_ms,
                seen: Duration::from_secs(1),
            });
            let history = History { leader_times: leader_times.to_vec(), ..History::default() };
            assert_eq!(check(&history).len(), violations);
        }
    }
}
