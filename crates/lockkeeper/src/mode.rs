//! Exclusive or shared.

pub use lockkeeper_core::Mode;
