//! The wait for the lock, with its progress messages.

use std::io::{IsTerminal, Write};
use std::sync::mpsc;
use std::time::Duration;

use lockkeeper::{Error, Fencing, Guard, Keeper, Lock, LockState};

use crate::duration::words;
use crate::escape;

/// The wait before the first message.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// The longest pause between messages.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Acquires the lock. After a second it reports progress: on a terminal in one line that is updated, otherwise (only with
/// `--verbose`) in a line for each change.
pub(crate) async fn acquire<F: Fencing>(
    keeper: &Keeper<F>,
    lock: &Lock<F>,
    name: &str,
    show: bool,
    verbose: bool,
) -> Result<Guard<F>, Error> {
    let is_terminal = std::io::stderr().is_terminal();
    if !show || !(is_terminal || verbose) {
        return lock.acquire().await;
    }
    let voice = Voice::start(is_terminal);
    tokio::select! {
        guard = lock.acquire() => guard,
        never = tell(keeper, name, &voice) => match never {},
    }
}

async fn tell<F: Fencing>(keeper: &Keeper<F>, name: &str, voice: &Voice) -> std::convert::Infallible {
    let mut pause = FIRST_WORD;
    loop {
        tokio::time::sleep(pause).await;
        pause = if voice.is_terminal { FIRST_WORD } else { (pause * 2).min(PAUSE_MAX) };
        let text = match (keeper.who(name).await, keeper.session_ids().await) {
            (Ok(lock), Ok(ours)) => {
                format!("waiting for \"{name}\"{}{}", held_by(&lock), position(&lock, &ours))
            }
            (Err(error), _) | (_, Err(error)) => format!("waiting for \"{name}\": {error}"),
        };
        voice.say(text);
    }
}

/// The holder, as the rest of a sentence.
pub(crate) fn held_by(lock: &LockState) -> String {
    match &lock.holders[..] {
        [] if !lock.closed.is_zero() => format!(", closed for {} by a lock-delay", words(lock.closed)),
        [] => String::new(),
        [only] => format!(", held by {} for {}", only.owner, words(only.held)),
        [first, others @ ..] => {
            format!(", held by {} and {} more for {}", first.owner, others.len(), words(first.held))
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
struct Voice {
    is_terminal: bool,
    /// None once it has to stop.
    texts: Option<mpsc::SyncSender<String>>,
    finished: mpsc::Receiver<()>,
}

impl Voice {
    fn start(is_terminal: bool) -> Voice {
        let (texts, to_say) = mpsc::sync_channel::<String>(1);
        let (end, finished) = mpsc::channel();
        std::thread::spawn(move || {
            super::terminal::never_stop_for_output();
            let mut stderr = std::io::stderr();
            let mut has_spoken = false;
            while let Ok(text) = to_say.recv() {
                // Returns to the start of the line, and clears it.
                let _ = match is_terminal {
                    true => write!(stderr, "\r\x1b[Klockkeeper: {text}"),
                    false => writeln!(stderr, "lockkeeper: {text}"),
                };
                has_spoken = true;
            }
            if is_terminal && has_spoken {
                let _ = write!(stderr, "\r\x1b[K");
            }
            let _ = end.send(());
        });
        Voice { is_terminal, texts: Some(texts), finished }
    }

    /// Writes a text, unless the last one is still being written.
    fn say(&self, text: String) {
        if let Some(texts) = &self.texts {
            let _ = texts.try_send(escape::line(&text).into_owned());
        }
    }
}

impl Drop for Voice {
    /// Waits a moment for the line to be cleared, so that other output does not mix with it.
    fn drop(&mut self) {
        self.texts = None;
        let _ = self.finished.recv_timeout(Duration::from_millis(200));
    }
}
