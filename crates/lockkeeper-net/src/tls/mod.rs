//! TLS for clients, nodes and members: rustls with ring.
//!
//! Certificates, keys and authorities are files. They are looked at again when a connection is made, at most once a
//! second: whoever renews a certificate puts the new files in place of the old ones, and nothing is restarted.
//! Sessions are not resumed and no data is taken before the handshake is over, so that every connection has shown its
//! certificate, and no recorded frame can be played again.

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
