//! The gRPC client for etcd: choice of the member, authentication, conversion of errors.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;
use tokio_stream::StreamExt;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use super::wire;
use crate::engines::runtime::Failure;
use crate::error::Error;

/// The interval of HTTP/2 pings. etcd closes connections that send more than one every 5 seconds.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that uses one member of the cluster at a time, and switches to the next if it fails.
pub(super) struct Client {
    hosts: Vec<String>,
    endpoints: Vec<Endpoint>,
    account: Option<Account>,
    connection: Mutex<Connection>,
    /// Incremented by each switch to another member: streams of earlier connections are opened again.
    generation: watch::Sender<usize>,
}

/// The user to authenticate as.
pub(super) struct Account {
    pub(super) name: String,
    pub(super) password: String,
}

struct Connection {
    channel: Channel,
    /// The authentication token, once there is one.
    token: Option<MetadataValue<Ascii>>,
}

impl Client {
    pub(super) fn new(
        hosts: Vec<String>,
        account: Option<Account>,
        timeout: Duration,
    ) -> Result<Client, Error> {
        let endpoints = hosts
            .iter()
            .map(|host| {
                let endpoint = Endpoint::from_shared(format!("http://{host}"))
                    .map_err(|error| Error::invalid(format!("\"{host}\" is not an address: {error}")))?;
                Ok(endpoint
                    .connect_timeout(timeout)
                    .tcp_nodelay(true)
                    .http2_keep_alive_interval(PING_INTERVAL)
                    .keep_alive_timeout(PING_TIMEOUT))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let first =
            endpoints.first().ok_or_else(|| Error::invalid("the URL has no host: write etcd://host:2379"))?;
        let connection = Mutex::new(Connection { channel: first.connect_lazy(), token: None });
        Ok(Client { hosts, endpoints, account, connection, generation: watch::Sender::new(0) })
    }

    pub(super) fn address(&self) -> String {
        format!("etcd at {}", self.hosts.join(", "))
    }

    /// Switches to the next member, unless another task has done so since this generation.
    pub(super) fn switch_member(&self, generation: usize) {
        let mut connection = self.connection();
        let switched = self.generation.send_if_modified(|current| {
            let is_first = *current == generation;
            if is_first {
                *current += 1;
            }
            is_first
        });
        if switched {
            let next = (generation + 1) % self.endpoints.len();
            *connection = Connection { channel: self.endpoints[next].connect_lazy(), token: None };
        }
    }

    /// The address of the member in use.
    pub(super) fn host(&self) -> &str {
        &self.hosts[self.generation() % self.hosts.len()]
    }

    pub(super) fn generation(&self) -> usize {
        *self.generation.borrow()
    }

    /// Resolves when the client has switched to another member since this generation.
    pub(super) async fn switched(&self, generation: usize) {
        let mut current = self.generation.subscribe();
        // The sender is in `self`, so it cannot be dropped.
        let _ = current.wait_for(|current| *current != generation).await;
    }

    fn connection(&self) -> std::sync::MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The connection, with a token if the URL has a user.
    async fn ready(&self) -> Result<(usize, Grpc<Channel>, Option<MetadataValue<Ascii>>), Failure> {
        let (generation, channel, token) = {
            let connection = self.connection();
            (self.generation(), connection.channel.clone(), connection.token.clone())
        };
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|error| self.failed(generation, &Status::from_error(error.into())))?;
        let (Some(account), None) = (&self.account, &token) else { return Ok((generation, grpc, token)) };
        let request =
            wire::AuthenticateRequest { name: account.name.clone(), password: account.password.clone() };
        let path = PathAndQuery::from_static("/etcdserverpb.Auth/Authenticate");
        let codec = tonic_prost::ProstCodec::<_, wire::AuthenticateResponse>::default();
        let answer = grpc
            .unary(Request::new(request), path, codec)
            .await
            .map_err(|status| self.failed(generation, &status))?;
        let token: MetadataValue<Ascii> = answer
            .into_inner()
            .token
            .parse()
            .map_err(|_| Failure::unreachable("etcd returned a token that is not ASCII"))?;
        self.store_token(generation, &token);
        grpc.ready().await.map_err(|error| self.failed(generation, &Status::from_error(error.into())))?;
        Ok((generation, grpc, Some(token)))
    }

    fn store_token(&self, generation: usize, token: &MetadataValue<Ascii>) {
        let mut connection = self.connection();
        if self.generation() == generation {
            connection.token = Some(token.clone());
        }
    }

    /// Sends a unary request.
    pub(super) async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let (generation, mut grpc, token) = self.ready().await?;
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let answer = grpc.unary(with_metadata(message, token), PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failed(generation, &status))
    }

    /// Opens a bidirectional stream. The stream of requests must not end before that of the answers.
    pub(super) async fn stream<Q, A>(
        &self,
        path: &'static str,
        requests: impl tokio_stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<Answers<A>, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let (generation, mut grpc, token) = self.ready().await?;
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let answer =
            grpc.streaming(with_metadata(requests, token), PathAndQuery::from_static(path), codec).await;
        let answers = answer.map_err(|status| self.failed(generation, &status))?.into_inner();
        Ok(Answers { generation, answers })
    }

    pub(super) async fn txn(&self, txn: wire::TxnRequest) -> Result<wire::TxnResponse, Failure> {
        self.call("/etcdserverpb.KV/Txn", txn).await
    }

    pub(super) async fn range(&self, range: wire::RangeRequest) -> Result<wire::RangeResponse, Failure> {
        self.call("/etcdserverpb.KV/Range", range).await
    }

    /// Converts a gRPC status, and switches to the next member unless the status is conclusive.
    fn failed(&self, generation: usize, status: &Status) -> Failure {
        let text = status.message();
        match status.code() {
            Code::NotFound if text.contains("lease not found") => return Failure::Gone,
            Code::Unauthenticated if text.contains("invalid auth token") => {
                self.connection().token = None;
                return Failure::unreachable("the authentication token has expired");
            }
            Code::InvalidArgument if text.contains("user name is empty") => {
                return Failure::Refused(Error::Unauthenticated(
                    format!(
                        "{} requires authentication: write etcd://user:password@host:port",
                        self.address()
                    )
                    .into(),
                ));
            }
            Code::InvalidArgument | Code::Unauthenticated if text.contains("authentication") => {
                return Failure::Refused(Error::Unauthenticated(
                    format!("{} rejects the user or the password ({text}): check the URL", self.address())
                        .into(),
                ));
            }
            Code::FailedPrecondition if text.contains("authentication is not enabled") => {
                return Failure::Refused(Error::Unauthenticated(
                    format!(
                        "{} has authentication disabled: leave user and password out of the URL",
                        self.address()
                    )
                    .into(),
                ));
            }
            Code::PermissionDenied => {
                return Failure::Refused(Error::Forbidden(
                    format!(
                        "{} denies permission ({text}): grant the user read and write access to the keys of locks",
                        self.address()
                    )
                    .into(),
                ));
            }
            Code::ResourceExhausted if text.contains("space") => {
                return Failure::Refused(Error::Limit(
                    format!(
                        "{} has no space left ({text}): compact, defragment, and disarm the alarm",
                        self.address()
                    )
                    .into(),
                ));
            }
            Code::Unimplemented => {
                return Failure::Refused(Error::invalid(format!(
                    "the server at {} is not etcd with the v3 API: check the address and the port",
                    self.hosts.join(", ")
                )));
            }
            _ => {}
        }
        self.switch_member(generation);
        Failure::unreachable(with_causes(status))
    }
}

/// The text of a status with those of its causes.
fn with_causes(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = if text.is_empty() { more } else { format!("{text}: {more}") };
        }
        cause = error.source();
    }
    if text.is_empty() { status.code().to_string() } else { text }
}

fn with_metadata<Q>(message: Q, token: Option<MetadataValue<Ascii>>) -> Request<Q> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    if let Some(token) = token {
        metadata.insert("token", token);
    }
    // A member without a leader fails the request at once.
    metadata.insert("hasleader", MetadataValue::from_static("true"));
    request
}

/// The answers of a stream.
pub(super) struct Answers<A> {
    generation: usize,
    answers: Streaming<A>,
}

impl<A> Answers<A> {
    pub(super) async fn next(&mut self, client: &Client) -> Result<A, Failure> {
        match self.answers.next().await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(status)) => Err(client.failed(self.generation, &status)),
            None => {
                client.switch_member(self.generation);
                Err(Failure::unreachable("etcd closed the stream"))
            }
        }
    }
}
