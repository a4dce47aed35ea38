//! The running servers of a target.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockkeeper::{Keeper, Unfenced};
use lockkeeper_testkit::cell::Cell;
use lockkeeper_testkit::consul::Consul;
use lockkeeper_testkit::etcd::Etcd;
use lockkeeper_testkit::postgres::Postgres;
use lockkeeper_testkit::redis::{self, DURABLE, Redis};
use lockkeeper_testkit::zookeeper::Zookeeper;
use lockkeeper_testkit::{ServerError, Tuning};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{CompareError, CompareOptions, Target};
use crate::servers::Servers;

const MEMBERS: usize = 3;
/// Time limit for the first grant after the servers are ready.
const FIRST_GRANT_WITHIN: Duration = Duration::from_secs(60);
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// A target whose servers run.
pub(super) struct Setup {
    pub(super) target: Target,
    pub(super) url: String,
    /// `None` for the embedded engine, which has none.
    pub(super) servers: Option<Servers>,
    /// Data of the embedded engine.
    _folder: TempDir,
}

impl Setup {
    /// Starts the servers of a target and waits until a lock is granted.
    pub(super) fn start(target: Target, options: &CompareOptions) -> Result<Setup, CompareError> {
        let folder = tempfile::Builder::new()
            .prefix("lockkeeper-compare-")
            .tempdir_in(&options.scratch_dir)
            .map_err(CompareError::io("failed to create a folder in --scratch-dir"))?;
        let servers = start(target, options)?;
        let url = match &servers {
            Some(servers) => servers.url(),
            None => format!("embedded:{}", folder.path().join("data").display()),
        };
        let setup = Setup { target, url, servers, _folder: folder };
        if setup.servers.is_some() {
            runtime()?.block_on(setup.wait_for_grant())?;
        }
        Ok(setup)
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.as_ref().map(|servers| servers.addresses()).unwrap_or_default()
    }

    pub(super) fn process_ids(&self) -> Vec<u32> {
        self.servers.as_ref().map(|servers| servers.process_ids()).unwrap_or_default()
    }

    pub(super) async fn keeper(&self) -> Result<Keeper<Unfenced>, CompareError> {
        Ok(Keeper::connect_unfenced(&self.url).await?)
    }

    async fn wait_for_grant(&self) -> Result<(), CompareError> {
        let began = Instant::now();
        loop {
            match self.grant().await {
                Err(_) if began.elapsed() < FIRST_GRANT_WITHIN => tokio::time::sleep(RETRY_AFTER).await,
                result => return result,
            }
        }
    }

    async fn grant(&self) -> Result<(), CompareError> {
        let keeper = self.keeper().await?;
        keeper.lock("bench/ready").acquire().await?.release().await?;
        Ok(keeper.close().await?)
    }
}

/// Starts the servers at the defaults of their packages, durable unless the target says otherwise.
fn start(target: Target, options: &CompareOptions) -> Result<Option<Servers>, ServerError> {
    let engine = target.engine();
    let cell = |nodes| Ok(Servers::new(engine, Cell::start(options.binary.path()?, nodes)?));
    let servers: Result<Servers, ServerError> = match target {
        Target::Embedded => return Ok(None),
        Target::Cell => cell(1),
        Target::Cell3 => cell(MEMBERS),
        Target::Redis | Target::RedisBare => Ok(Servers::new(engine, Redis::with(DURABLE)?)),
        Target::RedisMemoryBare => Ok(Servers::new(engine, Redis::with(&[])?)),
        Target::Redlock => Ok(Servers::new(engine, redis::instances(MEMBERS, &[])?)),
        Target::Etcd | Target::EtcdBare => {
            Ok(Servers::new(engine, Etcd::start_tuned(MEMBERS, Tuning::Defaults)?))
        }
        Target::Zookeeper => Ok(Servers::new(engine, Zookeeper::start_tuned(MEMBERS, Tuning::Defaults)?)),
        Target::Consul => Ok(Servers::new(engine, Consul::start()?)),
        Target::Postgres => {
            let settings = ["max_connections=1000", "shared_buffers=128MB"];
            Ok(Servers::new(engine, Postgres::with(&settings)?))
        }
    };
    servers.map(Some)
}

/// A runtime for the few requests that the comparison makes itself.
pub(super) fn runtime() -> Result<Runtime, CompareError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CompareError::io("failed to start the runtime"))
}
