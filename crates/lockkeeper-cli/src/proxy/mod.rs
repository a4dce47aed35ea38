//! `lockkeeper proxy`: a gate for an HTTP service that cannot check tokens itself.

mod listen;
mod upstream;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lockkeeper::gates::http::{FenceLayer, FileTokens};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower_layer::Layer;

use self::upstream::Upstream;
use crate::client;
use crate::duration;
use crate::failure::Failure;
use crate::logging::{self, LogFormat};

/// Run a fencing proxy in front of an HTTP service that cannot check tokens itself
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper proxy --upstream http://10.0.0.7:8080 --fence-state /var/lib/lockkeeper-fence
  lockkeeper run orders/4472 -- sh -c 'curl -f -X PUT -d paid \\
      -H \"Lockkeeper-Fence: $LOCKKEEPER_SEQUENCER\" http://127.0.0.1:7430/orders/4472'

A request names its lock in a header: Lockkeeper-Fence: lock=NAME;token=NUMBER, or the
sequencer of the grant. The proxy keeps the highest token of each lock. A request with a
lower token is answered 412 (stale_token) and never reaches the upstream. A higher token
is on disk before its request is forwarded; the request waits until requests with lower
tokens have been answered. Requests that could change something and name no lock are
answered 428; reads pass.

The proxy fences only if there is no other path to the upstream: let the upstream listen
where only the proxy can reach it. Run one proxy at a time for an upstream.

Answers of the upstream are forwarded unchanged. Without an answer the status is 502, and
may_have_happened says whether the request can have reached the upstream.

The first line on stdout contains the address; port 0 takes any free port. Logs go to
stderr. After TERM or INT, requests get 10 s to end; the exit code is 0.")]
pub(crate) struct Proxy {
    /// Upstream: http://host:port[/path]
    #[arg(long, value_name = "URL", env = "LOCKKEEPER_PROXY_UPSTREAM")]
    upstream: String,
    /// Folder for the highest tokens; created if it does not exist
    #[arg(long, value_name = "DIR", env = "LOCKKEEPER_PROXY_FENCE_STATE")]
    fence_state: PathBuf,
    /// Address for clients: HTTP/1.1 and HTTP/2
    #[arg(long, default_value = "127.0.0.1:7430", value_name = "ADDRESS", env = "LOCKKEEPER_PROXY_LISTEN")]
    listen: String,
    /// The lock that guards the upstream: writes under any other lock are refused
    #[arg(long, value_name = "NAME")]
    lock: Option<String>,
    /// Forward writes that name no lock, while clients are being migrated
    #[arg(long)]
    allow_unfenced: bool,
    /// How long a request waits for requests with older tokens before it gets 503
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    wait_for_older: Duration,
    /// Use HTTP/2 to the upstream, as gRPC requires
    #[arg(long)]
    upstream_http2: bool,
    /// Log filter: a level, or levels per target
    #[arg(long, value_name = "FILTER", default_value = logging::FILTER, value_parser = logging::filter,
        env = "LOCKKEEPER_LOG")]
    log: String,
    /// Format of the log
    #[arg(long, value_enum, default_value = "text", env = "LOCKKEEPER_LOG_FORMAT")]
    log_format: LogFormat,
}

impl Proxy {
    /// Forwards requests until a signal.
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let _logging = logging::start(&self.log, self.log_format);
        client::block_on(self.serve())?;
        Ok(0)
    }

    async fn serve(self) -> Result<(), Failure> {
        let failed =
            |error: std::io::Error| Failure::other(format!("failed to install signal handlers: {error}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let upstream = Upstream::new(&self.upstream, self.upstream_http2).map_err(Failure::usage)?;
        // A folder that is in use or damaged causes exit code 1, like the data folder of `serve`.
        let tokens =
            FileTokens::open(&self.fence_state).map_err(|error| Failure::other(error.to_string()))?;
        let mut layer = FenceLayer::new(tokens).wait_for_older(self.wait_for_older);
        if self.allow_unfenced {
            layer = layer.allow_unfenced();
        }
        if let Some(lock) = &self.lock {
            layer = layer.only_lock(lock);
        }
        let cannot = |error: std::io::Error| {
            Failure::other(format!(
                "failed to listen on {}: {error}. Choose another address with --listen",
                self.listen
            ))
        };
        let listener = TcpListener::bind(&self.listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        // A closed stdout must not stop the proxy.
        let _ = writeln!(
            std::io::stdout(),
            "lockkeeper proxy listens on {address} (upstream: {}, tokens: {})",
            self.upstream,
            self.fence_state.display()
        );
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("stopping on SIGTERM"),
                _ = interrupt.recv() => tracing::info!("stopping on SIGINT"),
            }
        };
        listen::serve(listener, layer.layer(upstream), stop).await;
        Ok(())
    }
}
