//! Cryptographically secure random numbers; in a simulation they come from its seed.

/// Error when the operating system cannot provide random bytes.
pub type RandomError = getrandom::Error;

/// Fills `bytes` with random bytes.
pub fn fill(bytes: &mut [u8]) -> Result<(), RandomError> {
    #[cfg(feature = "simulation")]
    if let Some(host) = crate::simulation::host() {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&host.random().to_le_bytes()[..part.len()]);
        }
        return Ok(());
    }
    getrandom::fill(bytes)
}

/// Returns a random number.
pub fn number() -> Result<u64, RandomError> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
