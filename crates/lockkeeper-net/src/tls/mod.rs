//! TLS for clients, nodes and members: rustls with ring.
//!
//! Certificates, keys and authorities are files. New connections reload them, at most once a second: to renew a certificate,
//! replace the files; no restart is needed. Sessions are not resumed and early data is not accepted, so that every
//! connection presents its certificate, and no recorded frame can be replayed.

mod client;
mod files;
mod reload;
mod server;

pub use client::ClientTls;
pub use files::{KeyPair, TlsError};
pub use server::{ServerTls, ServerTlsFiles, Visitor};

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
