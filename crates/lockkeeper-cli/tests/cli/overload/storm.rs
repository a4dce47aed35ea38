//! Open-loop load: clients that send at a fixed rate, whatever the answers are, and whether or not the node reads.

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_api::v1::{self, answer, operation};
use lockkeeper_net::frame::{self, GREETING};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

pub(super) const CONNECTIONS: u64 = 8;
const PER_FRAME: u64 = 100;
/// A long name, so that every bound in bytes is reached within seconds.
const LOCK_NAME_BYTES: usize = 400;

fn held_lock() -> String {
    "crowded/".repeat(LOCK_NAME_BYTES / 8)
}

/// An acquire of a held lock: it goes through the log, is answered `busy` and leaves nothing behind.
pub(super) fn busy_acquire(session: &str) -> operation::Kind {
    operation::Kind::Acquire(v1::AcquireRequest {
        session: session.to_owned(),
        lock: held_lock(),
        ..Default::default()
    })
}

#[derive(Default)]
pub(super) struct Storm {
    stop: AtomicBool,
    /// Interval between two frames of one connection.
    every_ns: AtomicU64,
    /// Acquires that went into the socket.
    pub(super) sent: AtomicU64,
    /// Acquires dropped because the socket was full.
    pub(super) blocked: AtomicU64,
    /// Answered `busy`: the acquire was carried out.
    pub(super) busy: AtomicU64,
    /// Answered `limit` with a valid retry hint.
    pub(super) limited: AtomicU64,
    /// Answered `limit` without a valid retry hint.
    pub(super) without_hint: AtomicU64,
    pub(super) other: AtomicU64,
}

impl Storm {
    /// Offers acquires at this rate until it is stopped.
    pub(super) fn start(address: &str, session: &str, per_second: u64) -> (Arc<Storm>, Vec<JoinHandle<()>>) {
        let storm = Arc::new(Storm::default());
        storm.pace(per_second);
        let threads = (0..CONNECTIONS).flat_map(|_| storm.connection(address, session)).collect();
        (storm, threads)
    }

    /// Changes the rate.
    pub(super) fn pace(&self, per_second: u64) {
        self.every_ns.store(CONNECTIONS * PER_FRAME * 1_000_000_000 / per_second.max(1), Ordering::Relaxed);
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The number of offered acquires.
    pub(super) fn offered(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) + self.blocked.load(Ordering::Relaxed)
    }

    /// Starts a thread that sends, and one that reads the answers.
    fn connection(self: &Arc<Storm>, address: &str, session: &str) -> [JoinHandle<()>; 2] {
        let mut stream = TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut stream, GREETING).unwrap();
        stream.read_exact(&mut [0; GREETING.len()]).unwrap();
        let operations =
            (1..=PER_FRAME).map(|id| v1::Operation { id, kind: Some(busy_acquire(session)) }).collect();
        let mut bytes = BytesMut::new();
        frame::encode(&v1::ClientFrame { operations }, &mut bytes);
        let (reader, storm) = (stream.try_clone().unwrap(), Arc::clone(self));
        let writes = std::thread::spawn(move || {
            storm.offer(&stream, &bytes);
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        let storm = Arc::clone(self);
        [writes, std::thread::spawn(move || storm.read(reader))]
    }

    /// Sends each frame when it is due. If the socket is full, the frame is dropped instead of delayed, as in an open-loop
    /// load.
    fn offer(&self, stream: &TcpStream, frame: &[u8]) {
        let mut due = Instant::now();
        // The rest of the frame that is being sent.
        let mut left: &[u8] = &[];
        while !self.stop.load(Ordering::Relaxed) {
            let is_next = left.is_empty();
            if is_next {
                left = frame;
            }
            let before = left.len();
            while !left.is_empty() {
                match send(stream, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    Ok(count) => left = &left[count..],
                    Err(Errno::AGAIN) => break,
                    Err(_) => return,
                }
            }
            let went = is_next && left.len() < before;
            if is_next && !went {
                left = &[];
            }
            let counter = if went { &self.sent } else { &self.blocked };
            counter.fetch_add(PER_FRAME, Ordering::Relaxed);
            due += Duration::from_nanos(self.every_ns.load(Ordering::Relaxed));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    fn read(&self, mut stream: TcpStream) {
        let (mut buffer, mut bytes) = (BytesMut::new(), vec![0; 1 << 16]);
        loop {
            while let Some(frame) = frame::decode::<v1::ServerFrame>(&mut buffer, 64 << 20).unwrap() {
                for answer in frame.answers {
                    self.count(answer.kind);
                }
            }
            match stream.read(&mut bytes) {
                Ok(count) if count > 0 => buffer.extend_from_slice(&bytes[..count]),
                _ => return,
            }
        }
    }

    fn count(&self, kind: Option<answer::Kind>) {
        let counter = match kind {
            Some(answer::Kind::Error(error)) => match error.code.as_str() {
                "busy" => &self.busy,
                "limit" if (200..=5_000).contains(&error.retry_after_ms) => &self.limited,
                "limit" => &self.without_hint,
                _ => &self.other,
            },
            _ => &self.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
