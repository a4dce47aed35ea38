//! Engines with sessions and queues of their own, against real servers: what their recipes are about.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the servers have more than these tests use")]

mod consul;
mod etcd;
mod servers;
mod shared;
mod zookeeper;
