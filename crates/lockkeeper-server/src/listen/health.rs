//! `grpc.health.v1`: the same answer as `/readyz`, for probes over gRPC.

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

/// How often the status is checked for a watcher.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// The health service. Computes the status on each call.
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

/// Whether this is the node as a whole or its service for clients.
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
            let known = format!("unknown service: use \"\" or \"{SERVICE_NAME}\"");
            return Err(Status::not_found(known));
        }
        Ok(Response::new(HealthCheckResponse { status: status_now(&self.api).into() }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut ticker = tokio::time::interval(POLL_EVERY);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let api = is_known(&request.get_ref().service).then(|| self.api.clone());
        let watch = Watch { api, ticker, last_sent: None };
        Ok(Response::new(Box::pin(futures_util::stream::unfold(watch, |mut watch| async move {
            let status = watch.changed().await;
            Some((Ok(HealthCheckResponse { status: status.into() }), watch))
        }))))
    }
}

/// A watcher of the status.
struct Watch {
    /// None for an unknown service.
    api: Option<Api>,
    ticker: Interval,
    last_sent: Option<ServingStatus>,
}

impl Watch {
    async fn changed(&mut self) -> ServingStatus {
        loop {
            self.ticker.tick().await;
            let status = self.api.as_ref().map_or(ServingStatus::ServiceUnknown, status_now);
            if self.last_sent != Some(status) {
                self.last_sent = Some(status);
                return status;
            }
        }
    }
}
