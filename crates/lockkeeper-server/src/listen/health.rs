//! `grpc.health.v1`: the same answer as `/readyz`, for those who probe by gRPC.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use lockkeeper_api::v1::lockkeeper_server::SERVICE_NAME;
use tokio::time::{Interval, MissedTickBehavior};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::api::Api;

/// How often the node is looked at for somebody who watches.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Asked anew each time: whether a node can serve is nothing to remember.
pub(super) struct Service {
    api: Api,
}

impl Service {
    pub(super) fn server(api: Api) -> HealthServer<Service> {
        HealthServer::new(Service { api })
    }
}

fn status_now(api: &Api) -> ServingStatus {
    match api.role() {
        Ok(_) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

/// The node as a whole, or its one service for clients.
fn is_known(service: &str) -> bool {
    service.is_empty() || service == SERVICE_NAME
}

#[tonic::async_trait]
impl Health for Service {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_known(&request.get_ref().service) {
            let known =
                format!("ask for \"\" or \"{SERVICE_NAME}\": this node has no other service to ask for");
            return Err(Status::not_found(known));
        }
        Ok(Response::new(HealthCheckResponse { status: status_now(&self.api).into() }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut ticker = tokio::time::interval(LOOK_EVERY);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let api = is_known(&request.get_ref().service).then(|| self.api.clone());
        let watch = Watch { api, ticker, said: None };
        Ok(Response::new(Box::pin(futures_util::stream::unfold(watch, |mut watch| async move {
            let status = watch.changed().await;
            Some((Ok(HealthCheckResponse { status: status.into() }), watch))
        }))))
    }
}

/// Somebody who wants to know when it changes.
struct Watch {
    /// None for a service that is not here.
    api: Option<Api>,
    ticker: Interval,
    said: Option<ServingStatus>,
}

impl Watch {
    async fn changed(&mut self) -> ServingStatus {
        loop {
            self.ticker.tick().await;
            let status = self.api.as_ref().map_or(ServingStatus::ServiceUnknown, status_now);
            if self.said != Some(status) {
                self.said = Some(status);
                return status;
            }
        }
    }
}
