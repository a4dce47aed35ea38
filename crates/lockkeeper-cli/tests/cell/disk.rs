//! Full disks of the leader or of its followers, and a slow leader.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::{Load, acquire, grant, keep_alive, open_session, token};
use crate::harness::{LONG, attempts, until};

/// A small file system, unmounted when dropped. Mounting needs root.
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

/// Room for one log segment and the other files, but not for a second segment.
const DISK_MEBIBYTES: u32 = 40;
const FILLER_BYTES: usize = 16 << 20;
/// A busy machine can delay heartbeats until another node leads.
const ATTEMPTS: usize = 3;

#[tokio::test]
async fn full_disk_of_the_leader_refuses_new_work_but_not_releases() {
    attempts(ATTEMPTS, fill_the_leader).await;
}

async fn fill_the_leader() -> Result<(), String> {
    let mut cell = Cell::plan(3);
    let mut disks = Vec::new();
    for node in &mut cell.nodes {
        disks.push(SmallDisk::mount(&node.data, DISK_MEBIBYTES));
        // Another program uses the rest of the disk.
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
            // Timeouts on a busy machine.
            Err(error) => println!("{error}"),
        }
        assert!(began.elapsed() < LONG, "the disk was never full");
    };
    println!("{written} values of 60 KB until the disk was full, {} ms", began.elapsed().as_millis());
    assert_eq!(why.code(), "unavailable");
    assert!(why.to_string().contains("releases still work"), "{why}");
    if cell.leader().await != leader {
        return Err("the leader lost its leadership".to_owned());
    }

    // New work is refused, no grant is lost, and releases still work.
    let full = Instant::now();
    while full.elapsed() < Duration::from_secs(1) {
        assert_eq!(acquire(&cell, leader, &session, "new").await.code(), "unavailable");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    keep_alive(&cell, leader, &session).await.ok();
    let release = json!({"session": session, "lock": "held", "token": held});
    cell.post(leader, "/v1/lock/release", release).await.ok();
    assert_eq!(guard.state(), GuardState::Held);

    // The cell recovers by itself when there is space.
    std::fs::remove_file(&filler).unwrap();
    let again = until("free space", async || {
        let answer = acquire(&cell, leader, &session, "held").await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert!(token(&again.body) > held);
    assert_eq!(guard.state(), GuardState::Held);
    cell.until_in_sync(&[1, 2, 3]).await;

    // Everything is durable on all disks.
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
    Ok(())
}

/// Both followers run out of space: the leader refuses new work early enough that all held locks can still be released.
#[tokio::test]
async fn full_disks_of_the_followers_refuse_new_work_but_not_releases() {
    attempts(ATTEMPTS, fill_the_followers).await;
}

async fn fill_the_followers() -> Result<(), String> {
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
    if cell.leader().await != leader {
        return Err("the leader lost its leadership".to_owned());
    }
    let status = cell.get(leader, "/v1/status").await.body;
    assert!(status["trouble"].as_str().is_some_and(|why| why.contains("no space left")), "{status}");
    for id in cell.others(leader) {
        until("the follower to report it", async || {
            let page = cell.get(id, "/metrics").await.body;
            page.as_str().is_some_and(|page| page.contains("lockkeeper_proposer_refuses_new 1")).then_some(())
        })
        .await;
    }

    // Releases, keep-alives and expiries still work.
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
        assert!(cell.node(id).is_running(), "node {id} has ended");
    }

    // One follower has space again: that is a majority.
    std::fs::remove_file(filler(cell.others(leader)[0])).unwrap();
    let again = until("free space", async || {
        let answer = acquire(&cell, leader, &session, "held").await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert!(token(&again.body) > held);
    // The other follower fills up completely, stays up, and catches up when there is space.
    let full = cell.others(leader)[1];
    let began = Instant::now();
    while !cell.node(full).log_text().contains("no disk space for more entries") {
        keeper.value("large").put(vec![b'x'; 60_000]).await.unwrap();
        assert!(began.elapsed() < LONG, "the follower was never full");
    }
    assert!(cell.node(full).is_running(), "node {full} has ended");
    std::fs::remove_file(filler(full)).unwrap();
    cell.until_in_sync(&[1, 2, 3]).await;
    guard.release().await.unwrap();
    Ok(())
}

/// An overloaded leader: it is paused for 60 ms of every 120 ms, which delays its messages. That is less than its lease, so
/// it keeps leading or another node takes over; in both cases no request fails.
#[tokio::test]
async fn slow_leader_fails_no_request() {
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
        cell.resume(leader);
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(guard.state(), GuardState::Held);
    }
    let slow = load.done() - before;
    assert!(slow > 0, "nothing was granted while the leader was slow");
    load.until_more(50).await;
    let leader_after = cell.leader().await;
    println!(
        "{slow} pairs in 5 s with a slow leader, {} in total; leader {leader} before, {leader_after} after",
        load.end().await
    );
    guard.release().await.unwrap();
    cell.until_in_sync(&[1, 2, 3]).await;
}
