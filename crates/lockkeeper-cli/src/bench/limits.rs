//! The limits of the machine: no durable lock service can be faster.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::contender::BenchError;

const SYNCS: usize = 300;
const ROUND_TRIPS: usize = 2_000;
/// Size of a log entry with a few operations.
const APPEND_BYTES: usize = 4 * 1024;

/// The limits of the machine, measured in the same run.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct MachineLimits {
    /// Median of an append to a file with fdatasync, in microseconds.
    pub(super) append_fdatasync_p50_us: f64,
    /// Median of a round trip over loopback between two threads, in microseconds.
    pub(super) loopback_round_trip_p50_us: f64,
}

impl MachineLimits {
    /// Measures the limits, in one to two seconds.
    pub(super) fn measure(scratch_dir: &Path) -> Result<MachineLimits, BenchError> {
        let failed = |error| BenchError::Limits { folder: scratch_dir.display().to_string(), error };
        Ok(MachineLimits {
            append_fdatasync_p50_us: append_fdatasync(scratch_dir).map_err(failed)?,
            loopback_round_trip_p50_us: loopback_round_trip().map_err(failed)?,
        })
    }

    /// Duration of a durable answer over the network: one append with fdatasync and one round trip.
    pub(super) fn durable_answer_us(&self) -> f64 {
        self.append_fdatasync_p50_us + self.loopback_round_trip_p50_us
    }
}

fn append_fdatasync(folder: &Path) -> io::Result<f64> {
    let path = folder.join(format!(".lockkeeper-bench-{}", std::process::id()));
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let bytes = vec![0x5a; APPEND_BYTES];
    let measured = (0..SYNCS)
        .map(|_| {
            let began = Instant::now();
            file.write_all(&bytes)?;
            file.sync_data()?;
            Ok(began.elapsed())
        })
        .collect::<io::Result<Vec<_>>>();
    drop(file);
    std::fs::remove_file(&path)?;
    Ok(median_us(measured?))
}

fn loopback_round_trip() -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut byte = [0; 64];
        for _ in 0..ROUND_TRIPS {
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut byte = [0; 64];
    let measured = (0..ROUND_TRIPS)
        .map(|_| {
            let began = Instant::now();
            stream.write_all(&byte)?;
            stream.read_exact(&mut byte)?;
            Ok(began.elapsed())
        })
        .collect::<io::Result<Vec<_>>>()?;
    match echo.join() {
        Ok(result) => result?,
        Err(_) => return Err(io::Error::other("the echo thread panicked")),
    }
    Ok(median_us(measured))
}

fn median_us(mut measured: Vec<Duration>) -> f64 {
    measured.sort_unstable();
    measured.get(measured.len() / 2).map_or(0.0, |median| median.as_nanos() as f64 / 1_000.0)
}
