//! The instances, each with its own connection and a short timeout.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::capabilities::Finding;
use crate::engines::redis::examine::{self as single, field, info};
use crate::engines::redis::session::Instance;
use crate::engines::runtime::BackgroundTasks;
use crate::error::Error;
use crate::options::Options;
use crate::url::ServerUrl;

/// The longest default timeout of a request to one instance.
const TIMEOUT_MAX: Duration = Duration::from_millis(50);
/// The timeout of connecting to an instance.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The limit of releases that are retried at a time; beyond it, keys are left to expire.
const BACKGROUND_RELEASES_MAX: usize = 64;
/// The time for which a closing keeper waits for background releases.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Instances {
    pub(super) all: Vec<Instance>,
    /// The timeout of a request to one instance, if the URL has one.
    timeout: Option<Duration>,
    releases: BackgroundTasks,
}

impl Instances {
    pub(super) async fn connect(url: &ServerUrl, options: &Options) -> Result<Instances, Error> {
        url.allow_options(&["timeout_ms"])?;
        let timeout = match url.option("timeout_ms").map(str::parse::<u64>) {
            None => None,
            Some(Ok(ms)) if ms > 0 => Some(Duration::from_millis(ms)),
            Some(_) => {
                return Err(Error::invalid(
                    "timeout_ms is not a number of milliseconds above 0: write ?timeout_ms=50",
                ));
            }
        };
        let mut hosts = url.hosts.clone();
        hosts.sort();
        hosts.dedup();
        if hosts.len() != url.hosts.len() {
            return Err(Error::invalid(
                "redlock:// names the same instance twice: name independent Redis instances, each on its own machine",
            ));
        }
        if hosts.len() < 3 {
            return Err(Error::invalid(format!(
                "redlock:// has {} instance(s), but needs at least 3 independent ones, or better 5: name more, or use \
                 redis:// for a single one",
                hosts.len()
            )));
        }
        let mut all = Vec::new();
        for host in &url.hosts {
            let client = Instance::client(url, host)?;
            all.push(Instance::connect_later(client, host, CONNECT_TIMEOUT)?);
        }
        let instances = Instances { all, timeout, releases: BackgroundTasks::new(Handle::current()) };
        instances.wait_for_majority(options.connect_timeout).await?;
        Ok(instances)
    }

    /// The size of a majority. An even number of instances tolerates no more failures than one less.
    pub(super) fn majority(&self) -> usize {
        self.all.len() / 2 + 1
    }

    pub(super) fn addresses(&self) -> String {
        self.all.iter().map(|instance| instance.address.as_str()).collect::<Vec<_>>().join(",")
    }

    /// The timeout of a request to one instance: a small part of the time to live, because an instance that is down uses all
    /// of it.
    pub(super) fn timeout(&self, ttl: Duration) -> Duration {
        self.timeout.unwrap_or_else(|| (ttl / 10).min(TIMEOUT_MAX))
    }

    /// Runs a release in the background; it ends with the keeper.
    pub(super) fn release_in_background(&self, release: impl Future<Output = ()> + Send + 'static) {
        if self.releases.running() < BACKGROUND_RELEASES_MAX {
            self.releases.spawn(release);
        }
    }

    pub(super) async fn finish_releases(&self) {
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.releases.finish()).await;
    }

    async fn wait_for_majority(&self, limit: Duration) -> Result<(), Error> {
        let pings = self.all.iter().map(|instance| async move {
            let ping = redis::cmd("PING");
            match tokio::time::timeout(limit, instance.query::<String>(&ping)).await {
                Ok(answer) => answer.map(|_| ()),
                Err(_) => {
                    let address = &instance.address;
                    Err(Error::unavailable(format!("Redis at {address} did not answer within {limit:?}")))
                }
            }
        });
        let answers = join_all(pings).await;
        let reached = answers.iter().filter(|answer| answer.is_ok()).count();
        let mut errors = answers.into_iter().filter_map(Result::err).collect::<Vec<_>>();
        if reached >= self.majority() {
            return Ok(());
        }
        // A missing password or a wrong kind of server is a more useful error than a timeout.
        if let Some(index) = errors.iter().position(|error| !matches!(error, Error::Unavailable(_))) {
            return Err(errors.swap_remove(index));
        }
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        Err(Error::unavailable(format!(
            "{reached} of {} Redis instances answer, but a majority of {} is required: {first}",
            self.all.len(),
            self.majority()
        )))
    }
}

pub(super) async fn examine(instances: &Instances) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    let count = instances.all.len();
    if count.is_multiple_of(2) {
        findings.push(Finding::new(
            "even-number",
            format!(
                "{count} instances tolerate the loss of {}, no more than {} instances would",
                (count - 1) / 2,
                count - 1
            ),
            "use an odd number of instances",
        ));
    }
    let mut servers: Vec<(String, &str)> = Vec::new();
    for instance in &instances.all {
        let address = instance.address.as_str();
        match info(instance).await {
            Ok(info) => {
                let id = field(&info, "run_id").to_owned();
                if let Some((_, other)) = servers.iter().find(|(other_id, _)| *other_id == id) {
                    findings.push(Finding::new(
                        "same-server",
                        format!("{address} and {other} are the same server, which votes twice"),
                        "name independent servers",
                    ));
                }
                servers.push((id, address));
                findings.extend(single::examine(instance, false).await?);
            }
            Err(error) => findings.push(Finding::new(
                "instance-down",
                format!("the instance {address} is down: {error}"),
                "restart it: only the loss of a minority is tolerated",
            )),
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn default_timeout_is_50_ms_or_a_tenth_of_the_time_to_live() {
        let timeout = |configured_ms: Option<u64>, ttl_ms| {
            let timeout = configured_ms.map(Duration::from_millis);
            let instances =
                Instances { all: Vec::new(), timeout, releases: BackgroundTasks::new(Handle::current()) };
            instances.timeout(Duration::from_millis(ttl_ms)).as_millis()
        };
        assert_eq!(timeout(None, 10_000), 50);
        assert_eq!(timeout(None, 500), 50);
        assert_eq!(timeout(None, 300), 30);
        assert_eq!(timeout(None, 100), 10);
        assert_eq!(timeout(Some(300), 100), 300);
    }
}
