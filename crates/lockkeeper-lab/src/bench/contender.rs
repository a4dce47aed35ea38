//! One client of a benchmark, on our engines or on the bare recipe that it is measured against.

use lockkeeper::{Guard, Keeper};

use super::redis::BareRedis;
use super::{Connections, Options};

/// A benchmark that could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] lockkeeper::Error),
    /// The yardstick.
    #[error("redis: {0}")]
    Redis(String),
    /// The machine's own limits.
    #[error("the machine's own limits cannot be measured in {folder}: {error}. Choose another --scratch-dir")]
    Limits {
        /// Where.
        folder: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// A client task ended badly.
    #[error("a client ended badly: {0}")]
    Client(#[from] tokio::task::JoinError),
    /// The figures.
    #[error("the figures do not fit: {0}")]
    Measure(String),
}

/// One client.
pub enum Contender {
    /// One of our engines.
    Keeper(Keeper),
    /// The bare recipe on Redis.
    Redis(Box<BareRedis>),
}

/// What a client holds.
pub(super) enum Held {
    /// A guard of ours.
    Guard(Guard),
    /// The random value of the bare recipe.
    Redis(String),
}

/// As many clients as were asked for.
pub(super) async fn connect(options: &Options) -> Result<Vec<Contender>, BenchError> {
    let mut clients = Vec::with_capacity(options.clients);
    if let Some(address) = options.engine.strip_prefix("redis://") {
        if options.connections == Connections::Shared {
            return Err(BenchError::Redis("the bare recipe has a connection for each client".to_owned()));
        }
        for number in 0..options.clients {
            let redis = BareRedis::connect(address, number).await?;
            clients.push(Contender::Redis(Box::new(redis)));
        }
        return Ok(clients);
    }
    let mut shared = None;
    for _ in 0..options.clients {
        let keeper = match (&shared, options.connections) {
            (Some(keeper), Connections::Shared) => Keeper::clone(keeper),
            _ => Keeper::connect(&options.engine).await?,
        };
        shared.get_or_insert_with(|| keeper.clone());
        clients.push(Contender::Keeper(keeper));
    }
    Ok(clients)
}

impl Contender {
    pub(super) async fn acquire(&mut self, lock: &str, contended: bool) -> Result<Held, BenchError> {
        match self {
            Contender::Keeper(keeper) => Ok(Held::Guard(keeper.lock(lock).acquire().await?)),
            Contender::Redis(redis) => Ok(Held::Redis(redis.acquire(lock, contended).await?)),
        }
    }

    pub(super) async fn release(&mut self, lock: &str, held: Held) -> Result<(), BenchError> {
        match (self, held) {
            (_, Held::Guard(guard)) => Ok(guard.release().await?),
            (Contender::Redis(redis), Held::Redis(value)) => redis.release(lock, &value).await,
            (Contender::Keeper(_), Held::Redis(_)) => Ok(()),
        }
    }

    pub(super) async fn close(self) {
        if let Contender::Keeper(keeper) = self {
            // Another client may share it and have closed it already.
            let _ = keeper.close().await;
        }
    }
}
