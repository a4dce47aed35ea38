//! Operations: settings, the service manager, completions, manual pages, deployment files, clients in other languages,
//! traces, packages.
//!
//! A single test binary, because each one links the whole dependency tree.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../security/certificates.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of security")]
mod certificates;
mod clients;
mod completions;
mod config;
mod dependencies;
mod deploy;
mod deployment;
#[path = "../security/fixture.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of security")]
mod fixture;
#[path = "../harness/mod.rs"]
mod harness;
mod notify;
mod packages;
mod start;
#[path = "../cli/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the verbs")]
mod support;
mod traces;
