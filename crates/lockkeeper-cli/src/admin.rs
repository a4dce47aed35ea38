//! Calls that only a cell has: its members and its backups. They go to the node that can answer.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::Uri;
use hyper_util::rt::TokioIo;
use lockkeeper_proto::credentials::Credentials;
use lockkeeper_proto::net::Stream;
use lockkeeper_proto::v1;
use lockkeeper_proto::v1::lockkeeper_client::LockkeeperClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tower_service::Service;

use crate::client::Client;
use crate::failure::{Failure, OTHER, UNAVAILABLE, USAGE};

/// So often a call follows a node that points at another one: a leader that was just removed, and some more.
const HOPS_MAX: usize = 10;
/// After all have been asked in vain.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const DEFAULT_PORT: u16 = 7420;

/// A node of the cell.
pub(crate) type Admin = LockkeeperClient<InterceptedService<Channel, ShowToken>>;

/// Puts the access token on each call.
#[derive(Clone)]
pub(crate) struct ShowToken(Option<MetadataValue<Ascii>>);

impl Interceptor for ShowToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Opens connections as the environment says: under TLS, or not.
#[derive(Clone)]
struct Dialer(Arc<Credentials>);

impl Service<Uri> for Dialer {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let credentials = self.0.clone();
        Box::pin(async move {
            let address = target.authority().map(ToString::to_string).unwrap_or_default();
            credentials.connect(&address, Some("h2"), |_| Ok(())).await.map(TokioIo::new)
        })
    }
}

/// Makes a call on one node after the other until one of them answers for the cell.
pub(crate) async fn call<T, Answer>(
    client: &Client,
    mut ask: impl FnMut(Admin) -> Answer,
) -> Result<T, Failure>
where
    Answer: Future<Output = Result<Response<T>, Status>>,
{
    let hosts = hosts(&client.engine)?;
    let began = Instant::now();
    let mut host = hosts[0].clone();
    let mut next = 1;
    let mut hops = 0;
    loop {
        let status = match connect(client, &host).await {
            Ok(admin) => match ask(admin).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            },
            Err(status) => status,
        };
        if status.code() != Code::Unavailable {
            return Err(failure(&status));
        }
        let leader = status.metadata().get("lockkeeper-leader").and_then(|leader| leader.to_str().ok());
        hops += 1;
        match leader {
            Some(leader) if hops < HOPS_MAX => host = leader.to_owned(),
            _ if next < hosts.len() => {
                host = hosts[next].clone();
                next += 1;
            }
            // A new leader takes a moment: whoever asks all of them in between must not be told that there is none.
            _ if began.elapsed() < client.connect_timeout => {
                tokio::time::sleep(ASK_AGAIN).await;
                host = hosts[0].clone();
                (next, hops) = (1, 0);
            }
            _ => return Err(failure(&status)),
        }
    }
}

/// How the cell is, by a node that knows of a leader: one that was removed, or is cut off, only knows how it was.
pub(crate) async fn status(client: &Client) -> Result<v1::StatusResponse, Failure> {
    let mut without_leader = None;
    let mut refused = None;
    for host in hosts(&client.engine)? {
        let asked = async { connect(client, &host).await?.status(v1::StatusRequest {}).await };
        match asked.await.map(Response::into_inner) {
            Ok(status) if status.leader != 0 => return Ok(status),
            Ok(status) => without_leader = without_leader.or(Some(status)),
            Err(status) => refused = Some(status),
        }
    }
    without_leader.ok_or_else(|| refused.map_or_else(|| Failure::other("no node answers"), |s| failure(&s)))
}

async fn connect(client: &Client, host: &str) -> Result<Admin, Status> {
    let absent = |why: String| {
        Status::unavailable(format!(
            "no node answers at {host} ({why}): is it running? start one with lockkeeper serve, or name another with \
             --engine"
        ))
    };
    let credentials =
        Credentials::from_environment().map_err(|error| Status::invalid_argument(error.to_string()))?;
    let token = credentials.access_token().map_err(|error| Status::invalid_argument(error.to_string()))?;
    let shown = token.map(|token| format!("Bearer {token}").parse()).transpose();
    let shown =
        shown.map_err(|_| Status::invalid_argument("the access token has characters that none has"))?;
    let endpoint = Endpoint::from_shared(format!("http://{host}"))
        .map_err(|error| Status::invalid_argument(format!("{host} is no address: {error}")))?
        .connect_timeout(client.connect_timeout);
    let dialer = Dialer(Arc::new(credentials));
    let channel = endpoint.connect_with_connector(dialer).await.map_err(|error| absent(innermost(&error)))?;
    Ok(LockkeeperClient::with_interceptor(channel, ShowToken(shown)))
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn failure(status: &Status) -> Failure {
    let (code, exit) = match status.code() {
        Code::InvalidArgument => ("invalid", USAGE),
        Code::Unavailable | Code::ResourceExhausted => ("unavailable", UNAVAILABLE),
        Code::Unauthenticated => ("unauthenticated", OTHER),
        Code::PermissionDenied => ("forbidden", OTHER),
        Code::Unimplemented => ("unsupported", OTHER),
        _ => ("fatal", OTHER),
    };
    Failure::new(code, exit, status.message())
}

fn hosts(engine: &str) -> Result<Vec<String>, Failure> {
    let Some(hosts) = engine.strip_prefix("lockkeeper://") else {
        return Err(Failure::usage(format!(
            "\"{engine}\" is no cell: only a cell has members and snapshots; write lockkeeper://host:port"
        )));
    };
    Ok(hosts
        .trim_end_matches('/')
        .split(',')
        .map(|host| match host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
            _ => format!("{host}:{DEFAULT_PORT}"),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_a_port() {
        let found = hosts("lockkeeper://a,b:1,[::1]:2,[::1]").map_err(|failure| failure.message);
        assert_eq!(found, Ok(["a:7420", "b:1", "[::1]:2", "[::1]:7420"].map(str::to_owned).to_vec()));
        assert!(hosts("redis://a").is_err());
    }
}
