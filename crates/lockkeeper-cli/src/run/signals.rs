//! Signals that `run` handles: it forwards them, ends a wait, or reaps children.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Handled signals. TSTP is not forwarded: see [`Signals::next`].
const HANDLED: [Signal; 11] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::CONT,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CHILD,
];

/// A stream of signals.
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Starts to receive signals.
    pub(crate) fn listen() -> io::Result<Signals> {
        let ignored = ignored();
        let streams = HANDLED
            .into_iter()
            // Signals ignored by nohup, or in the background of a script, stay ignored, and the command inherits that.
            .filter(|signal| *signal == Signal::CHILD || !is_in(ignored, *signal))
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<io::Result<_>>()?;
        Ok(Signals { streams })
    }

    /// The next signal. Cancel-safe.
    ///
    /// TSTP (Ctrl-Z) is received too and ignored: if `run` stopped, it would lose its lease unnoticed.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that ends a program by default.
    pub(crate) async fn next_fatal(&mut self) -> Signal {
        loop {
            match self.next().await {
                // There is no command yet, but process 1 inherits the orphans of others.
                Signal::CHILD => super::command::reap(|_, _| {}),
                Signal::CONT | Signal::WINCH | Signal::TSTP => {}
                signal => return signal,
            }
        }
    }
}

/// The exit code of shells for a process that a signal ended.
pub(crate) fn exit_code(signal: Signal) -> u8 {
    128 + u8::try_from(signal.as_raw()).unwrap_or(0)
}

fn is_in(mask: u64, signal: Signal) -> bool {
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// The signals that were ignored at the start, as a mask.
fn ignored() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored_in(&status))
}

fn ignored_in(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_of_ignored_signals_is_parsed() {
        let mask = ignored_in("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n");
        assert!(is_in(mask, Signal::HUP) && is_in(mask, Signal::PIPE) && !is_in(mask, Signal::INT));
    }
}
