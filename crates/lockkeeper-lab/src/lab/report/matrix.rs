//! The page docs/lab.md: `head.txt` and the matrix of results.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::text;
use crate::lab::engine::EngineName;
use crate::lab::outcome::{Case, CaseResult, Mode};
use crate::lab::scenario::Scenario;

const HEAD: &str = include_str!("head.txt");

/// The whole page.
pub fn page(cells: &[CaseResult], took: Duration) -> String {
    let mut text = String::from(HEAD);
    let _ = write!(
        text,
        "\n## The matrix\n\nMade by `lockkeeper-lab all --matrix docs/lab.md` on {}, {} runs in {} min {} s, on a machine with {} \
         cores, with a {} build of Lockkeeper. {}.\n\n",
        today(),
        cells.iter().filter(|cell| matches!(cell, CaseResult::Ran(_))).count(),
        took.as_secs() / 60,
        took.as_secs() % 60,
        std::thread::available_parallelism().map_or(1, usize::from),
        if cfg!(debug_assertions) { "debug" } else { "release" },
        crate::lab::versions().join(", ")
    );
    table(&mut text, cells);
    let mut reasons: Vec<(String, String)> = Vec::new();
    for cell in cells {
        if let CaseResult::NotApplicable { case, why } | CaseResult::NotRun { case, why, .. } = cell {
            let name = format!("{} on {}", case.scenario, case.engine);
            let name = if why_of_mode(*case) { format!("fenced on {}", case.engine) } else { name };
            if !reasons.iter().any(|(known, _)| *known == name) {
                reasons.push((name, why.lines().next().unwrap_or_default().to_owned()));
            }
        }
    }
    text.push_str("\n## Why a cell is empty\n\n");
    for (name, why) in reasons {
        let _ = writeln!(text, "- {name}: {why}.");
    }
    descriptions(&mut text, cells);
    text
}

/// Whether the reason is the engine, not the scenario.
fn why_of_mode(case: Case) -> bool {
    case.mode == Mode::Fenced
        && case.scenario.not_applicable_reason(case.engine).is_none()
        && case.engine.not_fenced_reason().is_some()
}

fn table(text: &mut String, cells: &[CaseResult]) {
    text.push_str("| scenario | |");
    for engine in EngineName::all() {
        let _ = write!(text, " {engine} |");
    }
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(EngineName::all().count()));
    text.push('\n');
    for scenario in Scenario::ALL {
        let modes: &[Mode] =
            if scenario.has_gate() { &[Mode::Unfenced, Mode::Fenced] } else { &[Mode::Either] };
        for mode in modes {
            let words = if *mode == Mode::Either { "" } else { mode.name() };
            let _ = write!(text, "| {scenario} | {words} |");
            for engine in EngineName::all() {
                let case = Case { scenario, engine, mode: *mode };
                let cell = cells.iter().find(|cell| cell.case() == case);
                let _ = write!(text, " {} |", cell.map_or("not run".to_owned(), entry));
            }
            text.push('\n');
        }
    }
}

fn entry(cell: &CaseResult) -> String {
    match cell {
        CaseResult::Ran(outcome) => {
            let words = text::parts(outcome).join("<br>");
            if outcome.broken.is_some() { format!("**broken**: {words}") } else { words }
        }
        CaseResult::NotApplicable { case, .. } if why_of_mode(*case) => "no token".to_owned(),
        CaseResult::NotApplicable { .. } => "does not apply".to_owned(),
        CaseResult::NotRun { missing: true, .. } => "not run: not installed".to_owned(),
        CaseResult::NotRun { .. } => "not run".to_owned(),
    }
}

/// The descriptions of the scenarios, and their notes.
fn descriptions(text: &mut String, cells: &[CaseResult]) {
    text.push_str("\n## The scenarios\n");
    for scenario in Scenario::ALL {
        let _ = write!(text, "\n**{scenario}.** {}\n", scenario.description());
        let mut noted: Vec<(String, Vec<String>)> = Vec::new();
        for cell in cells.iter().filter(|cell| cell.case().scenario == scenario) {
            let CaseResult::Ran(outcome) = cell else { continue };
            for note in &outcome.notes {
                let who = format!("{} ({})", outcome.case.engine, outcome.case.mode.name());
                match noted.iter_mut().find(|(known, _)| known == note) {
                    Some((_, engines)) => engines.push(who),
                    None => noted.push((note.clone(), vec![who])),
                }
            }
        }
        if !noted.is_empty() {
            text.push('\n');
        }
        for (note, who) in noted {
            let _ = writeln!(text, "- {note}: {}", who.join(", "));
        }
    }
}

/// The date of today, in UTC.
fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    let (year, month, day) = date(days);
    format!("{year}-{month:02}-{day:02}")
}

/// From days since 1970 to a date of the Gregorian calendar: years begin in March, so that the leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(19_723), (2024, 1, 1));
        assert_eq!(date(19_722), (2023, 12, 31));
    }

    #[test]
    fn every_cell_of_the_matrix_has_text() {
        let case = Case { scenario: Scenario::Pause, engine: EngineName::REDLOCK, mode: Mode::Fenced };
        let cells = vec![CaseResult::NotApplicable { case, why: "no token at all".to_owned() }];
        let page = page(&cells, Duration::from_secs(61));
        assert!(page.contains("- fenced on redlock: no token at all."), "{page}");
        let rows = page.lines().filter(|line| line.starts_with("| ") && line.matches('|').count() == 11);
        assert_eq!(rows.count(), 1 + 8 * 2 + 4, "{page}");
    }
}
