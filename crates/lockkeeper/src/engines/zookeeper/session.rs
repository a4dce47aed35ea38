//! A session of ZooKeeper is a connection that survives its breaks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use zookeeper_client::{Client, CreateMode, SessionState};

use super::Zookeeper;
use crate::clock::Moment;
use crate::engines::runtime::Failure;
use crate::engines::runtime::sessions::Opened;
use crate::error::Error;

/// How long we wait for the end of a session to be heard of.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// A session. Dropping the last handle on its client ends it in ZooKeeper.
pub(crate) struct Link {
    client: Mutex<Option<Client>>,
}

impl Link {
    fn new(client: Client) -> Arc<Link> {
        Arc::new(Link { client: Mutex::new(Some(client)) })
    }

    pub(super) fn client(&self) -> Result<Client, Failure> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Failure::Gone)
    }

    fn is_usable(&self) -> bool {
        self.client().is_ok_and(|client| !client.state().is_terminated())
    }

    /// Resolves when the connection is lost or the session has ended.
    pub(super) async fn alarmed(&self) {
        let Ok(client) = self.client() else { return };
        let mut watcher = client.state_watcher();
        drop(client);
        let mut state = watcher.state();
        while matches!(state, SessionState::SyncConnected | SessionState::ConnectedReadOnly) {
            state = watcher.changed().await;
        }
    }

    pub(super) async fn close(&self) {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(client) = client else { return };
        let mut watcher = client.state_watcher();
        drop(client);
        let _ = tokio::time::timeout(CLOSE_WAIT, async { while !watcher.changed().await.is_terminated() {} })
            .await;
    }
}

/// The link that was opened first: taken by the first session of its time to live, and used to read.
#[derive(Default)]
pub(super) struct Links {
    spare: Mutex<Option<Spare>>,
}

struct Spare {
    link: Arc<Link>,
    ttl: Duration,
    sent: Moment,
    /// Nobody has taken it for a session.
    is_free: bool,
}

impl Links {
    fn spare(&self) -> std::sync::MutexGuard<'_, Option<Spare>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn close_spare(&self) {
        let spare = self.spare().take();
        if let Some(spare) = spare {
            spare.link.close().await;
        }
    }
}

impl Zookeeper {
    /// Opens the first link: says in plain words why not.
    pub(super) async fn first_link(&self, ttl: Duration) -> Result<(), Error> {
        let sent = Moment::now();
        let why = match self.dial(ttl).await {
            Ok(link) => {
                *self.links.spare() = Some(Spare { link, ttl, sent, is_free: true });
                return Ok(());
            }
            Err(Failure::Refused(error)) => return Err(error),
            Err(Failure::Unreachable(why)) => why.to_string(),
            Err(Failure::Gone) => "the session ended at once".to_owned(),
        };
        // The client says no more than that; a plain connection says whether anybody is there.
        let mut somebody = false;
        let mut reasons = Vec::new();
        for host in &self.hosts {
            match tokio::time::timeout(Duration::from_secs(1), TcpStream::connect(host)).await {
                Ok(Ok(_)) => somebody = true,
                Ok(Err(error)) => reasons.push(format!("{host}: {error}")),
                Err(_) => reasons.push(format!("{host}: no answer")),
            }
        }
        Err(Error::unavailable(if somebody {
            format!(
                "somebody listens at {}, but opens no ZooKeeper session ({why}): is it ZooKeeper, and has it a quorum?",
                self.hosts.join(", ")
            )
        } else {
            format!("no ZooKeeper answers ({}): is it running, and is the port right?", reasons.join("; "))
        }))
    }

    async fn dial(&self, ttl: Duration) -> Result<Arc<Link>, Failure> {
        let mut connector = Client::connector().with_session_timeout(ttl).with_fail_eagerly();
        if let Some(account) = &self.account {
            connector = connector.with_auth("digest", account.as_bytes());
        }
        let hosts = self.hosts.join(",");
        let timeout = self.connect_timeout;
        let client = match tokio::time::timeout(timeout, connector.connect(&hosts)).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                return Err(match self.failed(&error) {
                    Failure::Gone => Failure::unreachable(error.to_string()),
                    failure => failure,
                });
            }
            Err(_) => return Err(Failure::unreachable(format!("no session within {timeout:?}"))),
        };
        let options = CreateMode::Persistent.with_acls(self.acls());
        let made = tokio::time::timeout(timeout, client.mkdir(&self.root, &options)).await;
        match made {
            Ok(Ok(())) => Ok(Link::new(client)),
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => Err(Failure::unreachable(format!("no answer within {timeout:?}"))),
        }
    }

    pub(super) async fn open_link(&self, ttl: Duration) -> Result<Opened<Arc<Link>>, Failure> {
        let spare = match &mut *self.links.spare() {
            // One that was not used for a while may be about to expire, by the clock that its user goes by.
            Some(spare)
                if spare.is_free
                    && spare.ttl == ttl
                    && spare.link.is_usable()
                    && Moment::now().since(spare.sent) < ttl / 2 =>
            {
                spare.is_free = false;
                Some(Arc::clone(&spare.link))
            }
            _ => None,
        };
        let link = match spare {
            Some(link) => {
                // It counts from now: the session must be alive now.
                link.client()?.sync(&self.root).await.map_err(|error| self.failed(&error))?;
                link
            }
            None => self.dial(ttl).await?,
        };
        let client = link.client()?;
        let id = format!("{:016x}", client.session_id().0);
        // A longer time to live than ZooKeeper allows is cut down.
        let ttl = ttl.min(client.session_timeout());
        Ok(Opened { id, session: link, ttl })
    }

    /// A client to read with.
    pub(super) async fn reader(&self) -> Result<Client, Failure> {
        if let Some(spare) = &*self.links.spare()
            && spare.link.is_usable()
        {
            return spare.link.client();
        }
        let (ttl, sent) = (Duration::from_secs(10), Moment::now());
        let link = self.dial(ttl).await?;
        let client = link.client();
        let old = self.links.spare().replace(Spare { link, ttl, sent, is_free: true });
        if let Some(old) = old.filter(|old| old.is_free) {
            old.link.close().await;
        }
        client
    }
}
