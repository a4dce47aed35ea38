//! Every door of a cell, tried from outside: real processes, real certificates, made for each test.

#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test that does not get what it asks for has failed"
)]

mod access;
mod adversary;
mod before_auth;
mod certificates;
mod crowd;
mod disclosure;
mod enable;
mod files;
mod floods;
mod gate;
mod greedy;
mod grpc;
#[path = "../harness/mod.rs"]
mod harness;
mod listening;
mod noise;
mod peers;
mod places;
mod quota;
mod slow;
mod stage;
mod strangers;
mod tls;
mod windows;
