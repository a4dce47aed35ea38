//! One client of a benchmark, on our engines or on the bare recipe that it is measured against.

use lockkeeper::{Guard, Keeper, Unfenced};

use super::compare::{BareEtcd, CrateRedis, EtcdKey, RedisKey};
use super::redis::BareRedis;
use super::{Connections, Options, Release, Workload};

/// A benchmark that could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] lockkeeper::Error),
    /// The yardstick.
    #[error("redis: {0}")]
    Redis(String),
    /// The other yardstick.
    #[error("etcd: {0}")]
    Etcd(String),
    /// A server that the comparison starts.
    #[error("{0}")]
    Server(String),
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
pub(super) enum Contender {
    /// One of our engines.
    Keeper(Keeper<Unfenced>),
    /// The same, but somebody else closes it.
    Shared(Keeper<Unfenced>),
    /// The bare recipe on Redis, straight on its protocol.
    Redis(Box<BareRedis>),
    /// The same on its client crate.
    CrateRedis(Box<CrateRedis>),
    /// The bare recipe on etcd.
    Etcd(Box<BareEtcd>),
}

/// What a client holds.
pub(super) enum Held {
    /// A guard of ours.
    Guard(Guard<Unfenced>),
    /// The random value of the bare recipe.
    Redis(String),
    /// The same, with the lock.
    CrateRedis(RedisKey),
    /// The key of the bare recipe.
    Etcd(EtcdKey),
}

/// As many clients as were asked for.
pub(super) async fn connect(options: &Options) -> Result<Vec<Contender>, BenchError> {
    let mut clients = Vec::with_capacity(options.clients);
    if let Some(address) = options.engine.strip_prefix("redis://") {
        if options.connections == Connections::Shared {
            return Err(BenchError::Redis("the bare recipe has a connection for each client".to_owned()));
        }
        if (options.workload, options.release) == (Workload::Handoff, Release::Dropped) {
            // The release goes with the next try of the same client, which would have the lock again and again.
            return Err(BenchError::Redis(
                "the bare recipe hands nothing over unless each release is waited for".to_owned(),
            ));
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
            _ => Keeper::connect_unfenced(&options.engine).await?,
        };
        shared.get_or_insert_with(|| keeper.clone());
        clients.push(Contender::Keeper(keeper));
    }
    Ok(clients)
}

impl Contender {
    pub(super) async fn acquire(&mut self, lock: &str, contended: bool) -> Result<Held, BenchError> {
        match self {
            Contender::Keeper(keeper) | Contender::Shared(keeper) => {
                Ok(Held::Guard(keeper.lock(lock).acquire().await?))
            }
            Contender::Redis(redis) => Ok(Held::Redis(redis.acquire(lock, contended).await?)),
            Contender::CrateRedis(redis) => Ok(Held::CrateRedis(redis.acquire(lock, contended).await?)),
            Contender::Etcd(etcd) => Ok(Held::Etcd(etcd.acquire(lock).await?)),
        }
    }

    pub(super) async fn release(&mut self, lock: &str, held: Held) -> Result<(), BenchError> {
        match (self, held) {
            (_, Held::Guard(guard)) => Ok(guard.release().await?),
            (Contender::Redis(redis), Held::Redis(value)) => redis.release(lock, &value).await,
            (Contender::CrateRedis(redis), Held::CrateRedis(key)) => redis.release(&key).await,
            (Contender::Etcd(etcd), Held::Etcd(entry)) => etcd.release(&entry).await,
            (_, Held::Redis(_) | Held::CrateRedis(_) | Held::Etcd(_)) => {
                Err(BenchError::Measure("what is given back was taken by another client".to_owned()))
            }
        }
    }

    /// Gives back without waiting for the answer.
    pub(super) fn drop_held(&mut self, lock: &str, held: Held) -> Result<(), BenchError> {
        match (self, held) {
            (_, Held::Guard(guard)) => drop(guard),
            (Contender::Redis(redis), Held::Redis(value)) => redis.release_with_next(lock, &value),
            (_, Held::Redis(_) | Held::CrateRedis(_) | Held::Etcd(_)) => {
                return Err(BenchError::Measure("this recipe waits for each of its releases".to_owned()));
            }
        }
        Ok(())
    }

    pub(super) async fn close(self) {
        match self {
            // Another client may share it and have closed it already.
            Contender::Keeper(keeper) => drop(keeper.close().await),
            Contender::Redis(mut redis) => redis.close().await,
            Contender::Shared(_) | Contender::CrateRedis(_) | Contender::Etcd(_) => {}
        }
    }
}
