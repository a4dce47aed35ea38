//! The wire of Lockkeeper: `lockkeeper.v1` in protobuf, and the conversions to the types of the lock table.
//! This crate alone knows the encoding.

pub mod chance;
#[cfg(feature = "tls")]
pub mod credentials;
pub mod frame;
pub mod net;
#[cfg(feature = "simulation")]
pub mod simulation;
#[cfg(feature = "tls")]
pub mod tls;
pub mod utc;

/// The generated messages and services.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/lockkeeper.v1.rs"));
}

/// How nodes speak with each other: the generated messages and service.
#[allow(missing_docs, clippy::all)]
pub mod peer {
    include!(concat!(env!("OUT_DIR"), "/lockkeeper.peer.v1.rs"));
}

/// The description of the services, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lockkeeper.v1.bin"));
