//! The wire of Lockkeeper: `lockkeeper.v1` in protobuf, and the conversions to the types of the lock table.
//! This crate alone knows the encoding.

/// The generated messages and services.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("lockkeeper.v1");
}

/// The description of the services, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("lockkeeper.v1");
