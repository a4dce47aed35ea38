//! The wait for the lock, with its progress messages.

use std::io::{IsTerminal, Write};
use std::sync::mpsc;
use std::time::Duration;

use lockkeeper::{Error, Fencing, Guard, Keeper, Lock, LockState};

use crate::duration::humanize;
use crate::escape;

/// The wait before the first message.
const FIRST_MESSAGE_AFTER: Duration = Duration::from_secs(1);
/// The longest pause between messages.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Acquires the lock. After a second it reports progress: on a terminal in one line that is updated, otherwise (only with
/// `--verbose`) in a line for each change.
pub(crate) async fn acquire<F: Fencing>(
    keeper: &Keeper<F>,
    lock: &Lock<F>,
    name: &str,
    is_table: bool,
    verbose: bool,
) -> Result<Guard<F>, Error> {
    let is_terminal = std::io::stderr().is_terminal();
    if !is_table || !(is_terminal || verbose) {
        return lock.acquire().await;
    }
    let writer = ProgressWriter::start(is_terminal);
    tokio::select! {
        guard = lock.acquire() => guard,
        never = report_progress(keeper, name, &writer) => match never {},
    }
}

async fn report_progress<F: Fencing>(
    keeper: &Keeper<F>,
    name: &str,
    writer: &ProgressWriter,
) -> std::convert::Infallible {
    let mut pause = FIRST_MESSAGE_AFTER;
    loop {
        tokio::time::sleep(pause).await;
        pause = if writer.is_terminal { FIRST_MESSAGE_AFTER } else { (pause * 2).min(PAUSE_MAX) };
        let text = match (keeper.who(name).await, keeper.session_ids().await) {
            (Ok(lock), Ok(ours)) => {
                format!("waiting for \"{name}\"{}{}", held_by(&lock), position(&lock, &ours))
            }
            (Err(error), _) | (_, Err(error)) => format!("waiting for \"{name}\": {error}"),
        };
        writer.write_line(text);
    }
}

/// The holder, as the rest of a sentence.
pub(crate) fn held_by(lock: &LockState) -> String {
    match &lock.holders[..] {
        [] if !lock.closed.is_zero() => format!(", in lock-delay for another {}", humanize(lock.closed)),
        [] => String::new(),
        // A line break in an owner must not look like another message.
        [only] => format!(", held by {} for {}", escape::line(&only.owner), humanize(only.held)),
        [first, others @ ..] => {
            let owner = escape::line(&first.owner);
            format!(", held by {owner} and {} more for {}", others.len(), humanize(first.held))
        }
    }
}

fn position(lock: &LockState, ours: &[String]) -> String {
    match lock.queue.iter().find(|waiter| is_ours(&waiter.session, ours)) {
        Some(waiter) => format!(", position {} of {}", waiter.position, lock.waiting),
        None => String::new(),
    }
}

/// Whether a session is ours. A cell shows the first digits of an id only.
fn is_ours(shown: &str, ours: &[String]) -> bool {
    !shown.is_empty() && ours.iter().any(|id| id.starts_with(shown))
}

/// Writes to stderr from a separate thread: a terminal stopped with Ctrl-S, or a full pipe, must not block the renewal of
/// the session.
struct ProgressWriter {
    is_terminal: bool,
    /// None once the writer is being dropped.
    texts: Option<mpsc::SyncSender<String>>,
    finished: mpsc::Receiver<()>,
}

impl ProgressWriter {
    fn start(is_terminal: bool) -> ProgressWriter {
        let (texts, to_write) = mpsc::sync_channel::<String>(1);
        let (end, finished) = mpsc::channel();
        std::thread::spawn(move || {
            super::terminal::block_sigttou();
            let mut stderr = std::io::stderr();
            let mut has_written = false;
            while let Ok(text) = to_write.recv() {
                // Returns to the start of the line, and clears it.
                let _ = match is_terminal {
                    true => write!(stderr, "\r\x1b[Klockkeeper: {text}"),
                    false => writeln!(stderr, "lockkeeper: {text}"),
                };
                has_written = true;
            }
            if is_terminal && has_written {
                let _ = write!(stderr, "\r\x1b[K");
            }
            let _ = end.send(());
        });
        ProgressWriter { is_terminal, texts: Some(texts), finished }
    }

    /// Writes a message. Drops it if the previous one is still being written.
    fn write_line(&self, text: String) {
        if let Some(texts) = &self.texts {
            let _ = texts.try_send(escape::line(&text).into_owned());
        }
    }
}

impl Drop for ProgressWriter {
    /// Waits briefly until the line is cleared, so that other output does not mix with it.
    fn drop(&mut self) {
        self.texts = None;
        let _ = self.finished.recv_timeout(Duration::from_millis(200));
    }
}
