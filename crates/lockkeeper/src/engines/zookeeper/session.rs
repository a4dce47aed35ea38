//! Sessions. The client library reconnects, so a session survives the loss of its TCP connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use zookeeper_client::{Client, CreateMode, SessionState};

use super::Zookeeper;
use crate::clock::Moment;
use crate::engines::runtime::Failure;
use crate::engines::runtime::sessions::Opened;
use crate::error::Error;

/// The timeout of waiting until ZooKeeper has closed a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of a TCP connection that checks whether a server is listening.
const LISTEN_CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// The time to live of a session that is opened only to read.
const READER_TTL: Duration = Duration::from_secs(10);

/// The connection of a session. Dropping the last handle to its client ends the session in ZooKeeper.
pub(crate) struct Connection {
    client: Mutex<Option<Client>>,
}

impl Connection {
    fn new(client: Client) -> Arc<Connection> {
        Arc::new(Connection { client: Mutex::new(Some(client)) })
    }

    pub(super) fn client(&self) -> Result<Client, Failure> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Failure::Gone)
    }

    fn is_usable(&self) -> bool {
        self.client().is_ok_and(|client| !client.state().is_terminated())
    }

    /// Resolves when the connection is lost or the session has ended.
    pub(super) async fn interrupted(&self) {
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
        let _ =
            tokio::time::timeout(CLOSE_TIMEOUT, async { while !watcher.changed().await.is_terminated() {} })
                .await;
    }
}

/// The spare connection: opened first, used to read, and used by the first session with the same time to live.
#[derive(Default)]
pub(super) struct Connections {
    spare: Mutex<Option<Spare>>,
}

struct Spare {
    connection: Arc<Connection>,
    ttl: Duration,
    /// When the request that opened it was sent.
    sent: Moment,
    /// No session uses it.
    is_free: bool,
}

impl Connections {
    fn spare(&self) -> std::sync::MutexGuard<'_, Option<Spare>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn close_spare(&self) {
        let spare = self.spare().take();
        if let Some(spare) = spare {
            spare.connection.close().await;
        }
    }
}

impl Zookeeper {
    /// Opens the first connection. If this fails, the error says whether a server is listening.
    pub(super) async fn connect_first(&self, ttl: Duration) -> Result<(), Error> {
        let sent = Moment::now();
        let why = match self.connect(ttl).await {
            Ok(connection) => {
                *self.connections.spare() = Some(Spare { connection, ttl, sent, is_free: true });
                return Ok(());
            }
            Err(Failure::Refused(error)) => return Err(error),
            Err(Failure::Unreachable(why)) => why.to_string(),
            Err(Failure::Gone) => "the session ended at once".to_owned(),
        };
        // The client's errors do not tell whether a server is listening; a plain TCP connection does.
        let mut is_listening = false;
        let mut reasons = Vec::new();
        for host in &self.hosts {
            match tokio::time::timeout(LISTEN_CHECK_TIMEOUT, TcpStream::connect(host)).await {
                Ok(Ok(_)) => is_listening = true,
                Ok(Err(error)) => reasons.push(format!("{host}: {error}")),
                Err(_) => reasons.push(format!("{host}: no answer")),
            }
        }
        Err(Error::unavailable(if is_listening {
            format!(
                "failed to open a ZooKeeper session at {} ({why}), although a server is listening: check that it is ZooKeeper, \
                 and that it has a quorum",
                self.hosts.join(", ")
            )
        } else {
            format!(
                "failed to connect to ZooKeeper ({}): check that it is running, and that the port is right",
                reasons.join("; ")
            )
        }))
    }

    async fn connect(&self, ttl: Duration) -> Result<Arc<Connection>, Failure> {
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
        let created = tokio::time::timeout(timeout, client.mkdir(&self.root, &options)).await;
        match created {
            Ok(Ok(())) => Ok(Connection::new(client)),
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => Err(Failure::unreachable(format!("no answer within {timeout:?}"))),
        }
    }

    pub(super) async fn open_session(&self, ttl: Duration) -> Result<Opened<Arc<Connection>>, Failure> {
        let spare = match &mut *self.connections.spare() {
            // An older one is not used, because it may be about to expire.
            Some(spare)
                if spare.is_free
                    && spare.ttl == ttl
                    && spare.connection.is_usable()
                    && Moment::now().since(spare.sent) < ttl / 2 =>
            {
                spare.is_free = false;
                Some(Arc::clone(&spare.connection))
            }
            _ => None,
        };
        let connection = match spare {
            Some(connection) => {
                // The caller counts the time to live from now, so this renews the session.
                connection.client()?.sync(&self.root).await.map_err(|error| self.failed(&error))?;
                connection
            }
            None => self.connect(ttl).await?,
        };
        let client = connection.client()?;
        let id = format!("{:016x}", client.session_id().0);
        // ZooKeeper reduces a time to live above its maximum.
        let ttl = ttl.min(client.session_timeout());
        Ok(Opened { id, session: connection, ttl })
    }

    /// A client for reads.
    pub(super) async fn reader(&self) -> Result<Client, Failure> {
        if let Some(spare) = &*self.connections.spare()
            && spare.connection.is_usable()
        {
            return spare.connection.client();
        }
        let sent = Moment::now();
        let connection = self.connect(READER_TTL).await?;
        let client = connection.client();
        let spare = Spare { connection, ttl: READER_TTL, sent, is_free: true };
        let old = self.connections.spare().replace(spare);
        if let Some(old) = old.filter(|old| old.is_free) {
            old.connection.close().await;
        }
        client
    }
}
