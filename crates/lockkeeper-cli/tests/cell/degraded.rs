//! Output and exit code of `lockkeeper status` on a degraded cell.

use crate::harness::cell::{Cell, text};
use crate::harness::until;

#[tokio::test]
async fn status_exits_with_1_while_a_member_is_down() {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    until("a healthy cell", async || (cell.cli(&["status"]).await.status.code()? == 0).then_some(())).await;
    let down = cell.others(leader)[0];
    cell.kill(down);
    let output = until("a degraded cell", async || {
        let output = cell.cli(&["status"]).await;
        (output.status.code()? == 1).then_some(output)
    })
    .await;
    let shown = text(&output.stdout);
    assert!(shown.contains(&format!("degraded  node {down} has not answered for")), "{shown}");
    cell.spawn(down);
    until("a healthy cell again", async || (cell.cli(&["status"]).await.status.code()? == 0).then_some(()))
        .await;
}

/// In-process nodes, because the table of a real node cannot be made to differ.
#[cfg(feature = "simulation")]
mod differing_tables {
    use super::*;

    use crate::in_process::{find_leader, leader, put, start_cell};

    #[tokio::test]
    async fn status_exits_with_1_when_a_table_differs() {
        // Serializes tests with cells.
        let serial = Cell::plan(0);
        let nodes = start_cell(|_, config| config).await;
        let hosts: Vec<String> =
            nodes.iter().map(|node| node.address().expect("it listens").to_string()).collect();
        let url = format!("lockkeeper://{}", hosts.join(","));
        let damaged = (leader(&nodes).await + 1) % 3;
        let status = async || serial.cli_at(&url, &["status"]).await;
        until("a healthy cell", async || (status().await.status.code()? == 0).then_some(())).await;

        nodes[damaged].api().make_table_different();
        let output = until("the difference to be shown", async || {
            if let Some(leader) = find_leader(&nodes) {
                put(&nodes[leader], "k", 1).await;
            }
            let output = status().await;
            (output.status.code()? == 1).then_some(output)
        })
        .await;
        let shown = text(&output.stdout);
        assert!(shown.contains(&format!("the lock table of node {} differs", damaged + 1)), "{shown}");
    }
}
