//! What a probe by gRPC hears. It must be what `/readyz` says.

use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::cell::Cell;
use crate::harness::until;

const SERVICE: &str = "lockkeeper.v1.Lockkeeper";

/// Whether a node says that it can serve, as a whole and as the service for clients.
pub(crate) async fn says_serving(cell: &Cell, node: u64) -> bool {
    let address = format!("http://{}", cell.node(node).listens);
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut says = Vec::new();
    for service in ["", SERVICE] {
        let asked = HealthCheckRequest { service: service.to_owned() };
        says.push(client.check(asked).await.unwrap().into_inner().status());
    }
    assert!(matches!(says[0], ServingStatus::Serving | ServingStatus::NotServing), "{says:?}");
    assert_eq!(says[0], says[1]);
    says[0] == ServingStatus::Serving
}

#[tokio::test]
async fn whoever_watches_hears_that_the_majority_is_gone_and_back() {
    let mut cell = Cell::start(3).await;
    let leader = cell.until_agreed().await;
    let address = format!("http://{}", cell.node(leader).listens);
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let asked = HealthCheckRequest { service: SERVICE.to_owned() };
    let mut watch = client.watch(asked).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let down = cell.others(leader);
    for id in &down {
        // A follower sends callers on: it counts as ready as soon as it has heard the leader.
        until("the follower to say that it is ready", async || says_serving(&cell, *id).await.then_some(()))
            .await;
        cell.kill(*id);
    }
    let next = tokio::time::timeout(std::time::Duration::from_secs(20), watch.message()).await;
    assert_eq!(next.unwrap().unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(!says_serving(&cell, leader).await);
    assert_eq!(cell.get(leader, "/readyz").await.status, 503);
    cell.spawn(down[0]);
    let next = tokio::time::timeout(std::time::Duration::from_secs(20), watch.message()).await;
    assert_eq!(next.unwrap().unwrap().unwrap().status(), ServingStatus::Serving);
    until("the node to say that it is ready", async || says_serving(&cell, leader).await.then_some(())).await;

    let mut other =
        client.watch(HealthCheckRequest { service: "other".to_owned() }).await.unwrap().into_inner();
    assert_eq!(other.message().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    let refused = client.check(HealthCheckRequest { service: "other".to_owned() }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
}
