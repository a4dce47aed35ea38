//! A node of a cell, in this process.

use std::net::SocketAddr;
use std::path::PathBuf;

use lockkeeper_server::{Node, NodeConfig};
use tokio::sync::oneshot;

/// A node on its own thread.
pub(crate) struct TestNode {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TestNode {
    pub(crate) fn start(folder: Option<PathBuf>, address: &str) -> TestNode {
        let (stop, stopped) = oneshot::channel::<()>();
        let (address_sender, address_receiver) = std::sync::mpsc::channel();
        let address = address.to_owned();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let config = folder.map_or_else(NodeConfig::in_memory, NodeConfig::durable);
                let mut node = Node::start(config).await.unwrap();
                address_sender.send(node.listen(&address).await.unwrap()).unwrap();
                let _ = stopped.await;
                node.stop().await;
            });
        });
        let address = address_receiver.recv().unwrap();
        TestNode { address, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("lockkeeper://{}", self.address)
    }

    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stop();
    }
}
