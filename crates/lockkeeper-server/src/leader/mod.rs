//! What a node does while it leads: it takes and gives up leadership, stamps entries, expires sessions, and proposes what no
//! client asks for.

pub mod expiry;
pub(crate) mod leadership;
pub mod orphans;
pub mod term;
mod time_interval;
pub(crate) mod timers;
pub(crate) mod upgrade;
