//! What operators meet: settings, the service manager, completions, manual, deployment files, clients in other
//! languages, traces, packages.
//!
//! One test program, because each costs a link of the whole dependency tree.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../security/certificates.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of security")]
mod certificates;
mod clients;
mod config;
mod dependencies;
mod deploy;
mod deployed;
#[path = "../harness/mod.rs"]
mod harness;
mod notify;
mod packages;
#[path = "../security/stage.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of security")]
mod stage;
mod start;
#[path = "../cli/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the verbs")]
mod support;
mod traces;
mod words;
