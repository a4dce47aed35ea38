//! A cell is upgraded node by node, from a plain build to the next version, which only builds with the cargo feature `next-version`
//! support (docs/upgrading.md).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::Value;

use crate::harness::cell::{Cell, text};
use crate::harness::client::Load;
use crate::harness::node::Node;
use crate::harness::{report, until};

/// Makes a node with the feature `next-version` support the next format and cell version. A plain build ignores it.
const NEXT: &str = "LOCKKEEPER_TEST_NEXT_VERSION";
/// Variable that names a binary without the feature (scripts/plain-binary).
const PLAIN: &str = "LOCKKEEPER_PLAIN_BINARY";
/// How long the cell runs mixed versions; LOCKKEEPER_MIXED_SECONDS overrides it.
const MIXED_FOR: Duration = Duration::from_secs(4);

/// The binary of the older version. Without it, the binary of the tests plays both roles: it supports the next version only if
/// the environment says so.
fn plain_binary() -> Option<PathBuf> {
    let Some(path) = std::env::var_os(PLAIN).map(PathBuf::from) else {
        report(&format!("{PLAIN} is not set (scripts/plain-binary): one binary plays both versions"));
        return None;
    };
    assert!(path.is_file(), "{PLAIN}={}: no such file: run scripts/plain-binary", path.display());
    Some(path)
}

fn use_old_version(node: &mut Node) {
    node.binary = plain_binary();
    // With two binaries, only they differ.
    let environment = node.binary.iter().map(|_| (NEXT.to_owned(), "1".into()));
    node.environment = environment.collect();
}

fn use_new_version(node: &mut Node) {
    node.binary = None;
    node.environment = vec![(NEXT.to_owned(), "1".into())];
}

/// Starts three nodes of the older version.
async fn start_old_cell() -> Cell {
    let mut cell = Cell::plan(3);
    cell.nodes.iter_mut().for_each(use_old_version);
    cell.spawn_all();
    cell.until_agreed().await;
    cell
}

/// Upgrades a node as docs/upgrading.md says: SIGTERM, start, and wait until `/readyz` answers 200 and `member list` shows no
/// lag.
async fn upgrade(cell: &mut Cell, load: &mut Load, id: u64) {
    let ended = cell.node_mut(id).term().await;
    assert_eq!(ended.code(), Some(0), "node {id}");
    use_new_version(cell.node_mut(id));
    cell.spawn(id);
    until("the node to be ready", async || {
        let answer = crate::harness::http::quick_get(&cell.node(id).listen_addr, "/readyz").await?;
        (answer.status == 200).then_some(())
    })
    .await;
    until("member list to show no lag", async || {
        let listed = cell.cli(&["member", "list", "--output", "json"]).await;
        let listed: Value = serde_json::from_slice(&listed.stdout).ok()?;
        let members = listed["members"].as_array()?;
        let member = members.iter().find(|member| member["node_id"] == id)?;
        (member["leader"] == true || member["lag"] == 0).then_some(())
    })
    .await;
    load.until_more(40).await;
}

/// Waits until all members send messages to each other in these formats.
async fn until_formats(cell: &Cell, format: impl Fn(u64, u64) -> f64) {
    for id in 1..=3 {
        for other in cell.others(id) {
            let (name, expected) =
                (format!("lockkeeper_member_message_format{{member=\"{other}\"}}"), format(id, other));
            until(&format!("node {id} to send format {expected} to node {other}"), async || {
                (cell.find_metric(id, &name).await? == expected).then_some(())
            })
            .await;
        }
    }
}

async fn cell_version(cell: &Cell, id: u64) -> Option<u64> {
    cell.node(id).status().await?["cell_version"].as_u64()
}

/// The audit trail, newest first.
async fn notes(cell: &Cell) -> Vec<String> {
    let audit = cell.read("/v1/audit").await;
    let actions = audit["acts"].as_array().unwrap_or_else(|| panic!("{audit}"));
    actions.iter().map(ToString::to_string).collect()
}

fn mixed_for() -> Duration {
    let seconds = std::env::var("LOCKKEEPER_MIXED_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.map_or(MIXED_FOR, Duration::from_secs)
}

#[tokio::test]
async fn cell_is_upgraded_under_load_and_not_downgraded() {
    let mut cell = start_old_cell().await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(10))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let mut load = Load::start_with_values(&cell, 4).await;

    until_formats(&cell, |_, _| 1.0).await;
    let status = cell.node(1).until_status().await;
    let versions = (&status["cell_version"], &status["cell_version_max"]);
    assert_eq!(versions, (&1.into(), &1.into()), "the older binary supports the next version");
    let saved = cell.cli(&["snapshot", "save", "before.snapshot"]).await;
    assert!(saved.status.success(), "{saved:?}");

    // Followers first, the leader last.
    let leader = cell.until_agreed().await;
    for id in cell.others(leader) {
        upgrade(&mut cell, &mut load, id).await;
    }
    until_formats(&cell, |from, to| if [from, to].contains(&leader) { 1.0 } else { 2.0 }).await;
    // In a mixed cell no new feature is switched on, whichever version leads.
    let began = Instant::now();
    while began.elapsed() < mixed_for() {
        load.until_more(40).await;
        for id in 1..=3 {
            if let Some(version) = cell_version(&cell, id).await {
                assert_eq!(version, 1, "node {id} in a mixed cell");
            }
        }
        assert_eq!(guard.state(), GuardState::Held);
    }
    let status = text(&cell.cli(&["status"]).await.stdout);
    assert!(status.contains("version 1"), "{status}");
    let before = notes(&cell).await;
    assert!(!before.iter().any(|note| note.contains("next version")), "{before:?}");

    upgrade(&mut cell, &mut load, leader).await;
    for id in 1..=3 {
        until(&format!("node {id} to have cell version 2"), async || {
            (cell_version(&cell, id).await? == 2).then_some(())
        })
        .await;
        let at = format!("lockkeeper://{}", cell.node(id).address);
        let status = text(&cell.cli_at(&at, &["status"]).await.stdout);
        assert!(status.contains("version 2"), "node {id}: {status}");
    }
    until_formats(&cell, |_, _| 2.0).await;
    // The new command is used, the changed rule marks it, and all nodes apply it alike.
    until("the new command to be applied", async || {
        let notes = notes(&cell).await;
        notes.iter().any(|note| note.contains("[version 2] a command of the next version")).then_some(())
    })
    .await;
    assert_eq!(guard.state(), GuardState::Held);
    let done = load.end().await;
    println!("{done} pairs of acquire and release during the upgrade, none failed");
    cell.until_in_sync(&[1, 2, 3]).await;
    let status = cell.read("/v1/status").await;
    let differ = status["members"].as_array().unwrap().iter().any(|member| !member["disagreement"].is_null());
    assert!(!differ && status["disagreement"].is_null(), "{status}");
    guard.release().await.unwrap();

    refuses_the_old_binary(&mut cell).await;
}

/// A downgraded node refuses to start, names the versions and changes nothing; with the new binary it works again.
async fn refuses_the_old_binary(cell: &mut Cell) {
    let identity = cell.node(1).data.join("identity.json");
    until("the version to be in the data folder", async || {
        std::fs::read_to_string(&identity).ok()?.contains("\"cell_version\": 2").then_some(())
    })
    .await;
    assert_eq!(cell.node_mut(1).term().await.code(), Some(0));
    use_old_version(cell.node_mut(1));
    cell.node(1).empty_log();
    cell.spawn(1);
    let ended = cell.node_mut(1).ended().await;
    assert!(!ended.success(), "{ended:?}");
    let log = cell.node(1).log_text();
    assert!(log.contains("the cell has version 2, and this node supports versions up to 1"), "{log}");
    use_new_version(cell.node_mut(1));
    cell.spawn(1);
    cell.until_agreed().await;
    cell.until_in_sync(&[1, 2, 3]).await;
}

/// An old binary cannot be added to an upgraded cell.
#[tokio::test]
async fn older_node_is_not_added() {
    let mut cell = Cell::plan(1);
    use_new_version(cell.node_mut(1));
    cell.spawn(1);
    until("the cell to have version 2", async || (cell_version(&cell, 1).await? == 2).then_some(())).await;
    let alone = cell.url();
    cell.plan_node(2);
    use_old_version(cell.node_mut(2));
    cell.spawn(2);
    let address = cell.node(2).address.clone();
    let refused = until("an answer about node 2", async || {
        let output = cell.cli_at(&alone, &["member", "add", &format!("2={address}")]).await;
        let message = text(&output.stderr);
        assert!(!output.status.success(), "{output:?}");
        (!message.contains("no node answers")).then_some(message)
    })
    .await;
    assert!(refused.contains("supports cell versions up to 1, and the cell has version 2"), "{refused}");
}
