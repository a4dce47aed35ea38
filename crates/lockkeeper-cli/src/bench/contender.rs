//! One client of a benchmark: the library, or a bare recipe as a baseline.

use lockkeeper::{EngineInfo, Guard, Keeper, Unfenced};

use super::etcd::{BareEtcd, EtcdKey};
use super::redis::BareRedis;
use super::{Connections, Options, Recipe, Release, Workload};

/// Failure of a benchmark.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error(transparent)]
    Engine(#[from] lockkeeper::Error),
    /// An unsupported combination of options.
    #[error("{0}")]
    Usage(String),
    #[error("redis: {0}")]
    Redis(String),
    #[error("etcd: {0}")]
    Etcd(String),
    #[error(
        "failed to measure the limits of this machine in {folder}: {error}. Choose another --scratch-dir"
    )]
    Limits { folder: String, error: std::io::Error },
    #[error("a client failed: {0}")]
    Client(#[from] tokio::task::JoinError),
    #[error("failed to record the figures: {0}")]
    Histogram(String),
}

/// A client of the benchmark.
pub(super) enum Contender {
    Keeper(Keeper<Unfenced>),
    Redis(Box<BareRedis>),
    Etcd(Box<BareEtcd>),
}

/// What a client holds.
pub(super) enum Held {
    Guard(Guard<Unfenced>),
    /// The random value of the bare recipe on Redis.
    Redis(String),
    /// The key of the bare recipe on etcd.
    Etcd(EtcdKey),
}

/// A server that has a bare recipe.
enum BareServer<'a> {
    /// Its address, and the database after a slash.
    Redis(&'a str),
    /// Its hosts, separated by commas.
    Etcd(&'a str),
}

impl<'a> BareServer<'a> {
    /// The server of an engine URL, if there is a bare recipe for it.
    fn of(url: &'a str) -> Option<BareServer<'a>> {
        let engine = EngineInfo::by_url(url)?;
        // The other prefixes of an engine need TLS, which the bare recipes do not support.
        let hosts = url.strip_prefix(engine.prefixes[0])?;
        match engine.name {
            "redis" => Some(BareServer::Redis(hosts)),
            "etcd" => Some(BareServer::Etcd(hosts)),
            _ => None,
        }
    }
}

/// The recipe that is measured unless the command line chooses one.
pub(super) fn default_recipe(url: &str) -> Recipe {
    match BareServer::of(url) {
        Some(BareServer::Redis(_)) => Recipe::Bare,
        _ => Recipe::Library,
    }
}

/// Connects all clients.
pub(super) async fn connect(options: &Options) -> Result<Vec<Contender>, BenchError> {
    match options.recipe {
        Recipe::Library => connect_library(options).await,
        Recipe::Bare => connect_bare(options).await,
    }
}

async fn connect_library(options: &Options) -> Result<Vec<Contender>, BenchError> {
    let mut clients = Vec::with_capacity(options.clients);
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

async fn connect_bare(options: &Options) -> Result<Vec<Contender>, BenchError> {
    let usage = |why: &str| Err(BenchError::Usage(why.to_owned()));
    if options.connections == Connections::Shared {
        return usage("a bare recipe has one connection for each client: add --connections each");
    }
    let mut clients = Vec::with_capacity(options.clients);
    match BareServer::of(&options.engine) {
        Some(BareServer::Redis(address)) => {
            if (options.workload, options.release) == (Workload::Handoff, Release::Dropped) {
                // The release is sent together with the next attempt of the same client, which would win every time.
                return usage(
                    "the bare recipe has no hand-offs with --release dropped: add --release waited",
                );
            }
            for number in 0..options.clients {
                let redis = BareRedis::connect(address, number).await?;
                clients.push(Contender::Redis(Box::new(redis)));
            }
        }
        Some(BareServer::Etcd(hosts)) => {
            if options.release == Release::Dropped {
                return usage("the bare recipe on etcd waits for each release: add --release waited");
            }
            let host = hosts.split(',').next().unwrap_or(hosts);
            for _ in 0..options.clients {
                clients.push(Contender::Etcd(Box::new(BareEtcd::connect(host).await?)));
            }
        }
        None => return usage("only redis:// and etcd:// have a bare recipe"),
    }
    Ok(clients)
}

impl Contender {
    pub(super) async fn acquire(&mut self, lock: &str, contended: bool) -> Result<Held, BenchError> {
        match self {
            Contender::Keeper(keeper) => Ok(Held::Guard(keeper.lock(lock).acquire().await?)),
            Contender::Redis(redis) => Ok(Held::Redis(redis.acquire(lock, contended).await?)),
            Contender::Etcd(etcd) => Ok(Held::Etcd(etcd.acquire(lock).await?)),
        }
    }

    pub(super) async fn release(&mut self, lock: &str, held: Held) -> Result<(), BenchError> {
        match (self, held) {
            (_, Held::Guard(guard)) => Ok(guard.release().await?),
            (Contender::Redis(redis), Held::Redis(value)) => redis.release(lock, &value).await,
            (Contender::Etcd(etcd), Held::Etcd(key)) => etcd.release(&key).await,
            (_, Held::Redis(_) | Held::Etcd(_)) => Err(wrong_client()),
        }
    }

    /// Releases without waiting for the answer.
    pub(super) fn drop_held(&mut self, lock: &str, held: Held) -> Result<(), BenchError> {
        match (self, held) {
            (_, Held::Guard(guard)) => drop(guard),
            (Contender::Redis(redis), Held::Redis(value)) => redis.release_with_next(lock, &value),
            (_, Held::Redis(_) | Held::Etcd(_)) => return Err(wrong_client()),
        }
        Ok(())
    }

    pub(super) async fn close(self) {
        match self {
            // Another client may share it and have closed it already.
            Contender::Keeper(keeper) => drop(keeper.close().await),
            Contender::Redis(mut redis) => redis.close().await,
            Contender::Etcd(_) => {}
        }
    }
}

fn wrong_client() -> BenchError {
    BenchError::Usage("the lock was acquired by another kind of client".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_recipe_is_the_default_for_plain_redis_only() {
        assert_eq!(default_recipe("redis://127.0.0.1:6379/1"), Recipe::Bare);
        for url in ["rediss://h:1", "etcd://h:1", "lockkeeper://h:1", "redlock://h:1,h:2,h:3", "nothing"] {
            assert_eq!(default_recipe(url), Recipe::Library, "{url}");
        }
        assert!(matches!(BareServer::of("redis://h:1/2"), Some(BareServer::Redis("h:1/2"))));
        assert!(matches!(BareServer::of("etcd://a:1,b:1"), Some(BareServer::Etcd("a:1,b:1"))));
        assert!(BareServer::of("rediss://h:1").is_none());
    }
}
