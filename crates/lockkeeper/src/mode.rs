//! The mode of a lock: exclusive or shared.

pub use lockkeeper_core::Mode;
