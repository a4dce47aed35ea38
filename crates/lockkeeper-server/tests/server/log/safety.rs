//! S10: acknowledged entries survive a crash, and damage is never ignored silently.

use lockkeeper_server::raft::log::{Disk, Faults, FaultyDisk, LogError, LogStore, SECTOR_BYTES};
use lockkeeper_server::raft::types::Vote;
use openraft::storage::RaftLogStorage;
use proptest::prelude::*;

use super::*;

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Append { count: u64, bytes: usize },
    Vote,
    TruncateBack(u64),
    Purge(u64),
    Committed,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..5u64, prop_oneof![8 => 0..700usize, 1 => 3000..9000usize])
            .prop_map(|(count, bytes)| Step::Append { count, bytes }),
        2 => Just(Step::Vote),
        1 => (1..4u64).prop_map(Step::TruncateBack),
        1 => (0..8u64).prop_map(Step::Purge),
        1 => Just(Step::Committed),
    ];
    prop::collection::vec(step, 1..24)
}

/// The expected content after each change, in order. A recovered log may be in any state from `acknowledged` on.
struct Model {
    states: Vec<Holds>,
    acknowledged: usize,
    term: u64,
}

impl Model {
    fn now(&self) -> Holds {
        self.states.last().unwrap().clone()
    }

    /// Applies one step. Returns an error when the disk failed.
    async fn step(&mut self, store: &mut LogStore, step: &Step) -> std::io::Result<()> {
        let mut now = self.now();
        match step {
            Step::Append { count, bytes } => {
                let first = now.last.map_or(0, |last| last.index + 1);
                let entries: Vec<_> = (first..first + count).map(|i| entry(self.term, i, *bytes)).collect();
                for entry in &entries {
                    now.entries.push(entry.clone());
                    now.last = Some(entry.log_id);
                    self.states.push(now.clone());
                }
                append(store, entries).await?;
            }
            Step::Vote => {
                self.term += 1;
                now.vote = Some(Vote::new(self.term, 1));
                self.states.push(now);
                store.save_vote(&Vote::new(self.term, 1)).await?;
            }
            Step::TruncateBack(back) => {
                let keep = now.entries.len().saturating_sub(*back as usize);
                let last = if keep > 0 { Some(now.entries[keep - 1].log_id) } else { now.purged };
                now.entries.truncate(keep);
                now.last = last;
                self.states.push(now);
                // Not acknowledged: it becomes durable with the next write.
                return store.truncate_after(last).await;
            }
            Step::Purge(ahead) => {
                let Some(last) = now.last else { return Ok(()) };
                let from = now.purged.map_or(0, |purged| purged.index + 1);
                let Some(upto) =
                    now.entries.iter().find(|e| e.log_id.index >= (from + ahead).min(last.index))
                else {
                    return Ok(());
                };
                let upto = upto.log_id;
                now.entries.retain(|entry| entry.log_id.index > upto.index);
                now.purged = Some(upto);
                self.states.push(now);
                store.purge(upto).await?;
                if let Some(failure) = store.failure() {
                    return Err(failure.into());
                }
            }
            Step::Committed => {
                now.committed = now.last;
                self.states.push(now.clone());
                return store.save_committed(now.last).await;
            }
        }
        self.acknowledged = self.states.len() - 1;
        assert_eq!(holds(store).await.unwrap(), self.now(), "the log differs from its model while running");
        Ok(())
    }

    /// Checks that a recovered log is in an allowed state.
    fn check(&mut self, found: Holds) {
        let at = self.states.iter().rposition(|state| *state == found);
        let at = at.unwrap_or_else(|| panic!("no such state: {found:?}\nmodel: {:?}", self.now()));
        assert!(
            at >= self.acknowledged,
            "went back to state {at}, state {} was acknowledged",
            self.acknowledged
        );
        self.states = vec![found];
        self.acknowledged = 0;
    }
}

/// Returns a seeded generator of random choices.
fn chooser(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((seed >> 33) as usize) % below.max(1)
    }
}

/// Runs the steps until one fails.
async fn run(store: &mut LogStore, model: &mut Model, steps: &[Step]) {
    for step in steps {
        if model.step(store, step).await.is_err() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random histories with up to five runs on one disk. Each run crashes at a random write or sync, with each
    /// unsynced sector in its old or new state; the recovery may crash as well.
    #[test]
    fn acknowledged_entries_survive_any_crash(
        lives in prop::collection::vec((steps(), 0..40u64, any::<bool>(), 0..6u64), 1..5),
        seed in any::<u64>(),
    ) {
        block_on(async {
            let mut choose = chooser(seed);
            let mut disk = FaultyDisk::new();
            let mut model = Model { states: vec![Holds::default()], acknowledged: 0, term: 1 };
            for (steps, budget, by_write, open_budget) in lives {
                // The recovery may crash as well.
                disk.set_faults(Faults { syncs_left: Some(open_budget), ..Faults::default() });
                let opened = open(&disk, small());
                let (mut store, _) = match opened {
                    Ok(opened) => opened,
                    Err(error) => {
                        assert!(matches!(error, LogError::Disk { .. }), "{error}");
                        disk = disk.crash(&mut choose);
                        open(&disk, small()).expect("a crash while opening")
                    }
                };
                model.check(holds(&mut store).await.unwrap());
                disk.set_faults(Faults {
                    writes_left: by_write.then_some(budget),
                    syncs_left: (!by_write).then_some(budget),
                    ..Faults::default()
                });
                run(&mut store, &mut model, &steps).await;
                // The crash comes before the store is dropped: dropping writes what is queued.
                disk = disk.crash(&mut choose);
                drop(store);
                let (mut store, _) = open(&disk, small()).expect("opening after a crash");
                model.check(holds(&mut store).await.unwrap());
                drop(store);
            }
        });
    }
}

/// Returns a cleanly closed log in several segments with all kinds of records.
async fn sample() -> (FaultyDisk, Holds) {
    let disk = FaultyDisk::new();
    let (mut store, _) = open(&disk, small()).unwrap();
    store.save_vote(&Vote::new(1, 1)).await.unwrap();
    append(&mut store, (0..4).map(|i| entry(1, i, 900)).collect()).await.unwrap();
    append(&mut store, vec![entry(1, 4, 10)]).await.unwrap();
    store.truncate_after(Some(log_id(1, 3))).await.unwrap();
    store.save_committed(Some(log_id(1, 2))).await.unwrap();
    append(&mut store, vec![entry(2, 4, 1500), entry(2, 5, 100)]).await.unwrap();
    store.purge(log_id(1, 0)).await.unwrap();
    store.save_vote(&Vote::new(3, 1)).await.unwrap();
    append(&mut store, vec![entry(3, 6, 700)]).await.unwrap();
    let held = holds(&mut store).await.unwrap();
    drop(store);
    (disk, held)
}

/// Checks that the log is refused or complete, but never silently incomplete. Returns whether it is refused.
async fn refuses_or_holds(disk: &FaultyDisk, held: &Holds, what: &str) -> bool {
    match open(disk, small()) {
        Ok((mut store, _)) => {
            assert_eq!(&holds(&mut store).await.unwrap(), held, "silent loss: {what}");
            false
        }
        Err(LogError::Damaged { .. } | LogError::Format { .. }) => true,
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn flipped_byte_is_refused_or_harmless() {
    block_on(async {
        let (disk, held) = sample().await;
        let (mut refused, mut harmless) = (0, 0);
        for name in disk.list().unwrap() {
            for at in 0..disk.bytes(&name).unwrap().len() {
                for bits in [0x01, 0xff] {
                    let copy = disk.copy();
                    copy.flip(&name, at, bits).unwrap();
                    match refuses_or_holds(&copy, &held, &format!("{name} byte {at} bits {bits}")).await {
                        true => refused += 1,
                        false => harmless += 1,
                    }
                }
            }
        }
        assert!(refused > 1000 && harmless > 0, "{refused} refused, {harmless} harmless");
    });
}

#[test]
fn a_flipped_byte_before_a_torn_tail_is_refused_or_harmless() {
    block_on(async {
        let (disk, held) = sample().await;
        // The next write has three sectors, of which only the last reaches the disk.
        let (mut store, _) = open(&disk, small()).unwrap();
        disk.set_faults(Faults { syncs_left: Some(0), ..Faults::default() });
        append(&mut store, vec![entry(3, 7, 1200)]).await.unwrap_err();
        let mut sector = 0;
        let torn = disk.crash(&mut |below| {
            if below == 3 {
                sector += 1;
                usize::from(sector == 3)
            } else {
                1
            }
        });
        drop(store);
        let (store, report) = open(&torn.copy(), small()).unwrap();
        assert!(report.bytes_cut > 0, "the tail is not torn: {report:?}");
        drop(store);
        for name in torn.list().unwrap() {
            for at in 0..torn.bytes(&name).unwrap().len() {
                let copy = torn.copy();
                copy.flip(&name, at, 0x10).unwrap();
                refuses_or_holds(&copy, &held, &format!("{name} byte {at}")).await;
            }
        }
    });
}

#[test]
fn file_truncated_at_any_length_is_refused() {
    block_on(async {
        let (disk, held) = sample().await;
        for name in disk.list().unwrap() {
            let size = disk.bytes(&name).unwrap().len();
            for cut in (0..size).chain([size + 1, size + SECTOR_BYTES]) {
                let copy = disk.copy();
                copy.set_size(&name, cut).unwrap();
                assert!(
                    refuses_or_holds(&copy, &held, &format!("{name} cut at {cut}")).await,
                    "{name} {cut}"
                );
                // Padded with zeros, so that only the content shows the damage.
                let copy = disk.copy();
                copy.set_size(&name, cut.min(size)).unwrap();
                copy.set_size(&name, size).unwrap();
                let last = disk.list().unwrap().into_iter().next_back().unwrap();
                if name != last {
                    refuses_or_holds(&copy, &held, &format!("{name} zero from {cut}")).await;
                }
            }
        }
    });
}

#[test]
fn zeroed_sector_before_the_last_frame_is_refused() {
    block_on(async {
        let (disk, held) = sample().await;
        let names = disk.list().unwrap();
        for name in &names[..names.len() - 1] {
            let bytes = disk.bytes(name).unwrap();
            for sector in 0..bytes.len() / SECTOR_BYTES {
                let span = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                let was_written = bytes[span.clone()].iter().any(|byte| *byte != 0);
                let copy = disk.copy();
                copy.overwrite(name, span.start, &[0; SECTOR_BYTES]).unwrap();
                assert_eq!(refuses_or_holds(&copy, &held, &format!("{name} {sector}")).await, was_written);
            }
        }
    });
}

#[test]
fn missing_swapped_and_foreign_segments_are_refused() {
    block_on(async {
        let (disk, held) = sample().await;
        let names = disk.list().unwrap();
        assert!(names.len() >= 3, "{names:?}");
        for name in &names[..names.len() - 1] {
            let copy = disk.copy();
            copy.remove(name).unwrap();
            assert!(refuses_or_holds(&copy, &held, &format!("without {name}")).await, "{name}");
        }
        let copy = disk.copy();
        copy.rename(&names[0], "x").unwrap();
        copy.rename(&names[1], &names[0]).unwrap();
        copy.rename("x", &names[1]).unwrap();
        assert!(refuses_or_holds(&copy, &held, "swapped").await);

        // A segment of another log in the same place: valid in itself, but not the successor of the segment before.
        let (other, _) = {
            let other = FaultyDisk::new();
            let (mut store, _) = open(&other, small()).unwrap();
            append(&mut store, (0..12).map(|i| entry(9, i, 400)).collect()).await.unwrap();
            (other, store)
        };
        let copy = disk.copy();
        copy.overwrite(&names[1], 0, &other.bytes(&names[1]).unwrap()).unwrap();
        assert!(refuses_or_holds(&copy, &held, "foreign").await);

        // A repeated frame and garbage after the end.
        let last = names.last().unwrap();
        let bytes = disk.bytes(last).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() / SECTOR_BYTES + 1;
        for (offset, garbage) in [
            (end, bytes[SECTOR_BYTES..2 * SECTOR_BYTES].to_vec()),
            (end, vec![0xAB; SECTOR_BYTES]),
            (end + 1, vec![0xAB; SECTOR_BYTES]),
        ] {
            let copy = disk.copy();
            copy.overwrite(last, offset * SECTOR_BYTES, &garbage).unwrap();
            assert!(refuses_or_holds(&copy, &held, "garbage").await, "at sector {offset}");
        }
    });
}

#[test]
fn damage_error_names_the_position_and_the_next_step() {
    block_on(async {
        let (disk, _) = sample().await;
        let names = disk.list().unwrap();
        disk.flip(&names[0], SECTOR_BYTES + 100, 1).unwrap();
        let message = open(&disk, small()).unwrap_err().to_string();
        for part in [names[0].as_str(), "at byte 512", "snapshot restore", "add it again as a new member"] {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    });
}

/// A failed sync has lost the data, but the next process still reads it from the page cache. If recovery accepts it, it must
/// be made durable.
#[test]
fn data_of_a_failed_sync_that_reads_back_is_made_durable() {
    block_on(async {
        let disk = FaultyDisk::new();
        let (mut store, _) = open(&disk, small()).unwrap();
        append(&mut store, vec![entry(1, 0, 10)]).await.unwrap();
        disk.set_faults(Faults { syncs_left: Some(0), failed_sync_forgets: true, ..Faults::default() });
        append(&mut store, vec![entry(1, 1, 10)]).await.unwrap_err();
        drop(store);
        disk.set_faults(Faults::default());
        let (mut store, report) = open(&disk, small()).unwrap();
        assert_eq!(report.last_index, Some(1), "the entry reads back");
        let held = holds(&mut store).await.unwrap();
        let crashed = disk.crash(&mut |_| 0);
        let (mut store, _) = open(&crashed, small()).unwrap();
        assert_eq!(holds(&mut store).await.unwrap(), held);
    });
}

#[test]
fn after_a_failure_nothing_is_acknowledged_or_written_again() {
    for faults in [
        Faults { syncs_left: Some(0), ..Faults::default() },
        Faults { writes_left: Some(0), ..Faults::default() },
    ] {
        block_on(async {
            let disk = FaultyDisk::new();
            let (mut store, _) = open(&disk, small()).unwrap();
            append(&mut store, vec![entry(1, 0, 10)]).await.unwrap();
            disk.set_faults(faults);
            let first = append(&mut store, vec![entry(1, 1, 10)]).await.unwrap_err().to_string();
            assert!(first.contains("check the disk"), "{first}");
            disk.set_faults(Faults::default());
            let (syncs, bytes) = (disk.syncs(), disk.bytes(&disk.list().unwrap()[0]).unwrap());
            for later in [
                append(&mut store, vec![entry(1, 2, 10)]).await.unwrap_err(),
                store.save_vote(&Vote::new(5, 1)).await.unwrap_err(),
                store.purge(log_id(1, 0)).await.unwrap_err(),
                store.truncate_after(None).await.unwrap_err(),
                store.get_log_state().await.unwrap_err(),
            ] {
                assert_eq!(later.to_string(), first);
            }
            drop(store);
            assert_eq!((syncs, bytes), (disk.syncs(), disk.bytes(&disk.list().unwrap()[0]).unwrap()));
        });
    }
}
