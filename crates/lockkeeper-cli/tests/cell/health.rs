//! The gRPC health service, which must agree with `/readyz`.

use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::cell::Cell;
use crate::harness::until;

const SERVICE: &str = "lockkeeper.v1.Lockkeeper";

/// Whether a node reports SERVING, as a whole and for the client service.
pub(crate) async fn is_serving(cell: &Cell, node: u64) -> bool {
    let address = format!("http://{}", cell.node(node).listen_addr);
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut statuses = Vec::new();
    for service in ["", SERVICE] {
        let request = HealthCheckRequest { service: service.to_owned() };
        statuses.push(client.check(request).await.unwrap().into_inner().status());
    }
    assert!(matches!(statuses[0], ServingStatus::Serving | ServingStatus::NotServing), "{statuses:?}");
    assert_eq!(statuses[0], statuses[1]);
    statuses[0] == ServingStatus::Serving
}

#[tokio::test]
async fn health_watch_reports_loss_and_return_of_the_majority() {
    let mut cell = Cell::start(3).await;
    let leader = cell.until_agreed().await;
    let address = format!("http://{}", cell.node(leader).listen_addr);
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let request = HealthCheckRequest { service: SERVICE.to_owned() };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let down = cell.others(leader);
    for id in &down {
        // A follower redirects clients: it is ready as soon as it knows the leader.
        until("the follower to be ready", async || is_serving(&cell, *id).await.then_some(())).await;
        cell.kill(*id);
    }
    let next = tokio::time::timeout(std::time::Duration::from_secs(20), watch.message()).await;
    assert_eq!(next.unwrap().unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(!is_serving(&cell, leader).await);
    assert_eq!(cell.get(leader, "/readyz").await.status, 503);
    cell.spawn(down[0]);
    let next = tokio::time::timeout(std::time::Duration::from_secs(20), watch.message()).await;
    assert_eq!(next.unwrap().unwrap().unwrap().status(), ServingStatus::Serving);
    until("the node to be ready", async || is_serving(&cell, leader).await.then_some(())).await;

    let mut other =
        client.watch(HealthCheckRequest { service: "other".to_owned() }).await.unwrap().into_inner();
    assert_eq!(other.message().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    let refused = client.check(HealthCheckRequest { service: "other".to_owned() }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
}
