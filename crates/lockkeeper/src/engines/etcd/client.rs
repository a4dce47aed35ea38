//! Calls to etcd: which member, who asks, and what its errors mean.

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

/// etcd allows a ping every 5 seconds at most.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of a cluster: one member at a time, the next one when it does not answer.
pub(super) struct Client {
    hosts: Vec<String>,
    endpoints: Vec<Endpoint>,
    account: Option<Account>,
    link: Mutex<Link>,
    /// Counts the links: who waits on a stream of an earlier one starts over.
    generation: watch::Sender<usize>,
}

/// Who asks.
pub(super) struct Account {
    pub(super) name: String,
    pub(super) password: String,
}

struct Link {
    channel: Channel,
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
                    .map_err(|error| Error::invalid(format!("\"{host}\" is no address: {error}")))?;
                Ok(endpoint
                    .connect_timeout(timeout)
                    .tcp_nodelay(true)
                    .http2_keep_alive_interval(PING_EVERY)
                    .keep_alive_timeout(PING_TIMEOUT))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let first = endpoints.first().ok_or_else(|| Error::invalid("no host is named"))?;
        let link = Mutex::new(Link { channel: first.connect_lazy(), token: None });
        Ok(Client { hosts, endpoints, account, link, generation: watch::Sender::new(0) })
    }

    pub(super) fn address(&self) -> String {
        format!("etcd at {}", self.hosts.join(", "))
    }

    /// Goes to the next member, unless somebody else has since this generation.
    pub(super) fn leave_link(&self, generation: usize) {
        let mut link = self.link();
        let moved = self.generation.send_if_modified(|current| {
            let is_first = *current == generation;
            if is_first {
                *current += 1;
            }
            is_first
        });
        if moved {
            let next = (generation + 1) % self.endpoints.len();
            *link = Link { channel: self.endpoints[next].connect_lazy(), token: None };
        }
    }

    /// The member that is asked now.
    pub(super) fn host(&self) -> &str {
        &self.hosts[self.generation() % self.hosts.len()]
    }

    pub(super) fn generation(&self) -> usize {
        *self.generation.borrow()
    }

    /// Resolves when there is another link than this one.
    pub(super) async fn link_left(&self, generation: usize) {
        let mut current = self.generation.subscribe();
        // The sender lives in here: it cannot be gone.
        let _ = current.wait_for(|current| *current != generation).await;
    }

    fn link(&self) -> std::sync::MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The link, with a token if an account is named.
    async fn ready(&self) -> Result<(usize, Grpc<Channel>, Option<MetadataValue<Ascii>>), Failure> {
        let (generation, channel, token) = {
            let link = self.link();
            (self.generation(), link.channel.clone(), link.token.clone())
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
            .map_err(|_| Failure::unreachable("etcd gave a token that is no text"))?;
        self.remember(generation, &token);
        grpc.ready().await.map_err(|error| self.failed(generation, &Status::from_error(error.into())))?;
        Ok((generation, grpc, Some(token)))
    }

    fn remember(&self, generation: usize, token: &MetadataValue<Ascii>) {
        let mut link = self.link();
        if self.generation() == generation {
            link.token = Some(token.clone());
        }
    }

    pub(super) async fn call<Q, A>(&self, path: &'static str, asked: Q) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let (generation, mut grpc, token) = self.ready().await?;
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let answer = grpc.unary(signed(asked, token), PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failed(generation, &status))
    }

    /// A stream in both directions. The requests must not end before the answers do.
    pub(super) async fn stream<Q, A>(
        &self,
        path: &'static str,
        asked: impl tokio_stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<Answers<A>, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let (generation, mut grpc, token) = self.ready().await?;
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let answer = grpc.streaming(signed(asked, token), PathAndQuery::from_static(path), codec).await;
        let answers = answer.map_err(|status| self.failed(generation, &status))?.into_inner();
        Ok(Answers { generation, answers })
    }

    pub(super) async fn txn(&self, txn: wire::TxnRequest) -> Result<wire::TxnResponse, Failure> {
        self.call("/etcdserverpb.KV/Txn", txn).await
    }

    pub(super) async fn range(&self, range: wire::RangeRequest) -> Result<wire::RangeResponse, Failure> {
        self.call("/etcdserverpb.KV/Range", range).await
    }

    /// What an error of etcd means.
    fn failed(&self, generation: usize, status: &Status) -> Failure {
        let text = status.message();
        match status.code() {
            Code::NotFound if text.contains("lease not found") => return Failure::Gone,
            Code::Unauthenticated if text.contains("invalid auth token") => {
                self.link().token = None;
                return Failure::unreachable("its token has run out");
            }
            Code::InvalidArgument if text.contains("user name is empty") => {
                return Failure::Refused(Error::Unauthenticated(
                    format!(
                        "{} wants to know who asks: write etcd://user:password@host:port",
                        self.address()
                    )
                    .into(),
                ));
            }
            Code::InvalidArgument | Code::Unauthenticated if text.contains("authentication") => {
                return Failure::Refused(Error::Unauthenticated(
                    format!("{} refuses this user or password ({text})", self.address()).into(),
                ));
            }
            Code::FailedPrecondition if text.contains("authentication is not enabled") => {
                return Failure::Refused(Error::Unauthenticated(
                    format!("{} has no users: leave user and password out of the URL", self.address()).into(),
                ));
            }
            Code::PermissionDenied => {
                return Failure::Refused(Error::Forbidden(
                    format!("{} does not let this user write the keys of locks: {text}", self.address())
                        .into(),
                ));
            }
            Code::ResourceExhausted if text.contains("space") => {
                return Failure::Refused(Error::Limit(
                    format!("{} is full ({text}): compact, defragment and disarm its alarm", self.address())
                        .into(),
                ));
            }
            Code::Unimplemented => {
                return Failure::Refused(Error::invalid(format!(
                    "what answers at {} is no etcd with the v3 API",
                    self.hosts.join(", ")
                )));
            }
            _ => {}
        }
        self.leave_link(generation);
        Failure::unreachable(told(status))
    }
}

/// An error with what caused it: the cause is what people need.
fn told(status: &Status) -> String {
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

fn signed<Q>(asked: Q, token: Option<MetadataValue<Ascii>>) -> Request<Q> {
    let mut request = Request::new(asked);
    let metadata = request.metadata_mut();
    if let Some(token) = token {
        metadata.insert("token", token);
    }
    // A member that has lost the others must say so instead of waiting.
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
                client.leave_link(self.generation);
                Err(Failure::unreachable("etcd ended the stream"))
            }
        }
    }
}
