//! The chart of a comparison: a line for each target over the number of clients, one panel for each workload. The scale is
//! logarithmic, because rates differ by orders of magnitude.

use std::fmt::Write;

use super::report::{Comparison, Figure, WORKLOADS, grouped, plural};

const WIDTH: f64 = 980.0;
const PANEL_WIDTH: f64 = 400.0;
const PANEL_HEIGHT: f64 = 300.0;
const TOP: f64 = 60.0;
const LEFT: f64 = 60.0;
const GAP: f64 = 80.0;
const LEGEND_LINE: f64 = 20.0;
const LEGEND_COLUMNS: usize = 4;
/// Dark enough on white. The dashes distinguish lines in greyscale.
const COLOURS: [&str; 6] = ["#0b5fa5", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#475569"];
const DASHES: [&str; 3] = ["", "6 3", "2 3"];

/// The picture as SVG.
pub fn chart(comparison: &Comparison) -> String {
    let rows = comparison.rows.len();
    let height = TOP + PANEL_HEIGHT + 60.0 + LEGEND_LINE * rows.div_ceil(LEGEND_COLUMNS) as f64 + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\" role=\"img\">\n<title>Pairs of acquire and release per second</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (panel, (title, of)) in WORKLOADS.into_iter().enumerate() {
        let left = LEFT + panel as f64 * (PANEL_WIDTH + GAP);
        draw_panel(&mut svg, comparison, title, of, left);
    }
    let column = (WIDTH - LEFT) / LEGEND_COLUMNS as f64;
    for (number, row) in comparison.rows.iter().enumerate() {
        let x = LEFT + (number % LEGEND_COLUMNS) as f64 * column;
        let y = TOP + PANEL_HEIGHT + 55.0 + (number / LEGEND_COLUMNS) as f64 * LEGEND_LINE;
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.0}\" y1=\"{y:.0}\" x2=\"{:.0}\" y2=\"{y:.0}\" {}/><text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            x + 28.0,
            stroke(number),
            x + 34.0,
            y + 4.0,
            row.engine
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn stroke(number: usize) -> String {
    let colour = COLOURS[number % COLOURS.len()];
    let dash = DASHES[number / COLOURS.len() % DASHES.len()];
    format!("stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\" fill=\"none\"")
}

fn draw_panel(
    svg: &mut String,
    comparison: &Comparison,
    title: &str,
    of: fn(&super::Row) -> &[Figure],
    left: f64,
) {
    let rates: Vec<f64> =
        comparison.rows.iter().flat_map(of).map(|figure| figure.pairs_per_second.max(1.0)).collect();
    let lowest = rates.iter().copied().fold(f64::MAX, f64::min).min(1e6).log10().floor();
    let highest = rates.iter().copied().fold(1.0, f64::max).log10().ceil().max(lowest + 1.0);
    let y_of = |rate: f64| TOP + PANEL_HEIGHT * (1.0 - (rate.max(1.0).log10() - lowest) / (highest - lowest));
    let steps = comparison.clients.len().saturating_sub(1).max(1) as f64;
    let x_of = |clients: usize| {
        let position = comparison.clients.iter().position(|one| *one == clients).unwrap_or(0);
        left + PANEL_WIDTH * position as f64 / steps
    };
    let _ = writeln!(svg, "<text x=\"{left:.0}\" y=\"{:.0}\" font-size=\"15\">{title}</text>", TOP - 30.0);
    let _ = writeln!(svg, "<text x=\"{left:.0}\" y=\"{:.0}\" fill=\"#555\">pairs/s</text>", TOP - 12.0);
    let mut exponent = lowest;
    while exponent <= highest {
        let y = y_of(10_f64.powf(exponent));
        let _ = writeln!(
            svg,
            "<line x1=\"{left:.0}\" y1=\"{y:.1}\" x2=\"{:.0}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
            left + PANEL_WIDTH,
            left - 6.0,
            y + 4.0,
            grouped(10_f64.powf(exponent))
        );
        exponent += 1.0;
    }
    for clients in &comparison.clients {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            x_of(*clients),
            TOP + PANEL_HEIGHT + 20.0,
            plural(*clients)
        );
    }
    for (number, row) in comparison.rows.iter().enumerate() {
        let points: Vec<(f64, f64)> =
            of(row).iter().map(|figure| (x_of(figure.clients), y_of(figure.pairs_per_second))).collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<g><title>{}</title><polyline points=\"{}\" {}/>",
            row.engine,
            path.join(" "),
            stroke(number)
        );
        for (x, y) in points {
            let colour = COLOURS[number % COLOURS.len()];
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        svg.push_str("</g>\n");
    }
}
