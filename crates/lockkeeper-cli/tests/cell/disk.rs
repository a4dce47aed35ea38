//! The disk of the leader or of its followers is full, or the leader's machine is too busy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::{Load, acquire, grant, keep_alive, open_session, token};
use crate::harness::{LONG, until};

/// A small file system of its own, which takes root to mount; unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path, mebibytes: u32) -> SmallDisk {
        std::fs::create_dir_all(path).unwrap();
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path).status();
        assert!(mounted.is_ok_and(|status| status.success()), "this test mounts a tmpfs and needs root");
        SmallDisk(path.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Room for one segment of the log and the rest, but not for a second one.
const DISK_MEBIBYTES: u32 = 40;
const FILLER_BYTES: usize = 16 << 20;

#[tokio::test]
async fn the_leaders_disk_is_full() {
    let mut cell = Cell::plan(3);
    let mut disks = Vec::new();
    for node in &mut cell.nodes {
        disks.push(SmallDisk::mount(&node.data, DISK_MEBIBYTES));
        // Another program has taken the rest of the disk.
        std::fs::write(node.data.join("filler"), vec![1; FILLER_BYTES]).unwrap();
        node.data = node.data.join("data");
    }
    cell.spawn_all();
    let leader = cell.leader().await;
    for id in cell.others(leader) {
        std::fs::remove_file(disks[id as usize - 1].0.join("filler")).unwrap();
    }
    let filler = disks[leader as usize - 1].0.join("filler");
    let session = open_session(&cell, 60_000).await;
    let held = token(&grant(&cell, &session, "held").await);
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();

    let began = Instant::now();
    let mut written = 0;
    let why = loop {
        match keeper.value("large").put(vec![b'x'; 60_000]).await {
            Ok(_) => written += 1,
            Err(error) if error.to_string().contains("no space left") => break error,
            // A busy machine.
            Err(error) => println!("{error}"),
        }
        assert!(began.elapsed() < LONG, "the disk was never full");
    };
    println!("{written} values of 60 KB until the disk was full, {} ms", began.elapsed().as_millis());
    assert_eq!(why.code(), "unavailable");
    assert!(why.to_string().contains("releases still work"), "{why}");
    assert_eq!(cell.leader().await, leader, "it leads, but has no room");

    // Nothing new, but nobody loses anything, and what frees goes on.
    let full = Instant::now();
    while full.elapsed() < Duration::from_secs(1) {
        assert_eq!(acquire(&cell, leader, &session, "new").await.code(), "unavailable");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    keep_alive(&cell, leader, &session).await.ok();
    let release = json!({"session": session, "lock": "held", "token": held});
    cell.post(leader, "/v1/lock/release", release).await.ok();
    assert_eq!(guard.state(), GuardState::Held);

    // It heals by itself when there is room.
    std::fs::remove_file(&filler).unwrap();
    let again = until("there to be room", async || {
        let answer = acquire(&cell, leader, &session, "held").await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert!(token(&again.body) > held);
    assert_eq!(guard.state(), GuardState::Held);
    cell.until_even(&[1, 2, 3]).await;

    // And all of it is on all disks.
    guard.release().await.unwrap();
    for id in 1..=3 {
        assert_eq!(cell.node_mut(id).term().await.code(), Some(0));
    }
    cell.spawn_all();
    cell.leader().await;
    let seen = cell.read("/v1/lock?name=held").await;
    assert_eq!(seen["holders"][0]["token"], again.body["token"]);
    for id in 1..=3 {
        cell.kill(id);
    }
}

/// Both followers have no room: the leader refuses what is new in time, so that everything held can still be given back.
#[tokio::test]
async fn the_followers_disks_are_full() {
    let mut cell = Cell::plan(3);
    let mut disks = Vec::new();
    for node in &mut cell.nodes {
        disks.push(SmallDisk::mount(&node.data, DISK_MEBIBYTES));
        std::fs::write(node.data.join("filler"), vec![1; FILLER_BYTES]).unwrap();
        node.data = node.data.join("data");
    }
    cell.spawn_all();
    let leader = cell.until_agreed().await;
    let filler = |id: u64| disks[id as usize - 1].0.join("filler");
    std::fs::remove_file(filler(leader)).unwrap();
    let session = open_session(&cell, 60_000).await;
    let held = token(&grant(&cell, &session, "held").await);
    let dies = open_session(&cell, 2_000).await;
    grant(&cell, &dies, "expires").await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();

    let began = Instant::now();
    let why = loop {
        match keeper.value("large").put(vec![b'x'; 60_000]).await {
            Err(error) if error.to_string().contains("no space left") => break error,
            Err(error) => println!("{error}"),
            Ok(_) => {}
        }
        assert!(began.elapsed() < LONG, "the disks were never full");
    };
    assert!(why.to_string().contains("releases still work"), "{why}");
    assert_eq!(cell.leader().await, leader, "it leads, and has room itself");
    let status = cell.get(leader, "/v1/status").await.body;
    assert!(status["trouble"].as_str().is_some_and(|why| why.contains("no space left")), "{status}");
    for id in cell.others(leader) {
        until("the follower to report it", async || {
            let page = cell.get(id, "/metrics").await.body;
            page.as_str().is_some_and(|page| page.contains("lockkeeper_proposer_refuses_new 1")).then_some(())
        })
        .await;
    }

    // What frees goes on, and so do sessions and their end.
    assert_eq!(acquire(&cell, leader, &session, "new").await.code(), "unavailable");
    keep_alive(&cell, leader, &session).await.ok();
    let release = json!({"session": session, "lock": "held", "token": held});
    cell.post(leader, "/v1/lock/release", release).await.ok();
    until("a session to expire", async || {
        let seen = cell.read("/v1/lock?name=expires").await;
        seen["holders"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
    assert_eq!(guard.state(), GuardState::Held);
    for id in cell.others(leader) {
        assert!(cell.node(id).runs(), "node {id} has ended");
    }

    // One of them has room again: that is a majority.
    std::fs::remove_file(filler(cell.others(leader)[0])).unwrap();
    let again = until("there to be room", async || {
        let answer = acquire(&cell, leader, &session, "held").await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert!(token(&again.body) > held);
    // The other one becomes full to the last byte, stays up, and catches up when there is room.
    let full = cell.others(leader)[1];
    let began = Instant::now();
    while !cell.node(full).log_text().contains("no room for more entries") {
        keeper.value("large").put(vec![b'x'; 60_000]).await.unwrap();
        assert!(began.elapsed() < LONG, "the follower was never full");
    }
    assert!(cell.node(full).runs(), "node {full} has ended");
    std::fs::remove_file(filler(full)).unwrap();
    cell.until_even(&[1, 2, 3]).await;
    guard.release().await.unwrap();
}

/// A machine that is too busy: the leader stands still for 60 ms of every 120 ms, so that every message of it takes its
/// time. That is less than its lease: it goes on leading, or another one takes over; in both cases no request fails.
#[tokio::test]
async fn the_leader_is_slow() {
    let cell = Cell::start(3).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let mut load = Load::start(&cell, 3).await;
    let leader = cell.leader().await;
    let before = load.done();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        cell.stop(leader);
        tokio::time::sleep(Duration::from_millis(60)).await;
        cell.go_on(leader);
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(guard.state(), GuardState::Held);
    }
    let slow = load.done() - before;
    assert!(slow > 0, "nothing was granted while the leader was slow");
    load.until_more(50).await;
    let leads = cell.leader().await;
    println!(
        "{slow} pairs in 5 s with a slow leader, {} in all; {leader} led before, {leads} after",
        load.end().await
    );
    guard.release().await.unwrap();
    cell.until_even(&[1, 2, 3]).await;
}
