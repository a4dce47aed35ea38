//! Slow disks: a shim delays every sync in the node's own process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};

use crate::harness::attempts;
use crate::harness::cell::Cell;
use crate::harness::client::Load;

/// Interposes the sync calls of the C library, and delays them by the milliseconds in a file.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int delayed(const char *name, int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *path = getenv("SLOW_SYNC_MS");
    FILE *file_with_delay = path ? fopen(path, "r") : NULL;
    int milliseconds = 0;
    if (file_with_delay) {
        if (fscanf(file_with_delay, "%d", &milliseconds) != 1) milliseconds = 0;
        fclose(file_with_delay);
    }
    if (milliseconds > 0) usleep(1000 * milliseconds);
    return real(file);
}

int fdatasync(int file) { return delayed("fdatasync", file); }
int fsync(int file) { return delayed("fsync", file); }
"#;

/// Compiles the shim with the C compiler that also links Rust programs.
fn build_shim(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("slow.c"), folder.join("slow.so"));
    std::fs::write(&source, SHIM).unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl").status();
    assert!(built.is_ok_and(|status| status.success()), "this test needs a C compiler");
    library
}

/// How long pairs are counted.
const MEASURED: Duration = Duration::from_secs(4);
const CLIENTS: usize = 64;
/// Pairs before the healthy follower is killed.
const PAIRS_BEFORE: u64 = 6_000;
/// A busy machine can be late.
const ATTEMPTS: usize = 3;

struct Disks(Cell);

impl Disks {
    async fn start() -> Disks {
        let mut cell = Cell::plan(3);
        let shim = build_shim(cell.folder());
        for id in 1..=3 {
            let delay_file = cell.path(&format!("slow-{id}"));
            let node = cell.node_mut(id);
            node.environment = vec![("LD_PRELOAD".into(), shim.clone()), ("SLOW_SYNC_MS".into(), delay_file)];
        }
        cell.spawn_all();
        cell.until_agreed().await;
        Disks(cell)
    }

    fn set_delay(&self, id: u64, milliseconds: u32) {
        std::fs::write(self.0.path(&format!("slow-{id}")), milliseconds.to_string()).unwrap();
    }

    /// The number of entries by which a follower lags.
    async fn lag(&self, leader: u64, follower: u64) -> u64 {
        let status = self.0.get(leader, "/v1/status").await.body;
        let members = status["members"].as_array().expect("members").iter();
        let mut its = members.filter(|member| member["node_id"] == follower);
        its.next().and_then(|member| member["lag"].as_u64()).expect("its lag")
    }

    /// The total duration of a node's syncs, from its metrics.
    async fn seconds_of_syncs(&self, id: u64) -> f64 {
        self.0.metric(id, "lockkeeper_wal_fsync_seconds_sum").await
    }

    /// How long a leader has waited for lagging followers.
    async fn seconds_of_pauses(&self, leader: u64) -> f64 {
        self.0.metric(leader, "lockkeeper_proposal_pause_seconds_total").await
    }
}

/// Entries are durable on a majority before they are acknowledged, and the leader's own disk need not be part of it.
#[tokio::test]
async fn slow_disk_of_the_leader_does_not_slow_the_cell_and_three_slow_disks_lose_nothing() {
    let disks = Disks::start().await;
    let cell = &disks.0;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let mut load = Load::start(cell, 3).await;
    load.until_more(100).await;

    let leader = cell.leader().await;
    let before = disks.seconds_of_syncs(leader).await;
    disks.set_delay(leader, 250);
    let (one, _) = measure(&load).await;
    assert!(disks.seconds_of_syncs(leader).await > before + 1.0, "the leader's disk was not slow");
    assert!(one > 4 * 4 * 3, "{one} pairs in 4 s: the leader's disk slowed the cell");
    assert_eq!(guard.state(), GuardState::Held);

    for id in 1..=3 {
        disks.set_delay(id, 100);
    }
    let (all, took) = measure(&load).await;
    assert!(all > 0, "nothing was granted while all disks were slow");
    // A pair is two entries in sequence, each with at least one sync on two disks. More pairs mean missing syncs.
    let most = 3 * (took.as_millis() as u64 / (2 * 100) + 2);
    assert!(all <= most, "{all} pairs in {took:?}, but at most {most} can be durable on a majority");
    assert_eq!(guard.state(), GuardState::Held);

    for id in 1..=3 {
        disks.set_delay(id, 0);
    }
    load.until_more(100).await;
    println!(
        "pairs in 4 s: {one} with 250 ms a sync on the leader, {all} with 100 ms on all; {} in total",
        load.end().await
    );
    guard.release().await.unwrap();
    cell.until_in_sync(&[1, 2, 3]).await;
}

/// The pairs of a period, and how long it was. A failed request fails the test.
async fn measure(load: &Load) -> (u64, Duration) {
    let (began, before) = (Instant::now(), load.done());
    tokio::time::sleep(MEASURED).await;
    let measured = (load.done() - before, began.elapsed());
    println!("{} pairs in {:?}", measured.0, measured.1);
    measured
}

/// A follower with a slow disk keeps up, because one sync covers all entries that have arrived. When the healthy follower
/// fails, writes continue with the slow one. With these delays it lags by less than the leader tolerates;
/// `lockkeeper-server/tests/server/throttle.rs` has a follower that lags by more.
#[tokio::test]
async fn writes_continue_soon_when_only_a_follower_with_a_slow_disk_is_left() {
    // With one sync per message it took 9 to 12 s.
    for (milliseconds, within_ms) in [(8, 1_500), (30, 3_000)] {
        attempts(ATTEMPTS, async || {
            let silence = silence_after_the_healthy_follower_died(milliseconds).await?;
            match silence < Duration::from_millis(within_ms) {
                true => Ok(()),
                false => Err(format!("{milliseconds} ms a sync: no writes for {silence:?}")),
            }
        })
        .await;
    }
}

/// Returns how long the next 100 pairs took.
async fn silence_after_the_healthy_follower_died(milliseconds: u32) -> Result<Duration, String> {
    let mut disks = Disks::start().await;
    let leader = disks.0.leader().await;
    let [slow, healthy] = disks.0.others(leader)[..] else { panic!("three nodes") };
    disks.set_delay(slow, milliseconds);
    let mut load = Load::start(&disks.0, CLIENTS).await;
    let (before, mut lag) = (load.done(), 0);
    while load.done() < before + PAIRS_BEFORE {
        load.until_more(PAIRS_BEFORE / 30).await;
        lag = lag.max(disks.lag(leader, slow).await);
    }
    let paused = disks.seconds_of_pauses(leader).await;
    if disks.0.leader().await != leader {
        return Err("the load changed the leader".to_owned());
    }
    let pairs = load.done() - before;

    disks.0.kill(healthy);
    let killed = Instant::now();
    load.until_more(100).await;
    let silence = killed.elapsed();
    println!(
        "{milliseconds} ms a sync: {pairs} pairs, at most {lag} entries behind, {paused:.3} s of pauses; 100 pairs within {} ms of \
         the kill",
        silence.as_millis()
    );
    disks.set_delay(slow, 0);
    load.end().await;
    Ok(silence)
}
