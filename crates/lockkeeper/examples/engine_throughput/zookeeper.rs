//! ZooKeeper: a sequential node and a list of its siblings, with the crate `zookeeper-client`.

use std::net::SocketAddr;

use zookeeper_client::{Acls, Client, CreateMode};

use crate::{Recipe, random_hex};

/// One session.
pub(crate) struct Session(Client);

fn folder(client: usize) -> String {
    format!("/direct-{client}")
}

impl Session {
    pub(crate) async fn open(address: SocketAddr, clients: usize) -> Session {
        let zookeeper = Client::connect(&address.to_string()).await.unwrap();
        // The server would delete an idle container node while other clients are measured.
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        for client in 0..clients {
            zookeeper.create(&folder(client), &[], &persistent).await.unwrap();
        }
        Session(zookeeper)
    }
}

impl Recipe for Session {
    async fn pair(&self, client: usize) {
        let folder = folder(client);
        let name = format!("x_{:016x}_{}_", self.0.session_id().0, random_hex::<16>());
        let prefix = format!("{folder}/{name}");
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (created, listed) =
            tokio::join!(self.0.create(&prefix, b"direct", &options), self.0.list_children(&folder));
        let (_, sequence) = created.unwrap();
        assert!(listed.unwrap().iter().all(|sibling| sibling.starts_with(&name)));
        self.0.delete(&format!("{prefix}{sequence}"), None).await.unwrap();
    }
}
