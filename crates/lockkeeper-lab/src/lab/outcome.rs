//! The outcome of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::engine::EngineName;
use super::event::{Event, EventKind};
use super::resource::WriteCounts;
use super::scenario::Scenario;
use crate::checkers::history::{Grant, History, Hold};
use crate::checkers::{one_holder, tokens_rise};

/// Whether the resource has a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The resource checks the token.
    Fenced,
    /// The resource accepts every write.
    Unfenced,
    /// The scenario has no fencing to check.
    Either,
}

impl Mode {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Fenced => "fenced",
            Mode::Unfenced => "unfenced",
            Mode::Either => "either",
        }
    }
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Case {
    /// The scenario.
    pub scenario: Scenario,
    /// The engine.
    pub engine: EngineName,
    /// With a gate or without.
    pub mode: Mode,
}

/// A figure that a scenario measured.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

/// The outcome of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The case.
    #[serde(flatten)]
    pub case: Case,
    /// Seed of its random choices.
    pub seed: u64,
    /// Updates that were acknowledged.
    pub acknowledged: u64,
    /// Acknowledged updates that are missing at the end.
    pub lost_updates: u64,
    /// Number of times that two clients were certain to hold the same lock at the same time.
    pub double_holders: u64,
    /// Requests that the gate refused.
    pub refused: u64,
    /// Measured figures.
    pub figures: Vec<Figure>,
    /// Remarks.
    pub notes: Vec<String>,
    /// The claim that was broken, if one was.
    pub broken: Option<String>,
    /// Its duration.
    pub took_ms: u64,
    /// All events.
    pub timeline: Vec<Event>,
}

/// The result of a case: an outcome, or why there is none.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum CaseResult {
    /// It ran.
    Ran(Box<Outcome>),
    /// The scenario does not apply to this engine.
    NotApplicable {
        /// The case.
        #[serde(flatten)]
        case: Case,
        /// The reason.
        why: String,
    },
    /// It could not run on this machine.
    NotRun {
        /// The case.
        #[serde(flatten)]
        case: Case,
        /// Whether a server is not installed.
        missing: bool,
        /// The reason.
        why: String,
    },
}

impl CaseResult {
    /// The case.
    pub fn case(&self) -> Case {
        match self {
            CaseResult::Ran(outcome) => outcome.case,
            CaseResult::NotApplicable { case, .. } | CaseResult::NotRun { case, .. } => *case,
        }
    }
}

/// What a scenario reports besides its events.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) figures: Vec<Figure>,
    pub(crate) notes: Vec<String>,
    /// A broken claim that the scenario itself found.
    pub(crate) broken: Option<String>,
}

impl Findings {
    pub(crate) fn figure(&mut self, name: impl Into<String>, value: f64, unit: &str) {
        self.figures.push(Figure { name: name.into(), value, unit: unit.to_owned() });
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

/// Counts violations and looks for broken claims.
pub(crate) fn evaluate(
    case: Case,
    seed: u64,
    findings: Findings,
    counts: WriteCounts,
    timeline: Vec<Event>,
) -> Outcome {
    let history = history(&timeline);
    let double_holders = one_holder::check(&history).len() as u64;
    let mut notes = findings.notes;
    let not_rising = tokens_rise::check(&history).len();
    if not_rising > 0 && case.engine != EngineName::CONSUL {
        notes.push(format!("tokens that did not rise: {not_rising}"));
    }
    let began = timeline.first().map_or(0, |event| event.at_ns);
    let ended = timeline.last().map_or(0, |event| event.at_ns);
    let mut outcome = Outcome {
        case,
        seed,
        acknowledged: counts.acknowledged,
        lost_updates: counts.lost,
        double_holders,
        refused: counts.refused,
        figures: findings.figures,
        notes,
        broken: None,
        took_ms: (ended - began) / 1_000_000,
        timeline,
    };
    outcome.broken = findings.broken.or_else(|| broken(&outcome));
    outcome
}

fn broken(outcome: &Outcome) -> Option<String> {
    let Case { scenario, engine, mode } = outcome.case;
    let lost = outcome.lost_updates;
    if mode == Mode::Fenced && lost > 0 && scenario.must_not_lose(engine) {
        return Some(format!("{lost} acknowledged updates were lost behind a gate"));
    }
    if mode == Mode::Unfenced && lost == 0 && scenario.must_lose() {
        return Some(
            "nothing was lost without a gate: the fault had no effect, so the run proves nothing".to_owned(),
        );
    }
    if scenario == Scenario::ClockJump && outcome.double_holders == 0 {
        return Some("there were no double holders: the clock did not jump".to_owned());
    }
    None
}

/// Converts the timeline to a history for the checkers. Engines without tokens get artificial ones.
fn history(timeline: &[Event]) -> History {
    let mut history = History::default();
    let mut clients: BTreeMap<&str, u32> = BTreeMap::new();
    let mut invoked: BTreeMap<&str, u64> = BTreeMap::new();
    let mut open: BTreeMap<&str, Hold> = BTreeMap::new();
    let at = Duration::from_nanos;
    for (number, event) in timeline.iter().enumerate() {
        let count = clients.len() as u32;
        let client = *clients.entry(&event.who).or_insert(count);
        match &event.what {
            EventKind::Asks => {
                invoked.insert(&event.who, event.at_ns);
            }
            EventKind::Granted { token } => {
                let (lock, returned) = (event.lock.clone(), at(event.at_ns));
                if let Some(token) = *token {
                    let invoked = at(invoked.get(event.who.as_str()).copied().unwrap_or(event.at_ns));
                    history.grants.push(Grant { client, lock: lock.clone(), token, invoked, returned });
                }
                let token = token.unwrap_or(number as u64 + 1);
                open.insert(&event.who, Hold { client, lock, token, from: returned, until: returned });
            }
            EventKind::Lost { until_ns, .. }
            | EventKind::Released { until_ns }
            | EventKind::NotReleased { until_ns, .. } => {
                if let Some(hold) = open.remove(event.who.as_str()) {
                    history.holds.push(Hold { until: at(*until_ns).max(hold.from), ..hold });
                }
            }
            EventKind::Fault { text, victim: Some(victim), .. } if text == "SIGKILL" => {
                if let Some(hold) = open.remove(victim.as_str()) {
                    history.holds.push(Hold { until: at(event.at_ns), ..hold });
                }
            }
            _ => {}
        }
    }
    // A lock that was neither lost nor released is held to the end.
    let end = at(timeline.last().map_or(0, |event| event.at_ns));
    history.holds.extend(open.into_values().map(|hold| Hold { until: end, ..hold }));
    history
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ms: u64, who: &str, what: EventKind) -> Event {
        Event { at_ns: ms * 1_000_000, who: who.to_owned(), lock: "l".to_owned(), what }
    }

    fn evaluate_pause(mode: Mode, counts: WriteCounts, timeline: Vec<Event>) -> Outcome {
        let case = Case { scenario: Scenario::Pause, engine: EngineName::CELL, mode };
        evaluate(case, 1, Findings::default(), counts, timeline)
    }

    #[test]
    fn double_holders_are_counted() {
        let until_ns = 30_000_000;
        let timeline = vec![
            event(1, "A", EventKind::Granted { token: Some(1) }),
            event(20, "B", EventKind::Granted { token: Some(2) }),
            event(40, "A", EventKind::Lost { until_ns, why: String::new() }),
            event(50, "B", EventKind::Released { until_ns: 50_000_000 }),
        ];
        assert_eq!(evaluate_pause(Mode::Fenced, WriteCounts::default(), timeline.clone()).double_holders, 1);
        let mut in_time = timeline;
        in_time[2].what = EventKind::Lost { until_ns: 19_000_000, why: String::new() };
        assert_eq!(evaluate_pause(Mode::Fenced, WriteCounts::default(), in_time).double_holders, 0);
    }

    #[test]
    fn loss_behind_a_gate_and_no_loss_without_one_are_broken_claims() {
        let lost = WriteCounts { acknowledged: 2, lost: 1, refused: 0 };
        assert!(evaluate_pause(Mode::Fenced, lost, Vec::new()).broken.is_some());
        assert!(evaluate_pause(Mode::Unfenced, lost, Vec::new()).broken.is_none());
        let kept = WriteCounts { lost: 0, ..lost };
        assert!(evaluate_pause(Mode::Fenced, kept, Vec::new()).broken.is_none());
        assert!(evaluate_pause(Mode::Unfenced, kept, Vec::new()).broken.is_some());
    }
}
