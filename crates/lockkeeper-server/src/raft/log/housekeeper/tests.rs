use std::time::Instant;

use super::super::disk::{Faults, FaultyDisk};
use super::*;

const SECTORS: u32 = 16;
const SEGMENT_BYTES: u64 = (SECTORS - FIRST_SECTOR) as u64 * SECTOR_BYTES as u64;
const LONG: Duration = Duration::from_secs(60);

/// A housekeeper with its thread.
struct Running {
    housekeeper: Arc<Housekeeper>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(disk: &FaultyDisk) -> Running {
        let spares = Spare::open_all(disk, SECTORS).unwrap();
        let housekeeper = Arc::new(Housekeeper::new(Arc::new(disk.clone()), SECTORS, None, 1, spares));
        housekeeper.enable_thread();
        Running { housekeeper, thread: None }
    }

    fn run(&mut self) {
        let housekeeper = Arc::clone(&self.housekeeper);
        self.thread = Some(std::thread::spawn(move || housekeeper.run()));
    }

    fn spare_bytes(&self) -> u64 {
        self.housekeeper.space(0, 0).spare_bytes
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.housekeeper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn full() -> Faults {
    Faults { capacity_bytes: Some(0), ..Faults::default() }
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < LONG, "{what} did not happen");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn segment_that_is_being_created_is_pending_and_only_a_failed_one_has_failed() {
    let disk = FaultyDisk::new();
    disk.set_faults(full());
    let mut running = Running::start(&disk);
    let housekeeper = Arc::clone(&running.housekeeper);
    assert_eq!(housekeeper.ensure_next(), Readiness::Pending, "no attempt was made yet");
    running.run();
    tokio::time::timeout(LONG, housekeeper.attempted.notified()).await.expect("an attempt");
    assert_eq!(housekeeper.ensure_next(), Readiness::Failed);
    disk.set_faults(Faults::default());
    tokio::time::timeout(LONG, housekeeper.attempted.notified()).await.expect("another attempt");
    eventually("the next segment", || housekeeper.ensure_next() == Readiness::Ready);
}

#[test]
fn spares_become_segments_on_a_full_disk_and_are_replaced_when_there_is_space() {
    let disk = FaultyDisk::new();
    let mut running = Running::start(&disk);
    running.run();
    let housekeeper = Arc::clone(&running.housekeeper);
    housekeeper.keep_spares(3);
    eventually("three spares", || running.spare_bytes() == 3 * SEGMENT_BYTES);
    eventually("the next segment", || housekeeper.has_next());
    disk.set_faults(full());
    for number in 1..=4 {
        let segment = housekeeper.next_segment(number, SECTORS).expect("a segment in spite of the full disk");
        assert_eq!(segment.number, number);
        let opened = Segment::open(&disk, number).expect("it is complete");
        assert_eq!(opened.sectors, SECTORS);
        eventually("the shortage to be noticed", || housekeeper.space(0, 0).trouble.is_some());
        if number < 4 {
            eventually("the segment after it", || housekeeper.ensure_next() == Readiness::Ready);
        }
    }
    assert_eq!(running.spare_bytes(), 0);
    assert!(housekeeper.next_segment(5, SECTORS).is_err());
    disk.set_faults(Faults::default());
    eventually("space", || housekeeper.has_next() && running.spare_bytes() == 3 * SEGMENT_BYTES);
    assert!(housekeeper.space(0, 0).trouble.is_none());
}

#[test]
fn spares_survive_a_restart_unless_their_size_is_wrong() {
    let disk = FaultyDisk::new();
    for (number, sectors) in [(1, SECTORS), (2, 2 * SECTORS)] {
        Spare::create(&disk, number, sectors).unwrap();
    }
    let running = Running::start(&disk);
    assert_eq!(running.spare_bytes(), SEGMENT_BYTES);
    assert_eq!(disk.list().unwrap().len(), 1);
}

/// An operator who needs space may delete the spares of a running node.
#[test]
fn deleted_spares_do_not_block_the_log() {
    let disk = FaultyDisk::new();
    for number in 1..=2 {
        Spare::create(&disk, number, SECTORS).unwrap();
    }
    let running = Running::start(&disk);
    for name in disk.list().unwrap() {
        disk.remove(&name).unwrap();
    }
    for number in 1..=2 {
        assert_eq!(running.housekeeper.next_segment(number, SECTORS).expect("a new segment").number, number);
    }
    assert_eq!(running.spare_bytes(), 0);
}
