//! The link over gRPC.

use std::error::Error as _;
use std::time::Duration;

use lockkeeper_proto::v1::lockkeeper_client::LockkeeperClient;
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use super::transport::{Answers, Link, Opening, Refused, Transport};
use crate::error::Error;

/// Large enough that flow control never throttles small frames.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// A page of 1,000 locks with long queues is the largest answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Nodes on the network.
pub(super) struct Network {
    hosts: Vec<String>,
    /// Which host goes first: drawn once, so that clients spread over the nodes.
    first: usize,
    connect_timeout: Duration,
}

impl Network {
    pub(super) fn new(hosts: Vec<String>, connect_timeout: Duration) -> Network {
        let first = super::backoff::random(hosts.len() as u64) as usize;
        Network { hosts, first, connect_timeout }
    }
}

impl Transport for Network {
    fn open(&self, attempt: usize, leader: Option<SmolStr>) -> Opening {
        let host = match leader {
            Some(leader) => leader,
            None => SmolStr::new(&self.hosts[(self.first + attempt) % self.hosts.len()]),
        };
        let limit = self.connect_timeout;
        Box::pin(async move {
            match tokio::time::timeout(limit, open(host.clone(), limit)).await {
                Ok(result) => result,
                Err(_) => Err(Refused::because(format_smolstr!("{host} did not answer within {limit:?}"))),
            }
        })
    }

    fn addresses(&self) -> String {
        self.hosts.join(", ")
    }
}

async fn open(host: SmolStr, connect_timeout: Duration) -> Result<Link, Refused> {
    let endpoint = Endpoint::from_shared(format!("http://{host}"))
        .map_err(|error| Refused::because(format_smolstr!("{host} is no address: {error}")))?
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true);
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| Refused::because(format_smolstr!("{host}: {}", deepest(&error))))?;
    let mut client = LockkeeperClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    let (frames, outgoing) = mpsc::channel(1);
    let answers =
        client.stream(ReceiverStream::new(outgoing)).await.map_err(|status| refused(&status))?.into_inner();
    Ok(Link { address: host, frames, answers: Answers::Network(Box::new(answers)) })
}

/// The words of the operating system are at the bottom of the chain; those above say only "transport error".
fn deepest(error: &tonic::transport::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// A status of gRPC in our words.
pub(super) fn refused(status: &tonic::Status) -> Refused {
    let header = |name: &str| status.metadata().get(name).and_then(|value| value.to_str().ok());
    let fatal = match (header("lockkeeper-code"), status.code()) {
        (Some("unauthenticated"), _) | (_, tonic::Code::Unauthenticated) => {
            Some(Error::Unauthenticated(status.message().into()))
        }
        (Some("forbidden"), _) | (_, tonic::Code::PermissionDenied) => {
            Some(Error::Forbidden(status.message().into()))
        }
        (_, tonic::Code::Unimplemented) => Some(Error::unsupported(
            "the node does not speak lockkeeper.v1: is it another service, or another version?",
        )),
        _ => None,
    };
    let why = match status.source() {
        Some(source) => format_smolstr!("{}: {source}", status.message()),
        None => SmolStr::new(status.message()),
    };
    Refused {
        why,
        leader: header("lockkeeper-leader").filter(|leader| !leader.is_empty()).map(SmolStr::new),
        fatal,
    }
}
