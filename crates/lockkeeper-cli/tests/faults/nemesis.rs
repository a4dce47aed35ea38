//! Injects faults into the cell: one at a time, sometimes two at once.

use std::fmt;
use std::time::Duration;

use crate::harness::cell::Cell;
use crate::harness::random::Random;
use crate::recorder::Recorder;

/// Counts of injected faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    kills: u32,
    double_kills: u32,
    stops: u32,
    restarts: u32,
    cuts_one_way: u32,
    cuts_both_ways: u32,
    isolations: u32,
    leaders: u32,
    terms: u64,
}

impl Faults {
    pub(crate) fn total(&self) -> u32 {
        self.kills
            + self.double_kills
            + self.stops
            + self.restarts
            + self.cuts_one_way
            + self.cuts_both_ways
            + self.isolations
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} faults: {} kills, {} kills of two, {} stops, {} restarts, {} cuts one way, {} both ways, \
             {} nodes isolated; {} of them hit the leader; {} terms",
            self.total(),
            self.kills,
            self.double_kills,
            self.stops,
            self.restarts,
            self.cuts_one_way,
            self.cuts_both_ways,
            self.isolations,
            self.leaders,
            self.terms
        )
    }
}

/// Injects faults until the end of the test, and heals the cell afterwards.
pub(crate) async fn run(cell: &mut Cell, recorder: &Recorder, random: &mut Random) -> Faults {
    let mut faults = Faults::default();
    let first_term = term(cell).await;
    while !recorder.is_over() {
        pause(random, 300, 1_200).await;
        // Half of all faults hit the leader.
        let leader = cell.leader().await;
        let victim = if random.below(2) == 0 { leader } else { 1 + random.below(3) };
        faults.leaders += u32::from(victim == leader);
        let other = *random.one_of(&cell.others(victim));
        match random.below(9) {
            0 | 1 => {
                faults.kills += 1;
                cell.kill(victim);
                pause(random, 50, 1_500).await;
            }
            2 => {
                faults.double_kills += 1;
                cell.kill(victim);
                cell.kill(other);
                pause(random, 50, 2_500).await;
            }
            3 | 4 => {
                faults.stops += 1;
                cell.stop(victim);
                pause(random, 50, 2_000).await;
                cell.resume(victim);
            }
            5 => {
                faults.restarts += 1;
                let ended = cell.node_mut(victim).term().await;
                assert_eq!(ended.code(), Some(0), "node {victim} on TERM");
            }
            6 => {
                faults.cuts_one_way += 1;
                cell.network.cut(victim, other);
                pause(random, 200, 2_000).await;
            }
            7 => {
                faults.cuts_both_ways += 1;
                cell.network.cut_both(victim, other);
                pause(random, 200, 2_000).await;
            }
            _ => {
                faults.isolations += 1;
                for other in cell.others(victim) {
                    cell.network.cut_both(victim, other);
                }
                pause(random, 200, 2_000).await;
            }
        }
        cell.network.heal();
        cell.spawn_all();
    }
    cell.leader().await;
    faults.terms = term(cell).await.saturating_sub(first_term);
    faults
}

async fn term(cell: &Cell) -> u64 {
    let leader = cell.leader().await;
    match cell.node(leader).status().await {
        Some(status) => status["term"].as_u64().unwrap(),
        None => 0,
    }
}

async fn pause(random: &mut Random, least_ms: u64, most_ms: u64) {
    tokio::time::sleep(Duration::from_millis(least_ms + random.below(most_ms - least_ms))).await;
}
