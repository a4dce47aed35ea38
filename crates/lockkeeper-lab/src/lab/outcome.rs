//! What came of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::engine::EngineName;
use super::event::{Event, What};
use super::resource::Tally;
use super::scenario::Scenario;
use crate::checkers::history::{Grant, History, Hold};
use crate::checkers::{one_holder, tokens_rise};

/// With a gate at the resource, or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The resource checks the token.
    Fenced,
    /// It takes everything.
    Unfenced,
    /// The scenario has nothing to check.
    Either,
}

impl Mode {
    /// In words.
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
    /// What happens.
    pub scenario: Scenario,
    /// To whom.
    pub engine: EngineName,
    /// With a gate or without.
    pub mode: Mode,
}

/// A figure that a scenario has measured.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// What.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Which run.
    #[serde(flatten)]
    pub case: Case,
    /// Where its chance began.
    pub seed: u64,
    /// Updates that were acknowledged.
    pub acknowledged: u64,
    /// Of these, the ones that are gone.
    pub lost_updates: u64,
    /// How often two were sure to hold the same lock at the same moment.
    pub double_holders: u64,
    /// What the gate has refused.
    pub refused: u64,
    /// What was measured.
    pub figures: Vec<Figure>,
    /// What else is to be known.
    pub notes: Vec<String>,
    /// A claim that was broken.
    pub broken: Option<String>,
    /// How long it took.
    pub took_ms: u64,
    /// Everything that happened.
    pub timeline: Vec<Event>,
}

/// A run, or why there was none.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Cell {
    /// It was run.
    Ran(Box<Outcome>),
    /// It makes no sense for this engine.
    NotApplicable {
        /// Which run.
        #[serde(flatten)]
        case: Case,
        /// In words.
        why: String,
    },
    /// It could not be run here.
    NotRun {
        /// Which run.
        #[serde(flatten)]
        case: Case,
        /// Something has to be installed first.
        missing: bool,
        /// In words.
        why: String,
    },
}

impl Cell {
    /// Which run.
    pub fn case(&self) -> Case {
        match self {
            Cell::Ran(outcome) => outcome.case,
            Cell::NotApplicable { case, .. } | Cell::NotRun { case, .. } => *case,
        }
    }
}

/// What a scenario hands back beside what was written down.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) figures: Vec<Figure>,
    pub(crate) notes: Vec<String>,
    /// Something that must not be, seen by the scenario itself.
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

/// Counts, and looks for broken claims.
pub(crate) fn judge(
    case: Case,
    seed: u64,
    findings: Findings,
    tally: Tally,
    timeline: Vec<Event>,
) -> Outcome {
    let history = history(&timeline);
    let double_holders = one_holder::check(&history).len() as u64;
    let mut notes = findings.notes;
    let fallen = tokens_rise::check(&history).len();
    if fallen > 0 && case.engine != EngineName::Consul {
        notes.push(format!("tokens that did not rise: {fallen}"));
    }
    let began = timeline.first().map_or(0, |event| event.at_ns);
    let ended = timeline.last().map_or(0, |event| event.at_ns);
    let mut outcome = Outcome {
        case,
        seed,
        acknowledged: tally.acknowledged,
        lost_updates: tally.lost,
        double_holders,
        refused: tally.refused,
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
            "nothing was lost without a gate: the fault did not bite, so the run shows nothing".to_owned(),
        );
    }
    if scenario == Scenario::ClockJump && outcome.double_holders == 0 {
        return Some("there were no two holders: the clock did not jump where it should".to_owned());
    }
    None
}

/// What the clients saw, as the checkers want it. Tokens are made up where an engine has none.
fn history(timeline: &[Event]) -> History {
    let mut history = History::default();
    let mut clients: BTreeMap<&str, u32> = BTreeMap::new();
    let mut asked: BTreeMap<&str, u64> = BTreeMap::new();
    let mut open: BTreeMap<&str, Hold> = BTreeMap::new();
    let at = Duration::from_nanos;
    for (number, event) in timeline.iter().enumerate() {
        let count = clients.len() as u32;
        let client = *clients.entry(&event.who).or_insert(count);
        match &event.what {
            What::Asks => {
                asked.insert(&event.who, event.at_ns);
            }
            What::Granted { token } => {
                let (lock, answered) = (event.lock.clone(), at(event.at_ns));
                if let Some(token) = *token {
                    let asked = at(asked.get(event.who.as_str()).copied().unwrap_or(event.at_ns));
                    history.grants.push(Grant { client, lock: lock.clone(), token, asked, answered });
                }
                let token = token.unwrap_or(number as u64 + 1);
                open.insert(&event.who, Hold { client, lock, token, from: answered, until: answered });
            }
            What::Lost { until_ns, .. }
            | What::Released { until_ns }
            | What::NotReleased { until_ns, .. } => {
                if let Some(hold) = open.remove(event.who.as_str()) {
                    history.holds.push(Hold { until: at(*until_ns).max(hold.from), ..hold });
                }
            }
            What::Fault { text, victim: Some(victim), .. } if text == "SIGKILL" => {
                if let Some(hold) = open.remove(victim.as_str()) {
                    history.holds.push(Hold { until: at(event.at_ns), ..hold });
                }
            }
            _ => {}
        }
    }
    // Whoever has neither lost it nor given it back is sure of it to the end.
    let end = at(timeline.last().map_or(0, |event| event.at_ns));
    history.holds.extend(open.into_values().map(|hold| Hold { until: end, ..hold }));
    history
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ms: u64, who: &str, what: What) -> Event {
        Event { at_ns: ms * 1_000_000, who: who.to_owned(), lock: "l".to_owned(), what }
    }

    fn judged(mode: Mode, tally: Tally, timeline: Vec<Event>) -> Outcome {
        let case = Case { scenario: Scenario::Pause, engine: EngineName::Cell, mode };
        judge(case, 1, Findings::default(), tally, timeline)
    }

    #[test]
    fn two_who_are_sure_at_once_are_counted() {
        let until_ns = 30_000_000;
        let timeline = vec![
            event(1, "A", What::Granted { token: Some(1) }),
            event(20, "B", What::Granted { token: Some(2) }),
            event(40, "A", What::Lost { until_ns, why: String::new() }),
            event(50, "B", What::Released { until_ns: 50_000_000 }),
        ];
        assert_eq!(judged(Mode::Fenced, Tally::default(), timeline.clone()).double_holders, 1);
        let mut in_time = timeline;
        in_time[2].what = What::Lost { until_ns: 19_000_000, why: String::new() };
        assert_eq!(judged(Mode::Fenced, Tally::default(), in_time).double_holders, 0);
    }

    #[test]
    fn a_loss_behind_a_gate_breaks_the_claim_and_none_without_shows_nothing() {
        let lost = Tally { acknowledged: 2, lost: 1, refused: 0 };
        assert!(judged(Mode::Fenced, lost, Vec::new()).broken.is_some());
        assert!(judged(Mode::Unfenced, lost, Vec::new()).broken.is_none());
        let kept = Tally { lost: 0, ..lost };
        assert!(judged(Mode::Fenced, kept, Vec::new()).broken.is_none());
        assert!(judged(Mode::Unfenced, kept, Vec::new()).broken.is_some());
    }
}
