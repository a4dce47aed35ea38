//! Backups: saved from any node, restored into a new cell whose tokens nobody has ever seen.

use serde_json::json;

use crate::harness::cell::{Cell, text};
use crate::harness::client::{grant, open_session, token};

#[tokio::test]
async fn a_restored_cell_gives_no_token_that_was_ever_given() {
    let mut cell = Cell::start(3).await;
    let session = open_session(&cell, 60_000).await;
    let held = token(&grant(&cell, &session, "job").await);
    let put = json!({"key": "k", "value": "v", "fence": {"lock": "job", "token": held}});
    cell.ask("/v1/value/put", Some(&put)).await;
    cell.until_even(&[1, 2, 3]).await;

    // From every node, also from those that do not lead.
    for id in 1..=3 {
        let url = format!("lockkeeper://{}", cell.node(id).address);
        let output = cell.cli_at(&url, &["snapshot", "save", &format!("from-{id}")]).await;
        assert!(output.status.success(), "node {id}: {output:?}");
    }
    let output = cell.cli(&["snapshot", "save", "from-1"]).await;
    assert_eq!(output.status.code(), Some(64), "what is there is not written over: {output:?}");

    // The old cell goes on after the backup.
    let mut highest = held;
    for number in 0..200 {
        highest = token(&grant(&cell, &session, &format!("later-{number}")).await);
    }

    for id in 1..=3 {
        let (file, folder) = (format!("from-{id}"), format!("restored-{id}"));
        let words = ["snapshot", "restore", &file, "--data-dir", &folder];
        let output = cell.cli(&words).await;
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stdout).contains("tokens go on above"), "{output:?}");
        let output = cell.cli(&words).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("is not empty"), "{output:?}");
    }
    let old = cell.node(1).status().await.unwrap()["cell"].clone();
    for id in 1..=3 {
        cell.kill(id);
    }

    // The new cell: what was saved is there, and grows to three nodes.
    let mut new = Cell::plan_after(&mut cell, 1);
    new.node_mut(1).data = cell.path("restored-2");
    new.spawn_with(1, &[]);
    new.leader().await;
    assert_ne!(new.node(1).status().await.unwrap()["cell"], old);
    let seen = new.read("/v1/lock?name=job").await;
    assert_eq!(seen["holders"][0]["token"], held);
    assert_eq!(new.read("/v1/value?key=k").await["value"], "v");
    assert_eq!(new.read("/v1/lock?name=later-0").await["last_token"], 0, "that was later");
    let session = open_session(&new, 60_000).await;
    let first = token(&grant(&new, &session, "first").await);
    assert!(first > highest && first > held + 1_000_000_000_000 - 1, "{first} after {highest}");
    assert!(first < 1 << 53, "every JSON client reads it exactly");
    for id in [2, 3] {
        new.plan_node(id);
        new.spawn(id);
        new.node(id).until_log("member add").await;
        let output = new.cli(&["member", "add", &format!("{id}={}", new.node(id).address)]).await;
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    new.until_even(&[1, 2, 3]).await;
    new.kill(1);
    new.leader().await;
    let second = token(&grant(&new, &session, "second").await);
    assert!(second > first);
}

#[tokio::test]
async fn a_damaged_backup_is_refused() {
    let cell = Cell::start(1).await;
    let session = open_session(&cell, 60_000).await;
    for number in 0..50 {
        grant(&cell, &session, &format!("lock-{number}")).await;
    }
    let output = cell.cli(&["snapshot", "save", "good"]).await;
    assert!(output.status.success(), "{output:?}");
    let good = std::fs::read(cell.path("good")).unwrap();
    let mut damaged = vec![("empty", Vec::new()), ("cut", good[..good.len() / 2].to_vec())];
    damaged.push(("shorter", good[..good.len() - 1].to_vec()));
    damaged.push(("longer", [&good[..], b"x"].concat()));
    for place in [10, good.len() / 3, good.len() / 2, good.len() - 2] {
        let mut bytes = good.clone();
        bytes[place] ^= 0x40;
        damaged.push(("flipped", bytes));
    }
    for (what, bytes) in damaged {
        std::fs::write(cell.path("bad"), bytes).unwrap();
        let output = cell.cli(&["snapshot", "restore", "bad", "--data-dir", "new"]).await;
        assert_eq!(output.status.code(), Some(1), "{what}: {output:?}");
        assert!(text(&output.stderr).starts_with("lockkeeper: "), "{what}: {output:?}");
        assert!(!cell.path("new").exists(), "{what}: nothing is left behind");
    }
    let output = cell.cli(&["snapshot", "restore", "not-there", "--data-dir", "new"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = cell.cli(&["snapshot", "restore", "good", "--data-dir", "new"]).await;
    assert!(output.status.success(), "{output:?}");
}
