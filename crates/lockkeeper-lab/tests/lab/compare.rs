//! `lockkeeper-lab compare` at small scale: it measures, and every report format contains the figures.

use std::os::unix::fs::symlink;

use crate::program;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn comparison_is_written_as_json_markdown_and_chart() {
    let folder = tempfile::tempdir().unwrap();
    let (svg, markdown) = (folder.path().join("chart.svg"), folder.path().join("page.md"));
    let output = program()
        .args(["compare", "--engines", "cell,redis-bare", "--clients", "4,1", "--seconds", "0.2"])
        .args(["--sessions", "1000", "--output", "json", "--svg"])
        .arg(&svg)
        .arg("--markdown")
        .arg(&markdown)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["missing"], serde_json::json!([]));
    assert_eq!(report["clients"], serde_json::json!([1, 4]));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| &row["engine"]).collect::<Vec<_>>(), ["cell", "redis-bare"]);
    for workload in ["uncontended", "handoff"] {
        for row in rows {
            for (figure, clients) in row[workload].as_array().unwrap().iter().zip([1, 4]) {
                assert_eq!(figure["clients"], clients);
                assert!(figure["pairs_per_second"].as_f64().unwrap() > 0.0, "{row}");
                assert!(figure["acquire_p50_us"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
    let cost = &report["keep_alives"][0];
    assert_eq!((&cost["engine"], &cost["sessions"]), (&"cell".into(), &1000.into()));

    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    // A line for each engine in each of the two panels, with a point for each number of clients.
    assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (4, 8));
    let markdown = std::fs::read_to_string(markdown).unwrap();
    for part in ["(chart.svg)", "| cell |", "| redis-bare |", "1 client | 4 clients", "bare recipe |"] {
        assert!(markdown.contains(part), "no {part:?} in {markdown}");
    }
}

#[test]
fn missing_server_is_named_with_its_package() {
    // This PATH has only the tools that start servers, and no server.
    let path = tempfile::tempdir().unwrap();
    for tool in ["env", "setpriv"] {
        symlink(format!("/usr/bin/{tool}"), path.path().join(tool)).unwrap();
    }
    let output = program()
        .args(["compare", "--engines", "cell,redis", "--clients", "1", "--seconds", "0.1"])
        .args(["--sessions", "0"])
        .env("PATH", path.path())
        .output()
        .unwrap();
    let (shown, messages) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{messages}");
    assert!(shown.contains("ENGINE  1 CLIENT") && shown.contains("\ncell "), "{shown}");
    assert!(messages.contains("redis-server is not installed: apt-get install redis-server"), "{messages}");
}

#[test]
fn unknown_engine_is_wrong_usage() {
    let output = program().args(["compare", "--engines", "mysql"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("redis-bare"), "the names are listed: {}", text(&output.stderr));
}
