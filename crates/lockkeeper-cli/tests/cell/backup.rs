//! Backups: saved from any node, restored into a new cell that never reuses a token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::Keeper;
use serde_json::json;

use crate::harness::cell::{Cell, text};
use crate::harness::client::{Load, grant, open_session, token};

#[tokio::test]
async fn restored_cell_never_reuses_a_token() {
    let mut cell = Cell::start(3).await;
    let session = open_session(&cell, 60_000).await;
    let held = token(&grant(&cell, &session, "job").await);
    let put = json!({"key": "k", "value": "v", "fence": {"lock": "job", "token": held}});
    cell.call("/v1/value/put", Some(&put)).await;
    cell.until_in_sync(&[1, 2, 3]).await;

    // From every node, also from those that do not lead.
    for id in 1..=3 {
        let url = format!("lockkeeper://{}", cell.node(id).address);
        let output = cell.cli_at(&url, &["snapshot", "save", &format!("from-{id}")]).await;
        assert!(output.status.success(), "node {id}: {output:?}");
    }
    let output = cell.cli(&["snapshot", "save", "from-1"]).await;
    assert_eq!(output.status.code(), Some(64), "an existing file is not overwritten: {output:?}");

    // The old cell continues after the backup.
    let mut highest = held;
    for number in 0..200 {
        highest = token(&grant(&cell, &session, &format!("later-{number}")).await);
    }

    for id in 1..=3 {
        let (file, folder) = (format!("from-{id}"), format!("restored-{id}"));
        let words = ["snapshot", "restore", &file, "--data-dir", &folder];
        let output = cell.cli(&words).await;
        assert!(output.status.success(), "{output:?}");
        assert!(
            text(&output.stdout).contains("all tokens and versions of the new cell are above"),
            "{output:?}"
        );
        assert!(text(&output.stdout).contains("may be granted twice if that clock is wrong"), "{output:?}");
        let output = cell.cli(&words).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("is not empty"), "{output:?}");
    }
    let old = cell.node(1).until_status().await["cell"].clone();
    for id in 1..=3 {
        cell.kill(id);
    }

    // The new cell has the saved state, and grows to three nodes.
    let mut new = Cell::plan_after(&mut cell, 1);
    new.node_mut(1).data = cell.path("restored-2");
    new.spawn_with(1, &[]);
    new.leader().await;
    assert_ne!(new.node(1).until_status().await["cell"], old);
    let seen = new.read("/v1/lock?name=job").await;
    assert_eq!(seen["holders"][0]["token"], held);
    assert_eq!(new.read("/v1/value?key=k").await["value"], "v");
    assert_eq!(new.read("/v1/lock?name=later-0").await["last_token"], 0, "granted after the backup");
    let session = open_session(&new, 60_000).await;
    let first = token(&grant(&new, &session, "first").await);
    assert!(first > highest, "{first} after {highest}");
    assert!(first < 1 << 53, "every JSON client reads it exactly");
    for id in [2, 3] {
        new.plan_node(id);
        new.spawn(id);
        new.node(id).until_log("member add").await;
        let output = new.cli(&["member", "add", &format!("{id}={}", new.node(id).address)]).await;
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    new.until_in_sync(&[1, 2, 3]).await;
    new.kill(1);
    new.leader().await;
    let second = token(&grant(&new, &session, "second").await);
    assert!(second > first);
}

#[tokio::test]
async fn second_restore_of_a_backup_starts_above_the_first_or_above_a_given_number() {
    let cell = Cell::start(1).await;
    let session = open_session(&cell, 60_000).await;
    let given = token(&grant(&cell, &session, "job").await);
    let output = cell.cli(&["snapshot", "save", "backup"]).await;
    assert!(output.status.success(), "{output:?}");
    let mut floors = Vec::new();
    for folder in ["one", "two"] {
        let words = ["snapshot", "restore", "backup", "--data-dir", folder, "--output", "json"];
        let output = cell.cli(&words).await;
        assert!(output.status.success(), "{output:?}");
        let restored: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(restored["backup_last_token"], given);
        floors.push(restored["tokens_above"].as_u64().unwrap());
    }
    assert!(given < floors[0] && floors[0] < floors[1] && floors[1] < 1 << 53, "{floors:?}");
    let above = (floors[1] + 1_000_000_000).to_string();
    let restore_above = async |folder: &str, above: &str| {
        cell.cli(&["snapshot", "restore", "backup", "--data-dir", folder, "--tokens-above", above]).await
    };
    let output = restore_above("three", &above).await;
    assert!(output.status.success() && text(&output.stdout).contains(&above), "{output:?}");
    for (above, words) in [("0", "--tokens-above 0 is below"), ("9007199254740991", "below 2^53")] {
        let output = restore_above("four", above).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(words), "{output:?}");
        assert!(!cell.path("four").exists());
    }
}

#[tokio::test]
async fn damaged_backup_is_refused() {
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
    for (damage, bytes) in damaged {
        std::fs::write(cell.path("bad"), bytes).unwrap();
        let output = cell.cli(&["snapshot", "restore", "bad", "--data-dir", "new"]).await;
        assert_eq!(output.status.code(), Some(1), "{damage}: {output:?}");
        assert!(text(&output.stderr).starts_with("lockkeeper: "), "{damage}: {output:?}");
        assert!(!cell.path("new").exists(), "{damage}: nothing is left behind");
    }
    let output = cell.cli(&["snapshot", "restore", "not-there", "--data-dir", "new"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = cell.cli(&["snapshot", "restore", "good", "--data-dir", "new"]).await;
    assert!(output.status.success(), "{output:?}");
}

/// A node that waits for the rest of its cell has nothing to save, and reports it at once.
#[tokio::test]
async fn node_that_waits_for_its_cell_has_no_snapshot() {
    let mut cell = Cell::plan(3);
    cell.spawn(1);
    cell.node(1).until_log("waiting for").await;
    let began = Instant::now();
    let url = format!("lockkeeper://{}", cell.node(1).address);
    let output = cell.cli_at(&url, &["snapshot", "save", "nothing"]).await;
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(text(&output.stderr).contains("not part of a cell yet"), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(!cell.path("nothing").exists());
    let answer = cell.get(1, "/v1/snapshot").await;
    assert_eq!((answer.status, answer.code()), (503, "unavailable"), "{answer:?}");
}

/// A writer puts each number to `first` and then to `second`. A consistent snapshot has equal numbers, or `first` is ahead
/// by one.
#[tokio::test]
async fn snapshot_under_load_is_consistent() {
    let mut cell = Cell::start(3).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(10))).await;
    let done = Arc::new(AtomicU64::new(0));
    let writes = tokio::spawn({
        let (keeper, done) = (keeper.clone(), done.clone());
        async move {
            let guard = keeper.lock("pair").acquire().await.unwrap();
            for number in 1_u64.. {
                for key in ["first", "second"] {
                    let value = keeper.value(key).fence(&guard);
                    value.put(number.to_string().into_bytes()).await.unwrap();
                }
                done.store(number, Ordering::Relaxed);
            }
        }
    });
    let mut load = Load::start(&cell, 4).await;
    let mut saved = Vec::new();
    for id in 1..=3 {
        load.until_more(20).await;
        let least = done.load(Ordering::Relaxed);
        let (url, file) = (format!("lockkeeper://{}", cell.node(id).address), format!("from-{id}"));
        let output = cell.cli_at(&url, &["snapshot", "save", &file]).await;
        assert!(output.status.success(), "node {id}: {output:?}");
        saved.push((file, least, done.load(Ordering::Relaxed)));
    }
    load.end().await;
    writes.abort();
    drop(keeper);
    for id in 1..=3 {
        cell.kill(id);
    }
    let folder = cell.path("");
    let mut cells = vec![cell];
    for (file, least, most) in saved {
        let before = cells.last_mut().expect("the previous cell");
        let restored = folder.join(format!("{file}-restored"));
        let words = [
            "snapshot",
            "restore",
            folder.join(&file).to_str().unwrap(),
            "--data-dir",
            restored.to_str().unwrap(),
        ]
        .map(str::to_owned);
        let output = before.cli(&words.each_ref().map(String::as_str)).await;
        assert!(output.status.success(), "{output:?}");
        let mut alone = Cell::plan_after(before, 1);
        alone.node_mut(1).data = restored;
        alone.spawn_with(1, &[]);
        alone.leader().await;
        let mut numbers = [0_u64; 2];
        for (number, key) in numbers.iter_mut().zip(["first", "second"]) {
            let value = alone.read(&format!("/v1/value?key={key}")).await;
            *number = value["value"].as_str().and_then(|text| text.parse().ok()).expect("a number");
        }
        let [first, second] = numbers;
        println!("{file}: first {first}, second {second}; {least} to {most} were written during the save");
        assert!(first == second || first == second + 1, "{file} is not consistent: {numbers:?}");
        // A follower may lag behind the leader, but is never ahead.
        assert!(second <= most + 1, "{file}: {numbers:?}");
        alone.kill(1);
        cells.push(alone);
    }
}
