//! Tests of single engines with sessions and shared queues on the server.

mod consul;
mod etcd;
pub(crate) mod shared;
mod zookeeper;
