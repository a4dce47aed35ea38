//! Subscriptions to releases: one connection for each keeper, opened when somebody first waits. A message can be lost, so
//! waiters poll as well.

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

/// Subscriptions that wait for the task; beyond that, waiters only poll.
const REQUESTS_MAX: usize = 1_024;
/// How often channels without subscribers are left.
const SWEEP: Duration = Duration::from_secs(10);

/// A channel to subscribe to, and who is notified.
type Request = (String, watch::Sender<()>);
/// Who is notified, by channel.
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

    /// ReleaseEvents of the first of the locks; the others are covered by timers.
    pub(super) fn subscribe(&self, request: &AcquireRequest) -> ReleaseEvents {
        let channel = format!("{}:free", keys(request)[0]);
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = channels.get(&channel) {
            return ReleaseEvents::from(known.subscribe());
        }
        let news = watch::Sender::new(());
        let receiver = news.subscribe();
        if self.start().try_send((channel.clone(), news.clone())).is_ok() {
            channels.insert(channel, news);
        }
        ReleaseEvents::from(receiver)
    }

    fn start(&self) -> mpsc::Sender<Request> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started
            .get_or_insert_with(|| {
                let (requests, asked) = mpsc::channel(REQUESTS_MAX);
                tokio::spawn(run(self.client.clone(), asked, Arc::clone(&self.channels)));
                requests
            })
            .clone()
    }

    pub(super) fn stop(&self) {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Until the keeper is gone.
async fn run(client: Client, mut asked: mpsc::Receiver<Request>, channels: Channels) {
    let mut attempt = 0;
    while !asked.is_closed() {
        match client.get_async_pubsub().await {
            Ok(pubsub) => {
                attempt = 0;
                let (sink, messages) = pubsub.split();
                if hear(sink, messages, &mut asked, &channels).await.is_none() {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "failed to subscribe to releases: waiters poll"),
        }
        attempt += 1;
        tokio::time::sleep(backoff::pause(attempt)).await;
    }
}

/// Until the connection is lost; `None` when the keeper is gone.
async fn hear(
    mut sink: PubSubSink,
    mut messages: redis::aio::PubSubStream,
    asked: &mut mpsc::Receiver<Request>,
    channels: &Channels,
) -> Option<()> {
    let known: Vec<String> =
        channels.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
    for channel in known {
        if sink.subscribe(&channel).await.is_err() {
            return Some(());
        }
        tell(channels, &channel);
    }
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            request = asked.recv() => {
                let (channel, news) = request?;
                if sink.subscribe(&channel).await.is_err() {
                    return Some(());
                }
                // It may have been released before the subscription.
                news.send_replace(());
            }
            message = messages.next() => match message {
                Some(message) => tell(channels, message.get_channel_name()),
                None => return Some(()),
            },
            _ = sweep.tick() => {
                for channel in without_listeners(channels) {
                    if sink.unsubscribe(&channel).await.is_err() {
                        return Some(());
                    }
                }
            }
        }
    }
}

fn tell(channels: &Channels, channel: &str) {
    if let Some(news) = channels.lock().unwrap_or_else(PoisonError::into_inner).get(channel) {
        news.send_replace(());
    }
}

fn without_listeners(channels: &Channels) -> Vec<String> {
    let mut channels = channels.lock().unwrap_or_else(PoisonError::into_inner);
    let silent: Vec<String> = channels
        .iter()
        .filter(|(_, news)| news.receiver_count() == 0)
        .map(|(name, _)| name.clone())
        .collect();
    for name in &silent {
        channels.remove(name);
    }
    silent
}
