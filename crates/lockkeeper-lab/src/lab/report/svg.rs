//! A drawn timeline: a lane for each client, a bar while it was certain to hold the lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::lab::event::{Event, EventKind, Phase};
use crate::lab::outcome::Figure;

const LEFT: f64 = 90.0;
const WIDTH: f64 = 880.0;
const LANE: f64 = 46.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 64.0;
/// Limit on the events of a picture: long runs show their beginning.
const EVENTS_MAX: usize = 600;

/// Draws a timeline. Returns an empty string without events.
pub(crate) fn timeline(events: &[Event], title: &str) -> String {
    let events: Vec<&Event> =
        events.iter().filter(|event| !matches!(event.what, EventKind::Ready)).take(EVENTS_MAX).collect();
    let names: BTreeSet<&str> =
        events.iter().filter(|event| event.who != "lab").map(|event| event.who.as_str()).collect();
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return String::new() };
    let mut picture = Picture {
        began: first.at_ns,
        span: (last.at_ns - first.at_ns).max(1) as f64 * 1.02,
        lanes: names.iter().enumerate().map(|(number, name)| (*name, number)).collect(),
        ended: last.at_ns,
        text: String::new(),
    };
    let height = TOP + LANE * names.len() as f64 + BOTTOM;
    let _ = write!(
        picture.text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 {height}\" role=\"img\" font-family=\"system-ui, sans-serif\" \
         font-size=\"12\"><title>{}</title><rect width=\"1000\" height=\"{height}\" fill=\"#fff\"/>",
        escape(title)
    );
    picture.axis(height);
    picture.lanes();
    picture.faults(&events, height);
    picture.holds(&events);
    picture.acts(&events);
    legend(&mut picture.text, height - 16.0);
    picture.text.push_str("</svg>");
    picture.text
}

struct Picture<'a> {
    began: u64,
    span: f64,
    ended: u64,
    lanes: BTreeMap<&'a str, usize>,
    text: String,
}

impl<'a> Picture<'a> {
    fn x(&self, at_ns: u64) -> f64 {
        LEFT + at_ns.saturating_sub(self.began) as f64 / self.span * WIDTH
    }

    fn y(&self, who: &str) -> f64 {
        TOP + LANE * self.lanes.get(who).copied().unwrap_or(0) as f64
    }

    fn axis(&mut self, height: f64) {
        let seconds = self.span / 1e9;
        let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .find(|step| seconds / step <= 12.0)
            .unwrap_or(30.0);
        let mut at = 0.0;
        while at <= seconds {
            let x = LEFT + at / seconds * WIDTH;
            let bottom = height - BOTTOM + 6.0;
            let _ = write!(
                self.text,
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#e5e7eb\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" fill=\"#6b7280\" text-anchor=\"middle\">{} s</text>",
                bottom + 12.0,
                (at * 10.0).round() / 10.0
            );
            at += step;
        }
    }

    fn lanes(&mut self) {
        for (name, number) in self.lanes.clone() {
            let y = TOP + LANE * number as f64 + 26.0;
            let _ = write!(
                self.text,
                "<text x=\"10\" y=\"{:.1}\" font-weight=\"600\" fill=\"#111827\">{}</text>\
                 <line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#d1d5db\"/>",
                y + 4.0,
                escape(name),
                LEFT + WIDTH
            );
        }
    }

    /// Draws pauses of clients grey, and faults of servers as a line through all lanes.
    fn faults(&mut self, events: &[&'a Event], height: f64) {
        let mut open: BTreeMap<&str, u64> = BTreeMap::new();
        let mut labels = 0;
        for event in events {
            let EventKind::Fault { text, victim, phase } = &event.what else { continue };
            match (victim.as_deref(), phase) {
                (Some(victim), Phase::Begins) => {
                    open.insert(victim, event.at_ns);
                }
                (Some(victim), _) => {
                    if let Some(from) = open.remove(victim) {
                        self.draw_pause(victim, from, event.at_ns);
                    }
                }
                (None, _) => {
                    let x = self.x(event.at_ns);
                    let anchor = if x > 700.0 { "end" } else { "start" };
                    let y = 12.0 + f64::from(labels % 2) * 13.0;
                    labels += 1;
                    let _ = write!(
                        self.text,
                        "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#b45309\" stroke-dasharray=\"4 3\"/>\
                         <text x=\"{x:.1}\" y=\"{y}\" fill=\"#b45309\" text-anchor=\"{anchor}\">{}</text>",
                        y + 2.0,
                        height - BOTTOM + 6.0,
                        escape(text)
                    );
                }
            }
        }
        for (victim, from) in open {
            self.draw_pause(victim, from, self.ended);
        }
    }

    fn draw_pause(&mut self, victim: &str, from: u64, until: u64) {
        let (x, y, end) = (self.x(from), self.y(victim), self.x(until));
        let _ = write!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"36\" fill=\"#9ca3af\" opacity=\"0.35\"><title>paused or \
             killed</title></rect>",
            y + 8.0,
            (end - x).max(2.0)
        );
    }

    /// Draws each hold from the grant to the last time at which the holder was certain.
    fn holds(&mut self, events: &[&'a Event]) {
        let mut open: BTreeMap<&str, (u64, Option<u64>)> = BTreeMap::new();
        for event in events {
            match &event.what {
                EventKind::Granted { token } => {
                    open.insert(&event.who, (event.at_ns, *token));
                }
                EventKind::Lost { until_ns, .. }
                | EventKind::Released { until_ns }
                | EventKind::NotReleased { until_ns, .. } => {
                    if let Some((from, token)) = open.remove(event.who.as_str()) {
                        self.draw_hold(&event.who, from, *until_ns, token);
                    }
                }
                _ => {}
            }
        }
        for (who, (from, token)) in open {
            self.draw_hold(who, from, self.ended, token);
        }
    }

    fn draw_hold(&mut self, who: &str, from: u64, until: u64, token: Option<u64>) {
        let (x, y) = (self.x(from), self.y(who));
        let width = (self.x(until.max(from)) - x).max(1.5);
        let token = token.map_or("no token".to_owned(), |token| format!("token {token}"));
        let _ = write!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\" rx=\"3\" fill=\"#60a5fa\" opacity=\"0.85\">\
             <title>{} holds, {token}</title></rect>",
            y + 18.0,
            escape(who)
        );
        if width > 70.0 {
            let _ = write!(
                self.text,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#1e3a8a\" font-size=\"10\">{token}</text>",
                x + 9.0,
                y + 30.0
            );
        }
    }

    fn acts(&mut self, events: &[&'a Event]) {
        for event in events {
            let (colour, shape) = match &event.what {
                EventKind::Read { .. } => ("#6b7280", "read"),
                EventKind::Wrote { wiped: 0 } => ("#15803d", "wrote"),
                EventKind::Wrote { .. } => ("#dc2626", "wrote"),
                EventKind::Refused { .. } => ("#d97706", "refused"),
                EventKind::Asks => ("#6b7280", "asks"),
                _ => continue,
            };
            let (x, y) = (self.x(event.at_ns), self.y(&event.who) + 26.0);
            let title = format!("{} {}", event.who, event.what.describe());
            let drawn = match shape {
                "read" => {
                    format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#fff\" stroke=\"{colour}\"")
                }
                "wrote" => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\" fill=\"{colour}\""),
                "refused" => format!(
                    "<path d=\"M{:.1} {:.1}l12 12m0 -12l-12 12\" stroke-width=\"3\" stroke=\"{colour}\"",
                    x - 6.0,
                    y - 6.0
                ),
                _ => format!("<path d=\"M{x:.1} {:.1}l-4 -7h8z\" fill=\"{colour}\"", y - 9.0),
            };
            let end = if matches!(shape, "refused" | "asks") { "path" } else { "circle" };
            let _ = write!(self.text, "{drawn}><title>{}</title></{end}>", escape(&title));
        }
    }
}

fn legend(text: &mut String, y: f64) {
    let entries = [
        ("#60a5fa", "certain to hold the lock"),
        ("#c7cbd1", "paused or killed"),
        ("#15803d", "write accepted"),
        ("#dc2626", "write overwrites others' updates"),
        ("#d97706", "refused by the gate"),
    ];
    let mut x = LEFT;
    for (colour, words) in entries {
        let _ = write!(
            text,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{y:.1}\" \
             fill=\"#374151\" font-size=\"11\">{words}</text>",
            y - 9.0,
            x + 14.0
        );
        x += 40.0 + words.len() as f64 * 6.2;
    }
}

/// Figures as bars, grouped by unit.
pub(crate) fn bars(figures: &[Figure], title: &str) -> String {
    let height = 20.0 + 30.0 * figures.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 {height}\" role=\"img\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\"><title>{}</title><rect width=\"1000\" height=\"{height}\" fill=\"#fff\"/>",
        escape(title)
    );
    for (number, figure) in figures.iter().enumerate() {
        let of_unit = figures.iter().filter(|other| other.unit == figure.unit).map(|other| other.value);
        let most = of_unit.fold(f64::MIN_POSITIVE, f64::max);
        let (y, width) = (12.0 + 30.0 * number as f64, (figure.value / most * 400.0).max(1.0));
        let _ = write!(
            text,
            "<text x=\"10\" y=\"{:.1}\" fill=\"#111827\">{}</text><rect x=\"200\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"20\" \
             rx=\"3\" fill=\"#60a5fa\"/><text x=\"{:.1}\" y=\"{:.1}\" fill=\"#374151\">{} {}</text>",
            y + 15.0,
            escape(&figure.name),
            208.0 + width,
            y + 15.0,
            figure.value,
            escape(&figure.unit)
        );
    }
    text.push_str("</svg>");
    text
}

/// Escapes text for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
