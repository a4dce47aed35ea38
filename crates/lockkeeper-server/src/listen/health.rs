//! `grpc.health.v1`: the same answer as `/readyz`, for probes over gRPC.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::Stream;
use lockkeeper_api::v1::lockkeeper_server::SERVICE_NAME;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::grpc;
use crate::api::{Api, WeakApi};
use crate::limits::budget::ConnectionBudget;

/// How often the status is checked while there are watchers.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// The health service.
pub(super) struct Service {
    api: Api,
    shared: Arc<SharedStatus>,
}

/// The status that all watchers share. One task updates it while there are any.
struct SharedStatus {
    status: watch::Sender<ServingStatus>,
    is_updated: AtomicBool,
}

impl Service {
    pub(super) fn server(api: Api) -> HealthServer<Service> {
        let (status, _) = watch::channel(ServingStatus::Unknown);
        let shared = Arc::new(SharedStatus { status, is_updated: AtomicBool::new(false) });
        HealthServer::new(Service { api, shared })
    }

    /// Returns the status and its changes.
    fn subscribe(&self) -> watch::Receiver<ServingStatus> {
        let mut receiver = self.shared.status.subscribe();
        self.shared.update(&self.api);
        receiver.mark_changed();
        if !self.shared.is_updated.swap(true, Ordering::AcqRel) {
            tokio::spawn(self.shared.clone().keep_updated(self.api.downgrade()));
        }
        receiver
    }
}

impl SharedStatus {
    fn update(&self, api: &Api) {
        let now = status_now(api);
        self.status.send_if_modified(|status| std::mem::replace(status, now) != now);
    }

    /// Updates the status until there are no watchers. Does not keep the node alive.
    async fn keep_updated(self: Arc<Self>, api: WeakApi) {
        loop {
            tokio::time::sleep(POLL_EVERY).await;
            let Some(api) = api.upgrade() else { return };
            self.update(&api);
            if self.status.receiver_count() == 0 {
                self.is_updated.store(false, Ordering::Release);
                // A watcher that came in between has not started another task.
                if self.status.receiver_count() == 0 || self.is_updated.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        }
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
        // Set by the auth layer.
        let connection = request.extensions().get::<ConnectionBudget>().cloned().unwrap_or_default();
        let seat = connection.admit_health_watch().map_err(grpc::status)?;
        let (unknown, status) = match is_known(&request.get_ref().service) {
            true => (None, self.subscribe()),
            false => {
                let (unknown, mut status) = watch::channel(ServingStatus::ServiceUnknown);
                status.mark_changed();
                (Some(unknown), status)
            }
        };
        let state = (status, (unknown, seat));
        Ok(Response::new(Box::pin(futures_util::stream::unfold(state, |(mut status, held)| async move {
            status.changed().await.ok()?;
            let now = *status.borrow_and_update();
            Some((Ok(HealthCheckResponse { status: now.into() }), (status, held)))
        }))))
    }
}
