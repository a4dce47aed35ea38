//! Runs every fuzz target on mutations of a corpus: seeded, so that a failure is repeatable, and on stable Rust. `fuzz/` has
//! the same targets for cargo-fuzz, which is guided by coverage.
//!
//! LOCKKEEPER_FUZZ_SECONDS (60) is the time for all targets together; LOCKKEEPER_FUZZ_SEED repeats a run.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockkeeper_server::fuzz::GROUPS;

/// Longest input.
const BYTES_MAX: usize = 16 * 1024;
/// Bytes that are often edge cases.
const EDGES: [u8; 12] = [0, 1, 2, 0x7f, 0x80, 0xff, b'%', b'"', b'{', b':', b'/', b'\n'];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound.max(1) as u64) as usize
    }
}

fn mutate(random: &mut Random, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    for _ in 0..=random.below(6) {
        let at = random.below(input.len());
        let length = 1 + random.below(16);
        match random.below(9) {
            _ if input.is_empty() => input.push(random.number() as u8),
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = EDGES[random.below(EDGES.len())],
            2 => input[at] = random.number() as u8,
            3 => input.insert(at, EDGES[random.below(EDGES.len())]),
            4 => drop(input.drain(at..(at + length).min(input.len()))),
            5 => {
                let copied = input[at..(at + length).min(input.len())].to_vec();
                let to = random.below(input.len());
                input.splice(to..to, copied);
            }
            6 => input.truncate(at),
            7 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len());
                input.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let large = random.number() >> random.below(64);
                let bytes = large.to_be_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                for (place, byte) in input[at..].iter_mut().zip(&bytes[8 - width..]) {
                    *place = *byte;
                }
            }
        }
    }
    input.truncate(BYTES_MAX);
}

fn folder(group: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(group)
}

fn corpus(group: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder(group)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn fuzz(group: &str) {
    let seed = setting("LOCKKEEPER_FUZZ_SEED")
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    let seconds = setting("LOCKKEEPER_FUZZ_SECONDS").unwrap_or(60) as f64 / GROUPS.len() as f64;
    let (_, decode) = GROUPS.iter().find(|(name, _)| *name == group).unwrap();
    let corpus = corpus(group);
    assert!(corpus.len() >= 3, "{group} has a corpus of {}", corpus.len());
    corpus.iter().for_each(|input| decode(input));
    let (began, mut tries) = (Instant::now(), 0u64);
    let mut random = Random(seed);
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        let mut input = corpus[random.below(corpus.len())].clone();
        mutate(&mut random, &mut input, &corpus);
        tries += 1;
        let started = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| decode(&input))).is_err() {
            let path = std::env::temp_dir().join(format!("lockkeeper-fuzz-{group}-{seed}"));
            std::fs::write(&path, &input).unwrap();
            panic!(
                "{group}: try {tries} with LOCKKEEPER_FUZZ_SEED={seed}; the bytes are in {}",
                path.display()
            );
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{group}: {} bytes took too long", input.len());
    }
    println!("{group}: {tries} tries in {seconds:.0} s, LOCKKEEPER_FUZZ_SEED={seed}");
}

#[test]
fn wire() {
    fuzz("wire");
}

#[test]
fn log() {
    fuzz("log");
}

#[test]
fn snapshot() {
    fuzz("snapshot");
}

#[test]
fn sequencer() {
    fuzz("sequencer");
}

#[test]
fn http() {
    fuzz("http");
}

#[test]
fn peers() {
    fuzz("peers");
}

#[test]
fn request_filter() {
    fuzz("request_filter");
}

#[test]
fn grpc() {
    fuzz("grpc");
}

#[test]
fn access() {
    fuzz("access");
}

#[test]
fn frame_limits() {
    fuzz("frame_limits");
}

/// Regenerates the corpus from valid examples. Run it after an extension of a format.
#[test]
#[ignore = "writes to fuzz/corpus"]
fn write_the_corpus() {
    for (group, name, bytes) in lockkeeper_server::fuzz::examples() {
        std::fs::create_dir_all(folder(group)).unwrap();
        std::fs::write(folder(group).join(name), bytes).unwrap();
    }
}
