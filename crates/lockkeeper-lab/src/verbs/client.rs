//! `lockkeeper-lab client`: a client process, controlled by the lab.

use std::time::Duration;

use clap::Args;
use lockkeeper_lab::lab::{self, ClientOptions};

use super::Failure;

#[derive(Debug, Args)]
pub(crate) struct Client {
    #[arg(long)]
    url: String,
    #[arg(long)]
    name: String,
    #[arg(long)]
    lock: String,
    #[arg(long)]
    ttl_ms: u64,
    #[arg(long)]
    resource: String,
}

impl Client {
    pub(super) fn run(self) -> Result<u8, Failure> {
        let ttl = Duration::from_millis(self.ttl_ms);
        let Client { url, name, lock, resource, .. } = self;
        let options = ClientOptions { url, name, lock, ttl, resource };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::other(format!("failed to start the runtime: {error}")))?;
        let result = runtime.block_on(lab::run_client(options));
        // Pending name lookups must not delay the exit.
        runtime.shutdown_background();
        result.map(|()| 0).map_err(Failure::other)
    }
}
