//! The client against a simulated node with selectable faults.

mod cancel;
mod faults;
mod peer;
mod states;
mod usage;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use self::peer::Peer;
use crate::fencing::Fenced;
use crate::keeper::Keeper;
use crate::options::Options;

fn options() -> Options {
    Options {
        owner: "test".into(),
        ttl: Duration::from_secs(10),
        connect_timeout: Duration::from_millis(500),
        request_timeout: Duration::from_secs(2),
        grace: Duration::from_millis(300),
        accepts_volatile_tokens: false,
        credentials: Default::default(),
    }
}

/// A node and a connected keeper.
async fn connected(options: Options) -> (Peer, Keeper<Fenced>) {
    let peer = Peer::new();
    let keeper = another(&peer, options).await;
    (peer, keeper)
}

async fn another(peer: &Peer, options: Options) -> Keeper<Fenced> {
    let engine =
        super::start(&crate::engines::cell::CAPABILITIES, Arc::new(peer.clone()), &options).await.unwrap();
    Keeper::new(Box::new(engine), options)
}

/// Waits for a condition, with a timeout.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(5), waiting).await.is_err() {
        panic!("waited for 5 seconds: {what}");
    }
}

/// Awaits a future with a timeout.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(5), future).await.expect("timed out")
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
