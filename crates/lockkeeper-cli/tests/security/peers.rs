//! Members know each other by their certificates: a stranger cannot vote, append or even say hello.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use lockkeeper::Keeper;
use lockkeeper_proto::credentials::Credentials;
use lockkeeper_proto::net::Stream;
use lockkeeper_proto::peer;
use lockkeeper_proto::peer::peer_client::PeerClient;
use serde_json::json;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower_service::Service;

use crate::certificates::Authority;
use crate::harness::node::{Node, free_address};
use crate::harness::until;
use crate::stage::{Caller, ROOT_TOKEN};

#[derive(Clone)]
struct Dialer(Credentials);

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
            let address = target.authority().unwrap().to_string();
            credentials.connect(&address, Some("h2"), |_| Ok(())).await.map(TokioIo::new)
        })
    }
}

async fn peer(caller: &Caller) -> Result<PeerClient<Channel>, String> {
    let endpoint = Endpoint::from_shared(format!("http://{}", caller.address)).unwrap();
    let channel = endpoint.connect_with_connector(Dialer(caller.credentials())).await;
    channel.map(PeerClient::new).map_err(|error| format!("{error:?}"))
}

/// Everything that members ask each other, with bodies that nobody can read.
async fn ask_all(caller: &Caller) -> Vec<Result<(), Status>> {
    let mut client = peer(caller).await.unwrap();
    let call = || peer::Call { header: None, body: bytes::Bytes::from_static(b"x") };
    let parts = || tonic::Request::new(futures_util::stream::iter([peer::SnapshotPart::default()]));
    let appends = || tonic::Request::new(futures_util::stream::iter([peer::AppendRequest::default()]));
    let appended = async {
        let mut answers = client.clone().append(appends()).await?.into_inner();
        answers.message().await.map(|_| ())
    };
    vec![
        appended.await,
        client.hello(peer::HelloRequest::default()).await.map(|_| ()),
        client.vote(call()).await.map(|_| ()),
        client.pre_vote(call()).await.map(|_| ()),
        client.heartbeat(call()).await.map(|_| ()),
        client.transfer_leader(call()).await.map(|_| ()),
        client.snapshot_offer(peer::SnapshotOfferRequest::default()).await.map(|_| ()),
        client.snapshot_send(parts()).await.map(|_| ()),
    ]
}

struct Trio {
    nodes: Vec<Node>,
    nodes_ca: Authority,
    clients_ca: Authority,
    members_ca: Authority,
    folder: tempfile::TempDir,
}

impl Trio {
    /// Three nodes; `apart` gives the members a port of their own.
    async fn start(apart: bool) -> Trio {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let (nodes_ca, clients_ca) = (Authority::new(path, "nodes"), Authority::new(path, "clients"));
        let members_ca = Authority::new(path, "members");
        let token = path.join("root.token");
        std::fs::write(&token, ROOT_TOKEN).unwrap();
        let addresses: Vec<(String, String)> = (0..3)
            .map(|_| {
                let address = free_address(7420);
                let members = if apart { free_address(7421) } else { address.clone() };
                (address, members)
            })
            .collect();
        let list: Vec<_> =
            addresses.iter().enumerate().map(|(at, (_, members))| format!("{}={members}", at + 1)).collect();
        let list = list.join(",");
        let mut nodes = Vec::new();
        for (at, (address, members)) in addresses.iter().enumerate() {
            let own = nodes_ca.issue(&format!("node-{at}"), &[address]);
            // On a shared port the certificate that is shown to clients is shown to members too.
            let shown = match apart {
                true => members_ca.issue(&format!("node-{at}"), &[members]),
                false => members_ca.issue(&format!("node-{at}"), &[address]),
            };
            let text = |path: &Path| path.display().to_string();
            let served = if apart { &own } else { &shown };
            let mut words = vec![
                "--cell".to_owned(),
                list.clone(),
                "--tls-cert".to_owned(),
                text(&served.certificate),
                "--tls-key".to_owned(),
                text(&served.key),
                "--peer-ca".to_owned(),
                text(&members_ca.file),
                "--client-ca".to_owned(),
                text(&clients_ca.file),
                "--root-token-file".to_owned(),
                text(&token),
            ];
            if apart {
                words.extend(["--peer-listen".to_owned(), members.clone()]);
                words.extend(["--peer-cert".to_owned(), text(&shown.certificate)]);
                words.extend(["--peer-key".to_owned(), text(&shown.key)]);
            }
            let mut node = Node::new(at as u64 + 1, address.clone(), members.clone(), path);
            node.spawn(&words.iter().map(String::as_str).collect::<Vec<_>>());
            nodes.push(node);
        }
        let trio = Trio { nodes, nodes_ca, clients_ca, members_ca, folder };
        trio.leader().await;
        trio
    }

    /// Somebody who trusts the certificates at the port for clients.
    fn root(&self, node: &Node, apart: bool) -> Caller {
        let ca = if apart { &self.nodes_ca.file } else { &self.members_ca.file };
        let (address, ca) = (node.listens.clone(), Some(ca.clone()));
        Caller { address, ca, own: None, token: Some(ROOT_TOKEN.to_owned()) }
    }

    fn is_apart(&self) -> bool {
        self.nodes[0].listens != self.nodes[0].address
    }

    async fn leader(&self) -> usize {
        until("a leader", async || {
            for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.runs()) {
                let caller = self.root(node, self.is_apart());
                if let Ok((200, _)) = caller.get("/v1/lock?name=is-there-a-leader").await {
                    return Some(at);
                }
            }
            None
        })
        .await
    }

    async fn works(&self) {
        let leader = self.leader().await;
        let root = self.root(&self.nodes[leader], self.is_apart());
        let hosts: Vec<_> = self.nodes.iter().map(|node| node.listens.clone()).collect();
        let url = format!("lockkeeper://{}", hosts.join(","));
        let keeper: Keeper = root.builder().connect(&url).await.unwrap();
        keeper.lock("orders/1").acquire().await.unwrap().release().await.unwrap();
    }

    async fn term(&self) -> u64 {
        let leader = self.leader().await;
        let status = self.root(&self.nodes[leader], self.is_apart()).read("/v1/status").await.ok();
        status["term"].as_u64().unwrap()
    }
}

async fn strangers_stay_outside(trio: &Trio) {
    let node = &trio.nodes[0];
    let member_ca = Some(trio.members_ca.file.clone());
    let at = |own| Caller { address: node.address.clone(), ca: member_ca.clone(), own, token: None };
    let term = trio.term().await;
    // A member's certificate opens the door; what is asked is then judged.
    let member = at(Some(trio.members_ca.issue("node-9", &[])));
    let answers = ask_all(&member).await;
    assert!(answers[1].is_ok(), "{:?}", answers[1]);
    for answer in answers {
        let code = answer.err().map_or(Code::Ok, |status| status.code());
        assert!(!matches!(code, Code::PermissionDenied | Code::Unauthenticated), "{code:?}");
    }
    let strangers = Authority::new(trio.folder.path(), "strangers");
    let outside = [
        ("no certificate", at(None)),
        ("a client's", at(Some(trio.clients_ca.issue("ada", &[])))),
        ("the wrong authority", at(Some(strangers.issue("stranger", &[])))),
        ("expired", at(Some(trio.members_ca.issue_expired("late", &[])))),
        ("the root token", at(None).token(ROOT_TOKEN)),
    ];
    for (what, caller) in &outside {
        // Turned away by the handshake, or by the reception.
        let Ok(mut client) = peer(caller).await else { continue };
        let hello = client.hello(peer::HelloRequest::default()).await;
        let Err(refused) = hello else { panic!("{what} may say hello") };
        if refused.code() != Code::PermissionDenied {
            continue;
        }
        for answer in ask_all(caller).await {
            assert_eq!(answer.unwrap_err().code(), Code::PermissionDenied, "{what}");
        }
    }
    let mut plain = at(None);
    plain.ca = None;
    assert!(plain.get("/livez").await.is_err(), "without TLS nothing is answered");
    assert_eq!(trio.term().await, term, "nobody was made to stand");
    trio.works().await;
}

#[tokio::test]
async fn strangers_cannot_vote_or_append_on_the_shared_port() {
    let mut trio = Trio::start(false).await;
    strangers_stay_outside(&trio).await;
    // A cell under TLS outlives its leader, and its rules are on every node.
    let leader = trio.leader().await;
    let root = trio.root(&trio.nodes[leader], false);
    root.post("/v1/access/grant", json!({"identity": "ci", "prefix": "builds/", "rights": ["acquire"]}))
        .await
        .ok();
    let made = root.post("/v1/access/token/create", json!({"identity": "ci"})).await.ok();
    trio.nodes[leader].kill();
    let next = trio.leader().await;
    assert_ne!(next, leader);
    let ci = trio.root(&trio.nodes[next], false).token(made["token"].as_str().unwrap());
    let session = ci.session().await;
    ci.acquire(&session, "builds/1").await.ok();
    ci.acquire(&session, "orders/1").await.refused(403, "forbidden");
}

#[tokio::test]
async fn strangers_cannot_vote_or_append_on_a_port_of_the_members() {
    let trio = Trio::start(true).await;
    strangers_stay_outside(&trio).await;
}
