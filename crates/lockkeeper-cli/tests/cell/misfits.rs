//! A node that does not belong where it was started says so, says what to do, and ends with exit code 1.

use crate::harness::cell::Cell;
use crate::harness::client::{grant, open_session};
use crate::harness::until;

/// Its end, which must be a refusal with these words.
async fn refused(cell: &mut Cell, id: u64, words: &[&str]) {
    let node = cell.node_mut(id);
    let ended = node.ended().await;
    let log = node.log_text();
    let said = log.lines().last().unwrap_or_default();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(said.starts_with("lockkeeper: "), "{log}");
    for word in words {
        assert!(said.contains(word), "\"{word}\" is not in: {said}");
    }
}

/// The rest of the cell has noticed nothing.
async fn still_serves(cell: &Cell) {
    cell.leader().await;
    let session = open_session(cell, 10_000).await;
    grant(cell, &session, "still-there").await;
}

#[tokio::test]
async fn a_node_with_another_cells_data_is_refused() {
    let mut cell = Cell::start(3).await;
    let first = cell.node(1).until_status().await["cell"].clone();
    for id in 1..=3 {
        cell.kill(id);
    }
    // Somebody starts over, and forgets the folder of node 3.
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
    refused(&mut cell, 3, &["the data folder belongs to cell", &first, &second, "--data-dir", "--cell"])
        .await;
    still_serves(&cell).await;
}

#[tokio::test]
async fn a_node_with_another_id_is_refused() {
    let mut cell = Cell::start(3).await;
    cell.kill(3);
    let (data, list) = (cell.node(3).data.clone(), cell.list());

    // The folder of node 3 under another number.
    cell.plan_node(4);
    cell.node_mut(4).data = data;
    cell.spawn_with(4, &["--cell", &list]);
    refused(&mut cell, 4, &["belongs to node 3, not to node 4", "--node-id 3", "--data-dir"]).await;

    // A number that the list does not have.
    cell.plan_node(5);
    cell.spawn_with(5, &["--cell", &list]);
    refused(&mut cell, 5, &["node 5 is not among the members of --cell", "--node-id"]).await;

    // A list in which two nodes have changed places.
    let swapped = format!("1={},2={},3={}", cell.node(2).address, cell.node(1).address, cell.node(3).address);
    cell.node_mut(3).data = cell.path("new");
    cell.spawn_with(3, &["--cell", &swapped]);
    refused(&mut cell, 3, &["but the node there is node", "correct --cell or --node-id"]).await;
    still_serves(&cell).await;
}

#[tokio::test]
async fn a_node_with_another_list_is_refused() {
    let mut cell = Cell::plan(3);
    let list = cell.list();
    cell.spawn_with(1, &["--cell", &list]);
    cell.node(1).until_log("waiting for").await;
    // Node 2 was told of a fourth one.
    let longer = format!("{list},4=127.0.0.1:1");
    cell.spawn_with(2, &["--cell", &longer]);
    let ended =
        until("one of the two to end", async || (1..=2).find(|id| cell.node_mut(*id).has_ended())).await;
    refused(&mut cell, ended, &["start all nodes of a new cell with the same list", &list, &longer]).await;
    cell.kill(1);
    cell.kill(2);
    std::fs::remove_dir_all(&cell.node(2).data).unwrap();

    // With the same list they form a cell; after that a node keeps to it.
    cell.spawn_all();
    cell.leader().await;
    cell.kill(2);
    cell.spawn_with(2, &["--cell", &longer]);
    refused(
        &mut cell,
        2,
        &["this node belongs to cell", "with the members", "leave out --cell", "member add"],
    )
    .await;
    still_serves(&cell).await;
    cell.spawn_with(2, &[]);
    cell.until_even(&[1, 2, 3]).await;
}
