//! A misconfigured node reports the mismatch and the next step, and ends with exit code 1.

use crate::harness::cell::Cell;
use crate::harness::client::{grant, open_session};
use crate::harness::until;

/// Waits until the node ends, and requires a refusal with these words.
async fn assert_refused(cell: &mut Cell, id: u64, words: &[&str]) {
    let node = cell.node_mut(id);
    let ended = node.ended().await;
    let log = node.log_text();
    let message = log.lines().last().unwrap_or_default();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(message.starts_with("lockkeeper: "), "{log}");
    for word in words {
        assert!(message.contains(word), "\"{word}\" is not in: {message}");
    }
}

/// Requires that the rest of the cell serves.
async fn assert_cell_serves(cell: &Cell) {
    cell.leader().await;
    let session = open_session(cell, 10_000).await;
    grant(cell, &session, "still-there").await;
}

#[tokio::test]
async fn node_with_data_of_another_cell_is_refused() {
    let mut cell = Cell::start(3).await;
    let first = cell.node(1).until_status().await["cell"].clone();
    for id in 1..=3 {
        cell.kill(id);
    }
    // The cell is created again, but node 3 keeps its old folder.
    let old = cell.path("old");
    std::fs::rename(&cell.node(3).data, &old).unwrap();
    for id in [1, 2] {
        std::fs::remove_dir_all(&cell.node(id).data).unwrap();
    }
    cell.spawn_all();
    cell.until_agreed().await;
    let second = cell.node(1).until_status().await["cell"].clone();
    assert_ne!(first, second);
    cell.kill(3);
    std::fs::remove_dir_all(&cell.node(3).data).unwrap();
    std::fs::rename(&old, &cell.node(3).data).unwrap();

    cell.spawn(3);
    let (first, second) = (first.as_str().unwrap().to_owned(), second.as_str().unwrap().to_owned());
    assert_refused(
        &mut cell,
        3,
        &["the data folder belongs to cell", &first, &second, "--data-dir", "--cell"],
    )
    .await;
    assert_cell_serves(&cell).await;
}

#[tokio::test]
async fn node_with_a_wrong_id_is_refused() {
    let mut cell = Cell::start(3).await;
    cell.kill(3);
    let (data, list) = (cell.node(3).data.clone(), cell.list());

    // The folder of node 3 with another node id.
    cell.plan_node(4);
    cell.node_mut(4).data = data;
    cell.spawn_with(4, &["--cell", &list]);
    assert_refused(&mut cell, 4, &["belongs to node 3, not to node 4", "--node-id 3", "--data-dir"]).await;

    // A node id that is not in the list.
    cell.plan_node(5);
    cell.spawn_with(5, &["--cell", &list]);
    assert_refused(&mut cell, 5, &["node 5 is not among the members of --cell", "--node-id"]).await;

    // A list with the addresses of two nodes swapped.
    let swapped = format!("1={},2={},3={}", cell.node(2).address, cell.node(1).address, cell.node(3).address);
    cell.node_mut(3).data = cell.path("new");
    cell.spawn_with(3, &["--cell", &swapped]);
    assert_refused(&mut cell, 3, &["but the node there is node", "correct --cell or --node-id"]).await;
    assert_cell_serves(&cell).await;
}

#[tokio::test]
async fn node_with_a_different_member_list_is_refused() {
    let mut cell = Cell::plan(3);
    let list = cell.list();
    cell.spawn_with(1, &["--cell", &list]);
    cell.node(1).until_log("waiting for").await;
    // The list of node 2 has a fourth node.
    let longer = format!("{list},4=127.0.0.1:1");
    cell.spawn_with(2, &["--cell", &longer]);
    let ended =
        until("one of the two to end", async || (1..=2).find(|id| cell.node_mut(*id).has_ended())).await;
    assert_refused(&mut cell, ended, &["start all nodes of a new cell with the same list", &list, &longer])
        .await;
    cell.kill(1);
    cell.kill(2);
    std::fs::remove_dir_all(&cell.node(2).data).unwrap();

    // With the same list they form a cell; afterwards a different list is refused.
    cell.spawn_all();
    cell.leader().await;
    cell.kill(2);
    cell.spawn_with(2, &["--cell", &longer]);
    assert_refused(
        &mut cell,
        2,
        &["this node belongs to cell", "with the members", "leave out --cell", "member add"],
    )
    .await;
    assert_cell_serves(&cell).await;
    cell.spawn_with(2, &[]);
    cell.until_in_sync(&[1, 2, 3]).await;
}
