//! Subscriptions to releases: one connection for each keeper, opened on the first wait. A message can be lost, so waiters
//! poll as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use redis::Client;
use redis::aio::PubSubSink;
use tokio::sync::{mpsc, watch};

use super::lock::keys;
use crate::backoff;
use crate::engines::AcquireRequest;
use crate::engines::runtime::leases::ReleaseEvents;

/// The limit of subscriptions that wait for the task; beyond it, waiters only poll.
const REQUESTS_MAX: usize = 1_024;
/// The interval between removals of channels without waiters.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(10);

/// A channel to subscribe to, and the sender that notifies its waiters.
type Request = (String, watch::Sender<()>);
/// The senders that notify waiters, by channel.
type Channels = Arc<Mutex<HashMap<String, watch::Sender<()>>>>;

/// Receives notifications of releases. Dropping it ends its task.
pub(crate) struct Subscriber {
    client: Client,
    started: Mutex<Option<mpsc::Sender<Request>>>,
    channels: Channels,
}

impl Subscriber {
    pub(super) fn new(client: Client) -> Subscriber {
        Subscriber { client, started: Mutex::default(), channels: Arc::default() }
    }

    /// Subscribes to releases of the first lock of the request; its waiters poll the others.
    pub(super) fn subscribe(&self, request: &AcquireRequest) -> ReleaseEvents {
        let channel = format!("{}:free", keys(request)[0]);
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = channels.get(&channel) {
            return ReleaseEvents::from(sender.subscribe());
        }
        let sender = watch::Sender::new(());
        let receiver = sender.subscribe();
        if self.start().try_send((channel.clone(), sender.clone())).is_ok() {
            channels.insert(channel, sender);
        }
        ReleaseEvents::from(receiver)
    }

    fn start(&self) -> mpsc::Sender<Request> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started
            .get_or_insert_with(|| {
                let (sender, requests) = mpsc::channel(REQUESTS_MAX);
                tokio::spawn(run(self.client.clone(), requests, Arc::clone(&self.channels)));
                sender
            })
            .clone()
    }

    pub(super) fn stop(&self) {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Runs until the keeper is closed or dropped.
async fn run(client: Client, mut requests: mpsc::Receiver<Request>, channels: Channels) {
    let mut attempt = 0;
    while !requests.is_closed() {
        match client.get_async_pubsub().await {
            Ok(pubsub) => {
                attempt = 0;
                let (sink, messages) = pubsub.split();
                if forward_messages(sink, messages, &mut requests, &channels).await.is_none() {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "failed to subscribe to releases: waiters poll"),
        }
        attempt += 1;
        tokio::time::sleep(backoff::pause(attempt)).await;
    }
}

/// Subscribes to channels and notifies waiters until the connection is lost; `None` when the keeper is gone.
async fn forward_messages(
    mut sink: PubSubSink,
    mut messages: redis::aio::PubSubStream,
    requests: &mut mpsc::Receiver<Request>,
    channels: &Channels,
) -> Option<()> {
    let known: Vec<String> =
        channels.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
    for channel in known {
        if sink.subscribe(&channel).await.is_err() {
            return Some(());
        }
        // The lock may have been released while there was no subscription.
        notify(channels, &channel);
    }
    let mut cleanup = tokio::time::interval(CLEANUP_INTERVAL);
    loop {
        tokio::select! {
            request = requests.recv() => {
                let (channel, sender) = request?;
                if sink.subscribe(&channel).await.is_err() {
                    return Some(());
                }
                // The lock may have been released before the subscription.
                sender.send_replace(());
            }
            message = messages.next() => match message {
                Some(message) => notify(channels, message.get_channel_name()),
                None => return Some(()),
            },
            _ = cleanup.tick() => {
                for channel in remove_unused(channels) {
                    if sink.unsubscribe(&channel).await.is_err() {
                        return Some(());
                    }
                }
            }
        }
    }
}

fn notify(channels: &Channels, channel: &str) {
    if let Some(sender) = channels.lock().unwrap_or_else(PoisonError::into_inner).get(channel) {
        sender.send_replace(());
    }
}

/// Removes the channels without waiters, and returns their names.
fn remove_unused(channels: &Channels) -> Vec<String> {
    let mut channels = channels.lock().unwrap_or_else(PoisonError::into_inner);
    let unused: Vec<String> = channels
        .iter()
        .filter(|(_, sender)| sender.receiver_count() == 0)
        .map(|(name, _)| name.clone())
        .collect();
    for name in &unused {
        channels.remove(name);
    }
    unused
}
