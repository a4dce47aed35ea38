//! Disks that take their time: every sync of a node is held back, in the node's own process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};

use crate::harness::cell::Cell;
use crate::harness::client::Load;

/// Stands before the C library's own calls, and sleeps for as many milliseconds as a file says.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int slowly(const char *name, int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *path = getenv("SLOW_SYNC_MS");
    FILE *said = path ? fopen(path, "r") : NULL;
    int milliseconds = 0;
    if (said) {
        if (fscanf(said, "%d", &milliseconds) != 1) milliseconds = 0;
        fclose(said);
    }
    if (milliseconds > 0) usleep(1000 * milliseconds);
    return real(file);
}

int fdatasync(int file) { return slowly("fdatasync", file); }
int fsync(int file) { return slowly("fsync", file); }
"#;

/// Compiled with what links Rust programs, too.
fn build_shim(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("slow.c"), folder.join("slow.so"));
    std::fs::write(&source, SHIM).unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl").status();
    assert!(built.is_ok_and(|status| status.success()), "this test needs a C compiler");
    library
}

/// How long the pairs are counted.
const WATCHED: Duration = Duration::from_secs(4);

struct Disks(Cell);

impl Disks {
    async fn start() -> Disks {
        let mut cell = Cell::plan(3);
        let shim = build_shim(cell.folder());
        for id in 1..=3 {
            let said = cell.path(&format!("slow-{id}"));
            let node = cell.node_mut(id);
            node.environment = vec![("LD_PRELOAD".into(), shim.clone()), ("SLOW_SYNC_MS".into(), said)];
        }
        cell.spawn_all();
        cell.until_agreed().await;
        Disks(cell)
    }

    fn take(&self, id: u64, milliseconds: u32) {
        std::fs::write(self.0.path(&format!("slow-{id}")), milliseconds.to_string()).unwrap();
    }

    /// How many entries of the leader a follower lacks.
    async fn lag(&self, leader: u64, follower: u64) -> u64 {
        let status = self.0.get(leader, "/v1/status").await.body;
        let members = status["members"].as_array().expect("members").iter();
        let mut its = members.filter(|member| member["node_id"] == follower);
        its.next().and_then(|member| member["lag"].as_u64()).expect("its lag")
    }

    /// How long all syncs of a node have taken, as it has measured them itself.
    async fn seconds_of_syncs(&self, id: u64) -> f64 {
        let page = self.0.get(id, "/metrics").await.body;
        let mut lines = page.as_str().expect("text").lines();
        let line = lines.find(|line| line.starts_with("lockkeeper_wal_fsync_seconds_sum"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("the metric of syncs")
    }
}

/// Entries are durable on a majority before they are acknowledged, and the leader's own disk need not be part of it.
#[tokio::test]
async fn a_slow_disk_slows_nobody_and_three_slow_disks_lose_nothing() {
    let disks = Disks::start().await;
    let cell = &disks.0;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let mut load = Load::start(cell, 3).await;
    load.until_more(100).await;

    let leader = cell.leader().await;
    let before = disks.seconds_of_syncs(leader).await;
    disks.take(leader, 250);
    let one = grants_in(&load, WATCHED).await;
    assert!(disks.seconds_of_syncs(leader).await > before + 1.0, "the leader's disk was not slow");
    assert!(one > 4 * 4 * 3, "{one} pairs in 4 s: the cell went at the pace of the leader's disk");
    assert_eq!(guard.state(), GuardState::Held);

    for id in 1..=3 {
        disks.take(id, 100);
    }
    let all = grants_in(&load, WATCHED).await;
    assert!(all > 0, "nothing was granted while all disks were slow");
    // A pair is two entries one after the other, each at least one sync on two disks: whoever does more has not waited.
    let most = 3 * (WATCHED.as_millis() as u64 / (2 * 100) + 2);
    assert!(all <= most, "{all} pairs in {WATCHED:?}, and {most} at most can be on a majority of the disks");
    assert_eq!(guard.state(), GuardState::Held);

    for id in 1..=3 {
        disks.take(id, 0);
    }
    load.until_more(100).await;
    println!(
        "pairs in 4 s: {one} with 250 ms a sync on the leader, {all} with 100 ms on all; {} in all",
        load.end().await
    );
    guard.release().await.unwrap();
    cell.until_even(&[1, 2, 3]).await;
}

/// The clients of the load count requests that fail, and end the test.
async fn grants_in(load: &Load, time: Duration) -> u64 {
    let (began, before) = (Instant::now(), load.done());
    tokio::time::sleep(time).await;
    println!("{} pairs in {:?}", load.done() - before, began.elapsed());
    load.done() - before
}

/// A follower with a slow disk keeps up, because one sync covers all that has arrived: when the healthy follower fails,
/// writes go on with it.
#[tokio::test]
async fn writes_go_on_soon_when_only_a_follower_with_a_slow_disk_is_left() {
    // On a machine with time to spare it takes less than a second. With one sync for each message it took 9 to 12 s.
    let within = Duration::from_secs(6);
    for milliseconds in [8, 30] {
        let mut disks = Disks::start().await;
        let leader = disks.0.leader().await;
        let [slow, healthy] = disks.0.others(leader)[..] else { panic!("three nodes") };
        disks.take(slow, milliseconds);
        let mut load = Load::start(&disks.0, 24).await;
        let before = load.done();
        load.until_more(1_500).await;
        let lag = disks.lag(leader, slow).await;
        assert_eq!(disks.0.leader().await, leader, "the load must not change the leader");

        disks.0.kill(healthy);
        let killed = Instant::now();
        load.until_more(100).await;
        let silence = killed.elapsed();
        println!(
            "{milliseconds} ms a sync: {} pairs, {lag} entries behind; 100 pairs within {} ms of the kill",
            load.done() - before,
            silence.as_millis()
        );
        assert!(silence < within, "no writes for {silence:?} with {milliseconds} ms a sync");
        disks.take(slow, 0);
        load.end().await;
    }
}
