//! gRPC as used from other languages: every operation as a unary call, the stream, health and reflection.

use lockkeeper_api::v1;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_api::v1::{answer, operation};
use lockkeeper_server::{Node, NodeConfig};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

async fn start() -> (Node, Channel) {
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let address = node.listen("127.0.0.1:0").await.unwrap();
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    (node, channel)
}

async fn open(client: &mut LockkeeperClient<Channel>) -> String {
    let request = v1::OpenSessionRequest { ttl_ms: 30_000, owner: "grpc".into() };
    client.open_session(request).await.unwrap().into_inner().session
}

fn acquire(session: &str, lock: &str) -> v1::AcquireRequest {
    v1::AcquireRequest { session: session.into(), lock: lock.into(), ..Default::default() }
}

fn code(status: &tonic::Status) -> &str {
    status.metadata().get("lockkeeper-code").map_or("", |value| value.to_str().unwrap())
}

#[tokio::test(flavor = "current_thread")]
async fn every_operation_works_as_a_unary_call() {
    let (node, channel) = start().await;
    let mut client = LockkeeperClient::new(channel);
    let session = open(&mut client).await;
    let renewed = client.keep_alive(v1::KeepAliveRequest { session: session.clone() }).await.unwrap();
    assert_eq!(renewed.into_inner().ttl_ms, 30_000);

    let grant = client.acquire(acquire(&session, "db")).await.unwrap().into_inner();
    assert_eq!((grant.locks, grant.token), (vec!["db".to_owned()], 1));
    let check = v1::CheckTokenRequest { sequencer: grant.sequencer.clone(), ..Default::default() };
    assert!(client.check_token(check.clone()).await.unwrap().into_inner().valid);

    let busy = client.acquire(acquire(&session, "db")).await.unwrap_err();
    assert_eq!((busy.code(), code(&busy)), (Code::FailedPrecondition, "busy"));

    let who = client.get_lock(v1::GetLockRequest { lock: "db".into() }).await.unwrap().into_inner();
    assert_eq!((who.holders[0].token, who.holders[0].owner.as_str()), (1, "grpc"));
    let list = client.list_locks(v1::ListLocksRequest::default()).await.unwrap().into_inner();
    assert_eq!((list.locks.len(), list.more), (1, false));

    let put = v1::PutValueRequest {
        key: "k".into(),
        value: vec![0xff],
        fence: Some(v1::Fence { lock: "db".into(), token: 1 }),
        if_version: Some(0),
    };
    assert_eq!(client.put_value(put.clone()).await.unwrap().into_inner().version, 1);
    let mismatch = client.put_value(put.clone()).await.unwrap_err();
    assert_eq!(code(&mismatch), "version_mismatch");
    assert_eq!(mismatch.metadata().get("lockkeeper-version").unwrap(), "1");
    let value = client.get_value(v1::GetValueRequest { key: "k".into() }).await.unwrap().into_inner();
    assert_eq!((value.value, value.version, value.token), (vec![0xff], 1, 1));

    let forced = v1::ForceReleaseRequest { lock: "db".into(), reason: "test".into() };
    let forced = client.force_release(forced).await.unwrap().into_inner();
    assert_eq!((forced.released, forced.last_token), (1, 2));
    let stale = client.put_value(v1::PutValueRequest { if_version: None, ..put }).await.unwrap_err();
    assert_eq!((stale.code(), code(&stale)), (Code::FailedPrecondition, "stale_token"));
    assert!(!client.check_token(check).await.unwrap().into_inner().valid);
    let not_held =
        v1::ReleaseRequest { session: session.clone(), lock: "db".into(), token: 1, forget: false };
    assert_eq!(code(&client.release(not_held).await.unwrap_err()), "not_held");

    let all = v1::AcquireAllRequest {
        session: session.clone(),
        locks: vec!["b".into(), "a".into()],
        ..Default::default()
    };
    let all = client.acquire_all(all).await.unwrap().into_inner();
    assert_eq!(all.locks, ["a", "b"]);
    let release =
        v1::ReleaseRequest { session: session.clone(), lock: "a".into(), token: all.token, forget: false };
    client.release(release).await.unwrap();
    client.delete_value(v1::DeleteValueRequest { key: "k".into(), ..Default::default() }).await.unwrap();

    let status = client.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.leader, status.sessions, status.locks_held), (1, 1, 1));

    let election = "e".to_owned();
    let observed = v1::ObserveElectionRequest { election: election.clone(), ..Default::default() };
    let mut observed = client.observe_election(observed).await.unwrap().into_inner();
    assert_eq!(observed.message().await.unwrap().unwrap().leader, None);
    let campaign = v1::CampaignRequest {
        session: session.clone(),
        election: election.clone(),
        value: "v".into(),
        ..Default::default()
    };
    let epoch = client.campaign(campaign.clone()).await.unwrap().into_inner().epoch;
    let leader = observed.message().await.unwrap().unwrap().leader.unwrap();
    assert_eq!((leader.epoch, leader.value.as_str()), (epoch, "v"));
    assert_eq!(code(&client.campaign(campaign).await.unwrap_err()), "busy");
    let to_nobody = v1::HandOverRequest {
        session: session.clone(),
        election: election.clone(),
        epoch,
        to: "nobody".into(),
    };
    assert_eq!(code(&client.hand_over(to_nobody).await.unwrap_err()), "invalid");
    let seen = v1::GetElectionRequest { election: election.clone() };
    assert_eq!(client.get_election(seen).await.unwrap().into_inner().leader.unwrap().epoch, epoch);
    client.resign(v1::ResignRequest { session: session.clone(), election, epoch }).await.unwrap();
    assert_eq!(observed.message().await.unwrap().unwrap().leader, None);

    let take = v1::TakeRateRequest { limiter: "l".into(), permits: 1, rate_per_s: 0.1, burst: 1 };
    assert!(client.take_rate(take.clone()).await.unwrap().into_inner().allowed);
    assert!(client.take_rate(take).await.unwrap().into_inner().retry_after_ms > 5_000);
    assert_eq!(code(&client.take_rate(v1::TakeRateRequest::default()).await.unwrap_err()), "invalid");

    client.close_session(v1::CloseSessionRequest { session: session.clone() }).await.unwrap();
    let lost = client.keep_alive(v1::KeepAliveRequest { session }).await.unwrap_err();
    assert_eq!((lost.code(), code(&lost)), (Code::NotFound, "session_lost"));
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn wait_is_cancelled_by_its_request_id_and_by_a_disconnect() {
    let (node, channel) = start().await;
    let mut client = LockkeeperClient::new(channel);
    let session = open(&mut client).await;
    client.acquire(acquire(&session, "db")).await.unwrap();

    let mut second = client.clone();
    let mut waits = acquire(&session, "db");
    (waits.wait_ms, waits.request) = (60_000, "r1".into());
    let waiting = tokio::spawn(async move { second.acquire(waits).await });
    wait_for(&node, 1).await;
    client.cancel(v1::CancelRequest { session: session.clone(), request: "r1".into() }).await.unwrap();
    assert_eq!(code(&waiting.await.unwrap().unwrap_err()), "timeout");

    let mut third = client.clone();
    let waits = v1::AcquireRequest { wait_forever: true, ..acquire(&session, "db") };
    let waiting = tokio::spawn(async move { third.acquire(waits).await });
    wait_for(&node, 1).await;
    waiting.abort();
    wait_for(&node, 0).await;
    node.stop().await;
}

async fn wait_for(node: &Node, waiting: u32) {
    let waited = async {
        while node.api().lock("db").unwrap().waiting != waiting {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), waited).await.expect("the queue changes");
}

#[tokio::test(flavor = "current_thread")]
async fn stream_carries_many_operations_in_a_frame() {
    let (node, channel) = start().await;
    let mut client = LockkeeperClient::new(channel);
    let (frames, outgoing) = tokio::sync::mpsc::channel(8);
    let mut answers =
        client.stream(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    let open = operation::Kind::OpenSession(v1::OpenSessionRequest { ttl_ms: 30_000, owner: String::new() });
    frames
        .send(v1::ClientFrame { operations: vec![v1::Operation { id: 1, kind: Some(open) }] })
        .await
        .unwrap();
    let welcome = answers.message().await.unwrap().unwrap();
    assert!(matches!(welcome.events[0].kind, Some(v1::event::Kind::Welcome(v1::Welcome { node_id: 1 }))));
    let frame = answers.message().await.unwrap().unwrap();
    let Some(answer::Kind::OpenSession(opened)) = &frame.answers[0].kind else { panic!("{frame:?}") };

    let operations = (0..500)
        .map(|number| v1::Operation {
            id: 10 + number,
            kind: Some(operation::Kind::Acquire(acquire(&opened.session, &format!("lock-{number}")))),
        })
        .collect();
    frames.send(v1::ClientFrame { operations }).await.unwrap();
    let mut tokens = Vec::new();
    while tokens.len() < 500 {
        for answer in answers.message().await.unwrap().unwrap().answers {
            let Some(answer::Kind::Grant(grant)) = answer.kind else { panic!("{answer:?}") };
            tokens.push(grant.token);
        }
    }
    assert_eq!(tokens, (1..=500).collect::<Vec<u64>>());

    let nonsense = v1::ClientFrame { operations: vec![v1::Operation { id: 9_999, kind: None }] };
    frames.send(nonsense).await.unwrap();
    let frame = answers.message().await.unwrap().unwrap();
    let Some(answer::Kind::Error(error)) = &frame.answers[0].kind else { panic!("{frame:?}") };
    assert_eq!(error.code, "invalid");
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn health_and_reflection_answer() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let (node, channel) = start().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    for service in ["", "lockkeeper.v1.Lockkeeper"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("no list of services")
    };
    assert!(list.service.iter().any(|service| service.name == "lockkeeper.v1.Lockkeeper"), "{list:?}");
    node.stop().await;
}
