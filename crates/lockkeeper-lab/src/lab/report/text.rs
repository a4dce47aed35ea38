//! The timeline and the counts as plain text.

use std::fmt::Write;
use std::time::Duration;

use crate::lab::event::{Event, EventKind};
use crate::lab::outcome::{CaseResult, Outcome};

/// Limit on lines: the beginning and the end of a long run are shown.
const LINES_MAX: usize = 80;

/// One run.
pub fn cell(cell: &CaseResult) -> String {
    let case = cell.case();
    let title = format!("{} on {}, {}", case.scenario, case.engine, case.mode.name());
    match cell {
        CaseResult::Ran(outcome) => {
            format!("{title}\n\n{}\n{}", timeline(&outcome.timeline), counts(outcome))
        }
        CaseResult::NotApplicable { why, .. } => format!("{title}: does not apply. {why}\n"),
        CaseResult::NotRun { why, .. } => format!("{title}: not run. {why}\n"),
    }
}

/// One line for each event.
pub fn timeline(events: &[Event]) -> String {
    let began = events.first().map_or(0, |event| event.at_ns);
    let shown: Vec<&Event> = events.iter().filter(|event| !matches!(event.what, EventKind::Ready)).collect();
    let width = shown.iter().map(|event| event.who.len()).max().unwrap_or(0);
    let hidden = shown.len().saturating_sub(LINES_MAX);
    let mut text = String::new();
    for (number, event) in shown.iter().enumerate() {
        let edge = LINES_MAX / 2;
        if hidden > 0 && number == edge {
            let _ = writeln!(text, "          ... {hidden} more ...");
        }
        if hidden > 0 && (edge..edge + hidden).contains(&number) {
            continue;
        }
        let victim = match &event.what {
            EventKind::Fault { victim: Some(victim), .. } => format!(" {victim}"),
            _ => String::new(),
        };
        let ms = (event.at_ns - began) / 1_000_000;
        let _ = writeln!(text, "{ms:>8} ms  {:<width$}  {}{victim}", event.who, event.what.describe());
    }
    text
}

fn counts(outcome: &Outcome) -> String {
    let mut text = String::new();
    if outcome.case.scenario.has_gate() {
        let _ = writeln!(
            text,
            "lost updates {} of {} acknowledged, double holders {}, refused by the gate {}",
            outcome.lost_updates, outcome.acknowledged, outcome.double_holders, outcome.refused
        );
    }
    for figure in &outcome.figures {
        let _ = writeln!(text, "{}: {} {}", figure.name, figure.value, figure.unit);
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "{note}");
    }
    if let Some(broken) = &outcome.broken {
        let _ = writeln!(text, "BROKEN: {broken}");
    }
    text
}

/// A result in a few words.
pub fn short(cell: &CaseResult) -> String {
    match cell {
        CaseResult::Ran(outcome) => {
            let broken = if outcome.broken.is_some() { "BROKEN: " } else { "" };
            format!("{broken}{}", figures(outcome))
        }
        CaseResult::NotApplicable { .. } => "does not apply".to_owned(),
        CaseResult::NotRun { why, .. } => format!("not run: {why}"),
    }
}

/// The counts of a scenario in one line.
pub(crate) fn figures(outcome: &Outcome) -> String {
    parts(outcome).join(", ")
}

/// The counts of a scenario, one by one.
pub(crate) fn parts(outcome: &Outcome) -> Vec<String> {
    let mut parts = Vec::new();
    if outcome.case.scenario.has_gate() {
        parts.push(format!("lost {} of {}", outcome.lost_updates, outcome.acknowledged));
        if outcome.double_holders > 0 {
            parts.push(format!("double holders {}", outcome.double_holders));
        }
        if outcome.refused > 0 {
            parts.push(format!("refused {}", outcome.refused));
        }
    }
    parts.extend(
        outcome.figures.iter().map(|figure| format!("{}: {} {}", figure.name, figure.value, figure.unit)),
    );
    parts
}

/// All results, one line each.
pub fn summary(cells: &[CaseResult], took: Duration) -> String {
    let mut text = String::new();
    for cell in cells.iter().filter(|cell| !matches!(cell, CaseResult::NotApplicable { .. })) {
        let case = cell.case();
        let _ = writeln!(
            text,
            "{:<14} {:<10} {:<9} {}",
            case.scenario.name(),
            case.engine.name(),
            case.mode.name(),
            short(cell)
        );
    }
    let count = |wanted: fn(&CaseResult) -> bool| cells.iter().filter(|cell| wanted(cell)).count();
    let ran = count(|cell| matches!(cell, CaseResult::Ran(_)));
    let broken = count(|cell| matches!(cell, CaseResult::Ran(outcome) if outcome.broken.is_some()));
    let not_run = count(|cell| matches!(cell, CaseResult::NotRun { .. }));
    let _ = writeln!(
        text,
        "\n{ran} runs in {} min {} s, {broken} broken claims, {not_run} not run",
        took.as_secs() / 60,
        took.as_secs() % 60
    );
    text
}
