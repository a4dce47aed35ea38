//! The figures of a comparison, as a table for people and as Markdown for the documentation.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::bench::Workload;
use super::{CompareOptions, FailOver, KeepAliveCost, Target};

/// The limits of the machine, as `lockkeeper bench` measures them.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct MachineLimits {
    /// Median of an append with fdatasync, in microseconds.
    pub append_fdatasync_p50_us: f64,
    /// Median of a round trip over loopback, in microseconds.
    pub loopback_round_trip_p50_us: f64,
}

/// The result of a comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The limits of the machine.
    pub machine: MachineLimits,
    /// Number of cores that clients and servers share.
    pub cores: usize,
    /// Duration of each figure.
    pub seconds: f64,
    /// Numbers of clients, one column each.
    pub clients: Vec<usize>,
    /// One row for each target.
    pub rows: Vec<Row>,
    /// Fail-over times of the targets that have a leader.
    pub fail_overs: Vec<FailOver>,
    /// Cost of keep-alives, for targets with sessions.
    pub keep_alives: Vec<KeepAliveCost>,
    /// What could not be measured, and why.
    pub missing: Vec<Missing>,
    #[serde(skip)]
    limits: Vec<MachineLimits>,
}

/// The figures of one target.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the target.
    pub engine: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Every client has a lock of its own.
    pub uncontended: Vec<Figure>,
    /// All queue for one lock.
    pub handoff: Vec<Figure>,
}

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Number of clients.
    pub clients: usize,
    /// Pairs of acquire and release per second.
    pub pairs_per_second: f64,
    /// Median latency of an acquire, in microseconds.
    pub acquire_p50_us: f64,
    /// 99th percentile of the latency, in microseconds.
    pub acquire_p99_us: f64,
}

/// What could not be measured.
#[derive(Debug, Clone, Serialize)]
pub struct Missing {
    /// Name of the target.
    pub engine: &'static str,
    /// Why, and what to do about it.
    pub why: String,
}

impl Row {
    pub(super) fn new(target: Target) -> Row {
        Row { engine: target.name(), about: target.about(), uncontended: Vec::new(), handoff: Vec::new() }
    }

    pub(super) fn add(&mut self, workload: Workload, figure: Figure) {
        match workload {
            Workload::Uncontended => self.uncontended.push(figure),
            Workload::Handoff => self.handoff.push(figure),
        }
    }
}

/// Ratios to show: our target, the peer, and what they are.
const RATIOS: [(Target, Target, &str); 6] = [
    (Target::Cell3, Target::Etcd, "three nodes against three members of etcd"),
    (Target::Cell3, Target::EtcdBare, "three nodes against etcd's bare recipe"),
    (Target::Cell3, Target::Zookeeper, "three nodes against three members of ZooKeeper"),
    (Target::Cell, Target::RedisBare, "one node against Redis that syncs every write, bare recipe"),
    (Target::Cell, Target::RedisMemoryBare, "one node against Redis without persistence, bare recipe"),
    (Target::Cell, Target::Postgres, "one node against PostgreSQL"),
];

impl Comparison {
    pub(super) fn new(options: &CompareOptions) -> Comparison {
        Comparison {
            machine: MachineLimits::default(),
            limits: Vec::new(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            seconds: options.duration.as_secs_f64(),
            clients: options.clients.clone(),
            rows: Vec::new(),
            fail_overs: Vec::new(),
            keep_alives: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Adds the limits that one run measured. Those of the comparison are the median of all runs.
    pub(super) fn add_limits(&mut self, limits: MachineLimits) {
        self.limits.push(limits);
        self.machine = MachineLimits {
            append_fdatasync_p50_us: self.median(|limits| limits.append_fdatasync_p50_us),
            loopback_round_trip_p50_us: self.median(|limits| limits.loopback_round_trip_p50_us),
        };
    }

    fn median(&self, of: impl Fn(&MachineLimits) -> f64) -> f64 {
        let mut values: Vec<f64> = self.limits.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    }

    /// One workload as rows of text: the name, and the figure for each number of clients.
    pub fn cells(&self, of: impl Fn(&Row) -> &[Figure]) -> Vec<(String, Vec<String>)> {
        let cell = |row: &Row, clients: usize| {
            let figure = of(row).iter().find(|figure| figure.clients == clients);
            figure.map_or("n/a".to_owned(), |figure| {
                format!("{} ({})", grouped(figure.pairs_per_second), time(figure.acquire_p50_us))
            })
        };
        let cells = |row: &Row| self.clients.iter().map(|clients| cell(row, *clients)).collect();
        self.rows.iter().map(|row| (row.engine.to_owned(), cells(row))).collect()
    }

    /// Ratios of pairs per second, ours against a peer, for each number of clients.
    pub fn ratios(&self, of: impl Fn(&Row) -> &[Figure]) -> Vec<(String, Vec<String>)> {
        let rate = |target: Target, clients: usize| {
            let row = self.rows.iter().find(|row| row.engine == target.name())?;
            of(row).iter().find(|figure| figure.clients == clients).map(|figure| figure.pairs_per_second)
        };
        let known = |target: Target| self.rows.iter().any(|row| row.engine == target.name());
        let ratio =
            |ours: Target, peer: Target, clients: usize| match (rate(ours, clients), rate(peer, clients)) {
                (Some(ours), Some(peer)) if peer > 0.0 => format!("{:.2}", ours / peer),
                _ => "n/a".to_owned(),
            };
        RATIOS
            .iter()
            .filter(|(ours, peer, _)| known(*ours) && known(*peer))
            .map(|(ours, peer, about)| {
                let cells = self.clients.iter().map(|clients| ratio(*ours, *peer, *clients)).collect();
                ((*about).to_owned(), cells)
            })
            .collect()
    }

    /// The comparison as a page of Markdown. `chart` is the path of the picture, relative to the page.
    pub fn markdown(&self, chart: Option<&str>) -> String {
        let mut text = String::from("# All engines side by side\n\n");
        let mut line = |words: String| {
            let _ = writeln!(text, "{words}");
        };
        line(format!(
            "Written by `lockkeeper-lab compare`: one run on one machine with {} cores that the clients and all servers \
             share, {} s for each figure, a connection for each client. Compare the ratios: absolute figures depend on the \
             machine. In this run append + fdatasync took {:.0} us and a round trip over loopback {:.0} us (p50).\n",
            self.cores,
            self.seconds,
            self.machine.append_fdatasync_p50_us,
            self.machine.loopback_round_trip_p50_us
        ));
        if let Some(chart) = chart {
            line(format!("![pairs per second of all engines]({chart})\n"));
        }
        line("| engine | |\n|---|---|".to_owned());
        for row in &self.rows {
            line(format!("| {} | {} |", row.engine, row.about));
        }
        for (title, of) in WORKLOADS {
            line(format!("\n## {title}: pairs of acquire and release per second (p50 of acquire)\n"));
            line(markdown_table("engine", &self.clients, &self.cells(of)));
            let ratios = self.ratios(of);
            if !ratios.is_empty() {
                line(markdown_table("ratio of pairs per second", &self.clients, &ratios));
            }
        }
        if !self.fail_overs.is_empty() {
            line("\n## Fail-over: from `kill -9` of the leader to the next grant\n".to_owned());
            line("| engine | median | longest | rounds |\n|---|---|---|---|".to_owned());
            for one in &self.fail_overs {
                line(format!(
                    "| {} | {:.0} ms | {:.0} ms | {} |",
                    one.engine, one.median_ms, one.longest_ms, one.rounds
                ));
            }
        }
        if !self.keep_alives.is_empty() {
            line("\n## The cost of keep-alives\n".to_owned());
            line("| engine | sessions | CPU time for 1,000 keep-alives | memory for each session |\n|---|---|---|---|".to_owned());
            for one in &self.keep_alives {
                line(format!(
                    "| {} | {} | {:.2} ms | {} bytes |",
                    one.engine,
                    grouped(one.sessions as f64),
                    one.cpu_ms_per_thousand,
                    grouped(one.bytes_per_session)
                ));
            }
            line("\nSum of all processes of the engine. The other engines have no sessions, or no way to renew many.".to_owned());
        }
        if !self.missing.is_empty() {
            line("\n## Not measured\n".to_owned());
            for one in &self.missing {
                line(format!("- {}: {}", one.engine, one.why.replace('\n', " ")));
            }
        }
        text
    }
}

type Of = fn(&Row) -> &[Figure];

/// The two workloads with their titles.
pub(super) const WORKLOADS: [(&str, Of); 2] =
    [("Uncontended", |row| &row.uncontended), ("Hand-off of one lock", |row| &row.handoff)];

fn markdown_table(first: &str, clients: &[usize], rows: &[(String, Vec<String>)]) -> String {
    let heads: Vec<String> = clients.iter().map(|count| plural(*count)).collect();
    let mut text = format!("| {first} | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(clients.len()));
    for (name, cells) in rows {
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text
}

/// "1 client", "16 clients".
pub(super) fn plural(clients: usize) -> String {
    if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") }
}

/// A whole number with thousands separators.
pub(super) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn time(us: f64) -> String {
    if us < 10_000.0 { format!("{us:.0} us") } else { format!("{:.0} ms", us / 1_000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_thousands_separators() {
        assert_eq!(grouped(0.4), "0");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(grouped(1_000.0), "1,000");
        assert_eq!(grouped(1_234_567.2), "1,234,567");
    }
}
