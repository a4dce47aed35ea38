//! The resource that the lock protects: a set of updates that is read, changed and written back as a whole, like a row or a
//! file. Behind a gate it refuses a token below the highest that it has seen; without one it accepts everything. It
//! counts lost updates exactly: updates that were acknowledged and are missing at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper::Token;
use lockkeeper::gates::Gate;
use serde::{Deserialize, Serialize};

/// Limit on a line, which holds a whole set.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// A request of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Reads the whole set.
    Read { key: String, token: Option<u64> },
    /// Replaces the whole set.
    Write { key: String, token: Option<u64>, updates: BTreeSet<String>, added: String },
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    Value { updates: BTreeSet<String> },
    Written { wiped: u64 },
    Refused { why: String },
}

#[derive(Debug, Default)]
struct Register {
    gate: Gate,
    updates: BTreeSet<String>,
    acknowledged: BTreeSet<String>,
    refused: u64,
}

/// Counts of writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WriteCounts {
    /// Writes that were accepted.
    pub acknowledged: u64,
    /// Accepted writes that are missing at the end.
    pub lost: u64,
    /// Reads and writes that the gate refused.
    pub refused: u64,
}

/// The resource, served by this process until the value is dropped.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    has_gate: bool,
    registers: Mutex<BTreeMap<String, Register>>,
    is_closed: Mutex<bool>,
}

impl Resource {
    pub(crate) fn serve(has_gate: bool) -> std::io::Result<Resource> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { has_gate, registers: Mutex::default(), is_closed: Mutex::new(false) });
        let for_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if *lock(&for_thread.is_closed) {
                    return;
                }
                let shared = Arc::clone(&for_thread);
                // The thread ends when the client disconnects.
                std::thread::spawn(move || shared.answer_all(stream));
            }
        });
        Ok(Resource { address, shared })
    }

    pub(crate) fn counts(&self) -> WriteCounts {
        let registers = lock(&self.shared.registers);
        registers.values().fold(WriteCounts::default(), |sum, register| WriteCounts {
            acknowledged: sum.acknowledged + register.acknowledged.len() as u64,
            lost: sum.lost + register.acknowledged.difference(&register.updates).count() as u64,
            refused: sum.refused + register.refused,
        })
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        *lock(&self.shared.is_closed) = true;
        let _ = TcpStream::connect(self.address);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn answer_all(&self, stream: TcpStream) {
        let Ok(mut writer) = stream.try_clone() else { return };
        let _ = writer.set_nodelay(true);
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            match reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
                Ok(1..) => {}
                _ => return,
            }
            let Ok(request) = serde_json::from_str(&line) else { return };
            let Ok(mut answer) = serde_json::to_string(&self.answer(request)) else { return };
            answer.push('\n');
            if writer.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: Request) -> Answer {
        let mut registers = lock(&self.registers);
        let (key, token) = match &request {
            Request::Read { key, token } | Request::Write { key, token, .. } => (key.clone(), *token),
        };
        let register = registers.entry(key).or_default();
        if self.has_gate
            && let Err(error) = register.gate.enter(Token(token.unwrap_or(0))).map(drop)
        {
            register.refused += 1;
            return Answer::Refused { why: error.to_string() };
        }
        match request {
            Request::Read { .. } => Answer::Value { updates: register.updates.clone() },
            Request::Write { updates, added, .. } => {
                let wiped = register.updates.difference(&updates).count() as u64;
                register.updates = updates;
                register.acknowledged.insert(added);
                Answer::Written { wiped }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(has_gate: bool) -> Shared {
        Shared { has_gate, registers: Mutex::default(), is_closed: Mutex::new(false) }
    }

    fn write(shared: &Shared, token: u64, updates: &[&str], added: &str) -> Answer {
        let mut updates: BTreeSet<String> = updates.iter().map(|&update| update.to_owned()).collect();
        updates.insert(added.to_owned());
        shared.answer(Request::Write {
            key: "k".to_owned(),
            token: Some(token),
            updates,
            added: added.to_owned(),
        })
    }

    fn counts(shared: Shared) -> WriteCounts {
        Resource { address: "127.0.0.1:1".parse().expect("an address"), shared: Arc::new(shared) }.counts()
    }

    #[test]
    fn stale_write_without_a_gate_overwrites_later_updates() {
        let shared = shared(false);
        write(&shared, 2, &[], "b");
        assert!(matches!(write(&shared, 1, &[], "a"), Answer::Written { wiped: 1 }));
        assert_eq!(counts(shared), WriteCounts { acknowledged: 2, lost: 1, refused: 0 });
    }

    #[test]
    fn stale_write_behind_a_gate_is_refused() {
        let shared = shared(true);
        write(&shared, 2, &[], "b");
        assert!(matches!(write(&shared, 1, &[], "a"), Answer::Refused { .. }));
        assert!(matches!(write(&shared, 2, &["b"], "c"), Answer::Written { wiped: 0 }));
        assert_eq!(counts(shared), WriteCounts { acknowledged: 2, lost: 0, refused: 1 });
    }

    #[test]
    fn read_with_a_newer_token_closes_the_gate() {
        let shared = shared(true);
        shared.answer(Request::Read { key: "k".to_owned(), token: Some(5) });
        assert!(matches!(write(&shared, 4, &[], "a"), Answer::Refused { .. }));
    }
}
