//! HTML pages with drawn timelines: one for each scenario, and an index.

use std::fmt::Write;

use super::svg::{bars, escape, timeline};
use super::text;
use crate::lab::engine::EngineName;
use crate::lab::outcome::{Case, CaseResult, Outcome};
use crate::lab::scenario::Scenario;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:1080px;margin:2rem auto;padding:0 1rem;color:#111827}\
table{border-collapse:collapse;width:100%;font-size:14px}td,th{border:1px solid #d1d5db;padding:.35rem .5rem;text-align:left;\
vertical-align:top}.bad{background:#fee2e2}.good{background:#dcfce7}.dim{color:#6b7280}svg{width:100%;border:1px solid #e5e7eb;\
border-radius:6px}pre{font-size:12px;overflow:auto;background:#f9fafb;padding:.75rem}section{margin:2.5rem 0}";

/// File names and their content.
pub fn pages(cells: &[CaseResult]) -> Vec<(String, String)> {
    let shown: Vec<Scenario> = Scenario::ALL
        .into_iter()
        .filter(|scenario| cells.iter().any(|cell| cell.case().scenario == *scenario))
        .collect();
    let mut pages = vec![("index.html".to_owned(), index(cells, &shown))];
    pages.extend(shown.iter().map(|scenario| (format!("{scenario}.html"), scenario_page(cells, *scenario))));
    pages.extend(cells.iter().filter_map(|cell| match cell {
        CaseResult::Ran(outcome) => {
            let Case { scenario, engine, mode } = outcome.case;
            Some((format!("{scenario}-{engine}-{}.svg", mode.name()), picture(outcome)))
        }
        CaseResult::NotApplicable { .. } | CaseResult::NotRun { .. } => None,
    }));
    pages
}

/// The timeline, or the figures of a scenario without faults.
fn picture(outcome: &Outcome) -> String {
    let case = outcome.case;
    let title = format!("{} on {}, {}", case.scenario, case.engine, case.mode.name());
    match case.scenario {
        Scenario::Herd | Scenario::LongHold | Scenario::Granularity => bars(&outcome.figures, &title),
        _ => timeline(&outcome.timeline, &title),
    }
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )
}

fn index(cells: &[CaseResult], scenarios: &[Scenario]) -> String {
    let engines: Vec<EngineName> =
        EngineName::all().filter(|engine| cells.iter().any(|cell| cell.case().engine == *engine)).collect();
    let mut body = String::from("<h1>Lockkeeper lab</h1><table><tr><th>scenario</th>");
    for engine in &engines {
        let _ = write!(body, "<th>{engine}</th>");
    }
    body.push_str("</tr>");
    for scenario in scenarios {
        let _ = write!(body, "<tr><th><a href=\"{scenario}.html\">{scenario}</a></th>");
        for engine in &engines {
            body.push_str("<td>");
            let of_both =
                |cell: &&CaseResult| cell.case().scenario == *scenario && cell.case().engine == *engine;
            for cell in cells.iter().filter(of_both) {
                let class = class(cell);
                let _ = write!(
                    body,
                    "<div class=\"{class}\">{}: {}</div>",
                    cell.case().mode.name(),
                    escape(&text::short(cell))
                );
            }
            body.push_str("</td>");
        }
        body.push_str("</tr>");
    }
    let _ = write!(body, "</table><p class=\"dim\">{}</p>", escape(&crate::lab::versions().join(", ")));
    page("Lockkeeper lab", &body)
}

fn class(cell: &CaseResult) -> &'static str {
    match cell {
        CaseResult::Ran(outcome) if outcome.lost_updates > 0 || outcome.double_holders > 0 => "bad",
        CaseResult::Ran(outcome) if outcome.case.scenario.has_gate() => "good",
        CaseResult::Ran(_) => "",
        CaseResult::NotApplicable { .. } | CaseResult::NotRun { .. } => "dim",
    }
}

fn scenario_page(cells: &[CaseResult], scenario: Scenario) -> String {
    let mut body = format!(
        "<p><a href=\"index.html\">all scenarios</a></p><h1>{scenario}</h1><p>{}</p>",
        escape(scenario.description())
    );
    for cell in cells.iter().filter(|cell| cell.case().scenario == scenario) {
        let case = cell.case();
        let _ = write!(body, "<section><h2>{}, {}</h2>", case.engine, case.mode.name());
        match cell {
            CaseResult::Ran(outcome) => run(&mut body, outcome),
            CaseResult::NotApplicable { why, .. } => {
                let _ = write!(body, "<p class=\"dim\">Does not apply: {}</p>", escape(why));
            }
            CaseResult::NotRun { why, .. } => {
                let _ = write!(body, "<p class=\"bad\">Not run: {}</p>", escape(why));
            }
        }
        body.push_str("</section>");
    }
    page(&format!("{scenario}: Lockkeeper lab"), &body)
}

fn run(body: &mut String, outcome: &Outcome) {
    if let Some(broken) = &outcome.broken {
        let _ = write!(body, "<p class=\"bad\">Broken: {}</p>", escape(broken));
    }
    let _ = write!(body, "<p>{}</p>", escape(&text::figures(outcome)));
    for note in &outcome.notes {
        let _ = write!(body, "<p class=\"dim\">{}</p>", escape(note));
    }
    let _ = write!(
        body,
        "{}<details><summary>As text</summary><pre>{}</pre></details>",
        picture(outcome),
        escape(&text::timeline(&outcome.timeline))
    );
}
