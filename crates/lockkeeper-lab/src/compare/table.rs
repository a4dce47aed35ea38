//! A comparison as plain text.

use super::report::{Comparison, plural};

/// Rows of columns that are two spaces apart.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        for row in &self.rows {
            let line: Vec<String> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// The tables of a comparison.
pub fn tables(comparison: &Comparison) -> String {
    let mut text = String::new();
    let mut add = |title: &str, first: &str, rows: Vec<(String, Vec<String>)>| {
        let heads: Vec<String> =
            comparison.clients.iter().map(|count| plural(*count).to_uppercase()).collect();
        let mut head = vec![first];
        head.extend(heads.iter().map(String::as_str));
        let mut table = Table::new(&head);
        for (name, cells) in rows {
            table.row(std::iter::once(name).chain(cells));
        }
        text.push_str(&format!("{title}\n{table}\n"));
    };
    add("Uncontended: pairs/s (p50 of acquire)", "ENGINE", comparison.cells(|row| &row.uncontended));
    add("Ratios", "PAIRS/S", comparison.ratios(|row| &row.uncontended));
    add("Hand-off of one lock: pairs/s (p50 of acquire)", "ENGINE", comparison.cells(|row| &row.handoff));
    add("Ratios", "PAIRS/S", comparison.ratios(|row| &row.handoff));
    if !comparison.fail_overs.is_empty() {
        let mut table = Table::new(&["LEADER KILLED TO NEXT GRANT", "MEDIAN", "LONGEST"]);
        for one in &comparison.fail_overs {
            table.row([
                one.engine.to_owned(),
                format!("{:.0} ms", one.median_ms),
                format!("{:.0} ms", one.longest_ms),
            ]);
        }
        text.push_str(&format!("{table}\n"));
    }
    if !comparison.keep_alives.is_empty() {
        let mut table = Table::new(&["KEEP-ALIVES", "SESSIONS", "CPU FOR 1,000", "BYTES A SESSION"]);
        for one in &comparison.keep_alives {
            table.row([
                one.engine.to_owned(),
                one.sessions.to_string(),
                format!("{:.2} ms", one.cpu_ms_per_thousand),
                format!("{:.0}", one.bytes_per_session),
            ]);
        }
        text.push_str(&format!("{table}\n"));
    }
    text.push_str(&format!(
        "This machine: {} cores for all, append + fdatasync p50 {:.0} us, loopback round trip p50 {:.0} us\n",
        comparison.cores,
        comparison.machine.append_fdatasync_p50_us,
        comparison.machine.loopback_round_trip_p50_us
    ));
    text
}
