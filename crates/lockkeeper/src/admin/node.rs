//! gRPC calls to the nodes of a cell, with redirects and retries.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use lockkeeper_api::status::Status as CellStatus;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_api::{Code, Error as ContractError, metadata, v1};
use lockkeeper_net::credentials::Credentials;
use lockkeeper_net::net::Stream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code as GrpcCode, Request, Response, Status};
use tower_service::Service;

use crate::clock::Moment;
use crate::error::Error;

/// Maximum number of redirects to another leader that a call follows.
const REDIRECTS_MAX: usize = 10;
/// The pause after no node could answer.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The nodes of a cell, and how to connect to them.
#[derive(Debug, Clone)]
pub(crate) struct Nodes {
    /// Each as host:port. Invariant: not empty.
    hosts: Arc<[String]>,
    credentials: Credentials,
    connect_timeout: Duration,
}

/// A connection to one node.
pub(super) type Node = LockkeeperClient<InterceptedService<Channel, BearerToken>>;

impl Nodes {
    pub(crate) fn new(hosts: Vec<String>, credentials: Credentials, connect_timeout: Duration) -> Nodes {
        Nodes { hosts: hosts.into(), credentials, connect_timeout }
    }

    /// The same, restricted to one node.
    pub(super) fn at(&self, host: &str) -> Nodes {
        Nodes { hosts: [host.to_owned()].into(), ..self.clone() }
    }

    /// Makes a call, trying one node after the other and following redirects to the leader.
    pub(super) async fn call<T, F>(&self, call: impl Fn(Node) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let give_up_at = Moment::now().plus(self.connect_timeout);
        let mut host = self.hosts[0].clone();
        let mut next = 1;
        let mut redirects = 0;
        loop {
            let status = match self.connect(&host).await {
                Ok(node) => match call(node).await {
                    Ok(answer) => return Ok(answer.into_inner()),
                    Err(status) => status,
                },
                Err(status) => status,
            };
            if status.code() != GrpcCode::Unavailable {
                return Err(error_of(&status));
            }
            let leader = status.metadata().get(metadata::LEADER).and_then(|leader| leader.to_str().ok());
            redirects += 1;
            match leader {
                Some(leader) if redirects < REDIRECTS_MAX => host = leader.to_owned(),
                _ if next < self.hosts.len() => {
                    host = self.hosts[next].clone();
                    next += 1;
                }
                // An election takes a moment: do not report it as a cell without a leader.
                _ if Moment::now() < give_up_at => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    host = self.hosts[0].clone();
                    (next, redirects) = (1, 0);
                }
                _ => return Err(error_of(&status)),
            }
        }
    }

    /// The status of the first node that knows of a leader, or else of any node.
    pub(super) async fn status(&self) -> Result<CellStatus, Error> {
        let mut without_leader = None;
        let mut failed = None;
        for host in self.hosts.iter() {
            let answer = async { self.connect(host).await?.status(v1::StatusRequest {}).await };
            match answer.await.map(|answer| CellStatus::from(answer.into_inner())) {
                Ok(status) if status.leader.is_some() => return Ok(status),
                Ok(status) => without_leader = without_leader.or(Some(status)),
                Err(status) => failed = Some(status),
            }
        }
        let no_answer = || Error::unavailable("no node answers: check that the cell is running");
        without_leader.ok_or_else(|| failed.map_or_else(no_answer, |status| error_of(&status)))
    }

    async fn connect(&self, host: &str) -> Result<Node, Status> {
        let invalid = |error: &dyn std::fmt::Display| Status::invalid_argument(error.to_string());
        let token = self.credentials.access_token().map_err(|error| invalid(&error))?;
        let token = token.map(|token| format!("Bearer {token}").parse()).transpose();
        let token = token
            .map_err(|_| invalid(&"the access token contains characters that are not allowed in a header"))?;
        let endpoint = Endpoint::from_shared(format!("http://{host}"))
            .map_err(|error| invalid(&format!("{host} is not an address: {error}")))?
            .connect_timeout(self.connect_timeout);
        let connector = Connector(self.credentials.clone());
        let channel = endpoint.connect_with_connector(connector).await.map_err(|error| {
            Status::unavailable(format!(
                "no node answers at {host} ({}): start one with lockkeeper serve, or name another with --engine",
                root_cause(&error)
            ))
        })?;
        Ok(LockkeeperClient::with_interceptor(channel, BearerToken(token)))
    }
}

/// Adds the access token to each call.
#[derive(Clone)]
pub(super) struct BearerToken(Option<MetadataValue<Ascii>>);

impl Interceptor for BearerToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Opens connections with the credentials, with TLS if they require it.
#[derive(Clone)]
struct Connector(Credentials);

impl Service<Uri> for Connector {
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

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn error_of(status: &Status) -> Error {
    let detail = |key: &str| status.metadata().get(key).and_then(|value| value.to_str().ok());
    let number = |key: &str| detail(key).and_then(|value| value.parse().ok());
    let code = match detail(metadata::CODE).map(str::parse) {
        Some(Ok(code)) => code,
        // The error comes from the connection, not from a node.
        _ => match status.code() {
            GrpcCode::InvalidArgument => Code::Invalid,
            GrpcCode::Unavailable => Code::Unavailable,
            _ => return Error::Fatal(status.message().into()),
        },
    };
    Error::from_contract(ContractError {
        last_token: number(metadata::LAST_TOKEN),
        version: number(metadata::VERSION),
        leader: Some(detail(metadata::LEADER).map(str::to_owned)),
        may_have_happened: Some(status.code() == GrpcCode::Unknown),
        ..ContractError::new(code, status.message())
    })
}
