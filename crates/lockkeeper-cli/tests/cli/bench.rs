//! `lockkeeper bench` with few clients: both workloads, with a shared connection and with one per client.

use crate::support::{Server, text};

#[test]
fn every_workload_and_connection_mode_is_measured() {
    let server = Server::start();
    for workload in ["uncontended", "handoff"] {
        for connections in ["shared", "each"] {
            let words = ["bench", "--workload", workload, "--connections", connections, "--clients", "4"];
            let mut command = server.cli(&words);
            let output = command.args(["--seconds", "1", "--output", "json"]).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(
                (&report["workload"], &report["connections"]),
                (&workload.into(), &connections.into())
            );
            assert_eq!(report["clients"], 4, "{report}");
            for figure in ["pairs_per_second", "acquire_p50_us", "acquire_p99_us", "acquire_p999_us"] {
                assert!(report[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {report}");
            }
            for limit in ["append_fdatasync_p50_us", "loopback_round_trip_p50_us"] {
                assert!(
                    report["machine"][limit].as_f64().is_some_and(|limit| limit > 0.0),
                    "{limit}: {report}"
                );
            }
        }
    }
}

#[test]
fn dropped_guards_release_their_locks() {
    let server = Server::start();
    for workload in ["uncontended", "handoff"] {
        let words =
            ["bench", "--workload", workload, "--release", "dropped", "--clients", "4", "--seconds", "1"];
        let output = server.cli(&words).args(["--output", "json"]).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["release"], "dropped", "{report}");
        assert!(report["pairs_per_second"].as_f64().is_some_and(|pairs| pairs > 4.0), "{report}");
    }
    assert!(!text(&server.output(&["ls"]).stdout).contains("bench/"), "no lock is left held");
}

#[test]
fn unsupported_combination_is_refused() {
    let words = ["bench", "--engine", "redis://127.0.0.1:1", "--connections", "each", "--release", "dropped"];
    let server = Server::start();
    let output = server.cli(&words).args(["--workload", "handoff", "--seconds", "1"]).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("has no hand-offs"), "{}", text(&output.stderr));
}

#[test]
fn table_output_shows_figures_and_machine_limits() {
    let server = Server::start();
    let output = server.output(&["bench", "--clients", "2", "--seconds", "1"]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(shown.contains("fdatasync") && shown.contains("p99"), "{shown}");
}
