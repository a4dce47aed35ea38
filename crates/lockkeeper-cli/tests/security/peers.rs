//! Members know each other by their certificates: a stranger cannot vote, append or even say hello.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper::Keeper;
use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_client::PeerClient;
use lockkeeper_net::frame::{self, MEMBERS_GREETING};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::certificates::Authority;
use crate::harness::network::{Delay, Network};
use crate::harness::node::{Node, free_address};
use crate::harness::{until, write_secret};
use crate::stage::{Caller, ROOT_TOKEN};

async fn peer(caller: &Caller) -> Result<PeerClient<Channel>, String> {
    caller.channel().await.map(PeerClient::new)
}

/// As a leader: greets the node and sends it entries. Whoever is turned away is not even greeted.
async fn append(caller: &Caller) -> Result<(), Status> {
    let mut stream = caller.credentials().connect(&caller.address, None, |_| Ok(())).await?;
    stream.write_all(MEMBERS_GREETING).await?;
    stream.flush().await?;
    let mut greeting = [0; MEMBERS_GREETING.len()];
    if stream.read_exact(&mut greeting).await.is_err() {
        return Err(Status::permission_denied("not greeted"));
    }
    let mut bytes = BytesMut::new();
    frame::encode(&peer::PeerRequest::default(), &mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    bytes.clear();
    loop {
        if let Some(answer) = frame::decode::<peer::PeerAnswer>(&mut bytes, 1 << 20).unwrap() {
            return match answer.refused.is_empty() {
                true => Ok(()),
                false => Err(Status::new(Code::from_i32(answer.code), answer.refused)),
            };
        }
        assert_ne!(stream.read_buf(&mut bytes).await?, 0, "ended without an answer");
    }
}

/// Everything that members ask each other, with bodies that nobody can read.
async fn ask_all(caller: &Caller) -> Vec<Result<(), Status>> {
    let mut client = peer(caller).await.unwrap();
    let parts = || tonic::Request::new(futures_util::stream::iter([peer::SnapshotPart::default()]));
    vec![
        append(caller).await,
        client.hello(peer::HelloRequest::default()).await.map(|_| ()),
        client.snapshot_offer(peer::SnapshotOfferRequest::default()).await.map(|_| ()),
        client.snapshot_send(parts()).await.map(|_| ()),
    ]
}

struct Trio {
    nodes: Vec<Node>,
    /// What each was started with.
    words: Vec<Vec<String>>,
    nodes_ca: Authority,
    clients_ca: Authority,
    members_ca: Authority,
    folder: tempfile::TempDir,
}

impl Trio {
    /// Three nodes; `apart` gives the members a port of their own.
    async fn start(apart: bool) -> Trio {
        Trio::start_with(apart, None, &[]).await
    }

    /// The same with a network between the members' ports, and more settings.
    async fn start_with(apart: bool, network: Option<&Network>, more: &[&str]) -> Trio {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let (nodes_ca, clients_ca) = (Authority::new(path, "nodes"), Authority::new(path, "clients"));
        let members_ca = Authority::new(path, "members");
        let token = path.join("root.token");
        write_secret(&token, ROOT_TOKEN);
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
        let (mut nodes, mut all_words) = (Vec::new(), Vec::new());
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
            words.extend(more.iter().map(|word| (*word).to_owned()));
            let id = at as u64 + 1;
            if apart {
                // Behind the network, the node listens at another address than that by which the others know it.
                let listens = match network {
                    Some(network) => {
                        let real = free_address(7421);
                        network.proxy(id, members, &real).await;
                        real
                    }
                    None => members.clone(),
                };
                words.extend(["--peer-listen".to_owned(), listens]);
                words.extend(["--peer-cert".to_owned(), text(&shown.certificate)]);
                words.extend(["--peer-key".to_owned(), text(&shown.key)]);
            }
            let mut node = Node::new(id, address.clone(), members.clone(), path);
            let given = words.iter().map(String::as_str).collect::<Vec<_>>();
            match network {
                Some(network) => network.start(id, || node.spawn(&given)),
                None => drop(node.spawn(&given)),
            }
            nodes.push(node);
            all_words.push(words);
        }
        let trio = Trio { nodes, words: all_words, nodes_ca, clients_ca, members_ca, folder };
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

/// The handshakes take four round trips.
#[tokio::test]
async fn members_all_over_the_world_hold_together_under_tls() {
    let network = Network::new();
    network.delay(Some(Delay::of_round_trip(400, 0)));
    let trio = Trio::start_with(true, Some(&network), &["--timing", "global"]).await;
    let (leader, term) = (trio.leader().await, trio.term().await);
    let root = trio.root(&trio.nodes[leader], true);
    let keeper: Keeper = root.builder().connect(&format!("lockkeeper://{}", root.address)).await.unwrap();
    let (began, mut pairs) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(4) {
        keeper.lock("far").acquire().await.unwrap().release().await.unwrap();
        pairs += 1;
    }
    println!("{pairs} pairs in {:?}", began.elapsed());
    assert_eq!((trio.leader().await, trio.term().await), (leader, term));
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
    let appended = answers[0].as_ref().unwrap_err();
    assert_eq!((appended.code(), appended.message()), (Code::InvalidArgument, "the message has no header"));
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
    // Who changed them is known by the next leader as well.
    let acts = trio.root(&trio.nodes[next], false).read("/v1/audit").await.ok()["acts"].clone();
    let granted =
        acts.as_array().unwrap().iter().find(|act| act["change"].as_str().unwrap().contains("acquire"));
    assert!(granted.is_some_and(|act| act["what"] == "access" && act["by"] == "root"), "{acts}");
}

#[tokio::test]
async fn strangers_cannot_vote_or_append_on_a_port_of_the_members() {
    let trio = Trio::start(true).await;
    strangers_stay_outside(&trio).await;
}

/// The whole authority of the members is replaced under a running cell: first both are trusted, then each node shows a
/// certificate of the new one, then the old one is trusted no longer.
#[tokio::test]
async fn the_authority_of_the_members_is_replaced_without_a_restart() {
    let mut trio = Trio::start(true).await;
    let next = Authority::new(trio.folder.path(), "next-members");
    let at = |node: &Node, trusted: &Authority, own| {
        let (address, ca) = (node.address.clone(), Some(trusted.file.clone()));
        Caller { address, ca, own: Some(own), token: None }
    };
    let says_hello = async |caller: &Caller| match peer(caller).await {
        Ok(mut client) => client.hello(peer::HelloRequest::default()).await.is_ok(),
        Err(_) => false,
    };
    let old_member = trio.members_ca.issue("old", &[]);
    let new_member = next.issue("new", &[]);
    assert!(!says_hello(&at(&trio.nodes[0], &trio.members_ca, new_member.clone())).await);

    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let (old_text, new_text) = (read(&trio.members_ca.file), read(&next.file));
    replace(&trio.members_ca.file, &format!("{old_text}{new_text}"));
    for node in &trio.nodes {
        let caller = at(node, &trio.members_ca, new_member.clone());
        until("both authorities to be trusted", async || says_hello(&caller).await.then_some(())).await;
    }
    for (at, node) in trio.nodes.iter().enumerate() {
        let renewed = next.issue(&format!("node-{at}"), &[&node.address]);
        let shown = trio.folder.path().join(format!("members-ca-node-{at}"));
        std::fs::rename(&renewed.certificate, shown.with_extension("pem")).unwrap();
        std::fs::rename(&renewed.key, shown.with_extension("key")).unwrap();
    }
    for node in &trio.nodes {
        let caller = at(node, &next, new_member.clone());
        until("the new certificate", async || says_hello(&caller).await.then_some(())).await;
    }
    replace(&trio.members_ca.file, &new_text);
    for node in &trio.nodes {
        let caller = at(node, &next, old_member.clone());
        until("the old authority to be forgotten", async || (!says_hello(&caller).await).then_some(())).await;
    }
    trio.works().await;

    // The one that is started anew trusts the new authority alone. The others, which were never restarted, come to it
    // with what they have read since.
    let leader = trio.leader().await;
    trio.nodes[leader].kill();
    trio.works().await;
    let words: Vec<_> = trio.words[leader].iter().map(String::as_str).collect();
    trio.nodes[leader].spawn(&words);
    let back = trio.root(&trio.nodes[leader], true);
    until("it to follow", async || back.get("/readyz").await.ok().filter(|(status, _)| *status == 200)).await;
    trio.works().await;
}

/// As a renewal does it: beside, and then in place.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("beside");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, path).unwrap();
}
