//! Numbers that nobody can guess; in a simulation, those of its seed.

/// The system gives no random bytes.
pub type NoChance = getrandom::Error;

/// Fills the bytes.
pub fn fill(bytes: &mut [u8]) -> Result<(), NoChance> {
    #[cfg(feature = "simulation")]
    if let Some(host) = crate::simulation::host() {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&host.random().to_le_bytes()[..part.len()]);
        }
        return Ok(());
    }
    getrandom::fill(bytes)
}

/// A number.
pub fn number() -> Result<u64, NoChance> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
