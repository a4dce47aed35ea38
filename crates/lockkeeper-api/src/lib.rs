//! The contract of Lockkeeper: the messages and services of `lockkeeper.v1`.
//!
//! The code in `generated/` is checked in; `tests/generated.rs` regenerates it from `proto/` and compares.

/// Messages and services for clients.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!("generated/lockkeeper.v1.rs");
}

/// Messages and service between the members of a cell.
#[allow(missing_docs, clippy::all)]
pub mod peer {
    include!("generated/lockkeeper.peer.v1.rs");
}

/// The description of the services, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/lockkeeper.v1.bin");
