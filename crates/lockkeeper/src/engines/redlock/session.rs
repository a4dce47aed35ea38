//! The instances: each with a connection of its own and a short time-out.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::capabilities::Finding;
use crate::engines::redis::examine::{self as of_one, fact, info};
use crate::engines::redis::session::Instance;
use crate::engines::runtime::BackgroundTasks;
use crate::error::Error;
use crate::options::Options;
use crate::url::ServerUrl;

/// The longest that one instance is waited for.
const TIMEOUT_MAX: Duration = Duration::from_millis(50);
/// How long an instance may take to be connected to before it counts as down for now.
const CONNECT: Duration = Duration::from_secs(1);

/// The most releases that are repeated at a time: beyond that, keys expire.
const RELEASES_MAX: usize = 64;
/// How long a keeper that is closed waits for them.
const RELEASES_END: Duration = Duration::from_secs(1);

pub(super) struct Instances {
    pub(super) all: Vec<Instance>,
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
                return Err(Error::invalid("timeout_ms is no number of milliseconds: write ?timeout_ms=50"));
            }
        };
        let mut hosts = url.hosts.clone();
        hosts.sort();
        hosts.dedup();
        if hosts.len() != url.hosts.len() {
            return Err(Error::invalid(
                "redlock:// names the same instance twice: each must be a Redis of its own, on a machine of its own",
            ));
        }
        if hosts.len() < 3 {
            return Err(Error::invalid(format!(
                "redlock:// needs at least 3 independent instances, better 5, and has {}: name more, or use redis:// for one",
                hosts.len()
            )));
        }
        let mut all = Vec::new();
        for host in &url.hosts {
            let client = Instance::client(url, host)?;
            all.push(Instance::connect_later(client, host, CONNECT)?);
        }
        let instances = Instances { all, timeout, releases: BackgroundTasks::new(Handle::current()) };
        instances.wait_for_majority(options.connect_timeout).await?;
        Ok(instances)
    }

    /// An even number is no better than one less.
    pub(super) fn majority(&self) -> usize {
        self.all.len() / 2 + 1
    }

    pub(super) fn addresses(&self) -> String {
        self.all.iter().map(|instance| instance.address.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Small against the time to live, so that one that is down costs little of it.
    pub(super) fn timeout(&self, ttl: Duration) -> Duration {
        self.timeout.unwrap_or_else(|| (ttl / 10).min(TIMEOUT_MAX))
    }

    /// Repeats a release that nobody waits for. It ends with the keeper.
    pub(super) fn release_later(&self, work: impl Future<Output = ()> + Send + 'static) {
        if self.releases.running() < RELEASES_MAX {
            self.releases.spawn(work);
        }
    }

    pub(super) async fn finish_releases(&self) {
        let _ = tokio::time::timeout(RELEASES_END, self.releases.finish()).await;
    }

    async fn wait_for_majority(&self, limit: Duration) -> Result<(), Error> {
        let asked = self.all.iter().map(|instance| async move {
            let ping = redis::cmd("PING");
            match tokio::time::timeout(limit, instance.ask::<String>(&ping)).await {
                Ok(answer) => answer.map(|_| ()),
                Err(_) => Err(Error::unavailable(format!("Redis at {} does not answer", instance.address))),
            }
        });
        let answers = join_all(asked).await;
        let reached = answers.iter().filter(|answer| answer.is_ok()).count();
        let mut errors = answers.into_iter().filter_map(Result::err).collect::<Vec<_>>();
        if reached >= self.majority() {
            return Ok(());
        }
        // One that wants a password, or is no Redis, does not get better by waiting.
        if let Some(index) = errors.iter().position(|error| !matches!(error, Error::Unavailable(_))) {
            return Err(errors.swap_remove(index));
        }
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        Err(Error::unavailable(format!(
            "{reached} of {} Redis instances answer, and a majority of {} is needed: {first}",
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
                "{count} instances bear the loss of {} and no more, as {} would",
                (count - 1) / 2,
                count - 1
            ),
            "use an odd number",
        ));
    }
    let mut servers: Vec<(String, &str)> = Vec::new();
    for instance in &instances.all {
        let address = instance.address.as_str();
        match info(instance).await {
            Ok(info) => {
                let id = fact(&info, "run_id").to_owned();
                if let Some((_, twin)) = servers.iter().find(|(known, _)| *known == id) {
                    findings.push(Finding::new(
                        "same-server",
                        format!("{address} and {twin} are the same server: it votes twice"),
                        "name servers that are independent of each other",
                    ));
                }
                servers.push((id, address));
                findings.extend(of_one::examine(instance, false).await?);
            }
            Err(error) => findings.push(Finding::new(
                "instance-down",
                format!("{address} does not answer: {error}"),
                "start it again: the others bear the loss of a minority only",
            )),
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_instance_has_50_ms_or_a_tenth_of_the_time_to_live_unless_told_otherwise() {
        let timeout = |told: Option<u64>, ttl_ms| {
            let timeout = told.map(Duration::from_millis);
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
