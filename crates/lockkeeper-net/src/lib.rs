//! Network building blocks shared by clients and nodes: frames on TCP, TLS, credentials and randomness.
//!
//! With the feature `simulation`, a simulation replaces network, randomness and clocks on its own thread.

#[cfg(feature = "tls")]
pub mod credentials;
pub mod frame;
pub mod net;
pub mod random;
#[cfg(feature = "simulation")]
pub mod simulation;
#[cfg(feature = "tls")]
pub mod tls;
pub mod utc;
