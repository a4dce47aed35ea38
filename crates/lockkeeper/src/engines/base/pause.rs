//! When to try again: soon at first, then ever later, and never all clients at once.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// Pauses that double from 10 ms to 1 s, of which a random half is waited.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    attempt: u32,
}

impl Pause {
    pub(crate) async fn next(&mut self) {
        let full = FIRST.saturating_mul(1 << self.attempt.min(10)).min(LONGEST);
        self.attempt = self.attempt.saturating_add(1);
        let half = full / 2;
        // Without a source of randomness, clients merely come back at the same time.
        let random = getrandom::u64().unwrap_or_default() % (half.as_micros() as u64 + 1);
        tokio::time::sleep(half + Duration::from_micros(random)).await;
    }
}

/// 64 random bits as text.
pub(crate) fn random_hex() -> Result<String, crate::error::Error> {
    let bits = getrandom::u64().map_err(|error| {
        crate::error::Error::Fatal(format!("the system gives no random numbers: {error}").into())
    })?;
    Ok(format!("{bits:016x}"))
}
