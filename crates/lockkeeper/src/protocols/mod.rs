//! The protocols of other servers, for the bare recipes and clients that `lockkeeper bench` and the lab measure. Not part
//! of the public API: it changes without notice.

pub mod resp;

/// The messages of etcd.
#[cfg(feature = "etcd")]
pub mod etcd {
    pub use crate::engines::etcd::wire::*;
}
