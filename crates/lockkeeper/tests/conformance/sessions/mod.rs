//! What the recipes of engines with sessions and queues of their own are about, beyond the suite.

mod consul;
mod etcd;
pub(crate) mod shared;
mod zookeeper;
