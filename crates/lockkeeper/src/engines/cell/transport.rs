//! How frames get to a node and back. The client is the same over a network and inside one process.

use std::future::Future;
use std::pin::Pin;

use lockkeeper_proto::v1::{ClientFrame, ServerFrame};
use smol_str::SmolStr;
use tokio::sync::mpsc;

/// A link that is being opened.
pub(crate) type Opening = Pin<Box<dyn Future<Output = Result<Link, Refused>> + Send>>;

/// Opens links to nodes.
pub(crate) trait Transport: Send + Sync + 'static {
    /// Opens a link to the given leader, or else to one of the nodes: a higher attempt means another node.
    fn open(&self, attempt: usize, leader: Option<SmolStr>) -> Opening;

    /// Where the nodes are, for people.
    fn addresses(&self) -> String;
}

/// An open stream of frames in both directions.
pub(crate) struct Link {
    pub(crate) address: SmolStr,
    /// Holds one frame: while it is full, operations gather for the next one.
    pub(crate) frames: mpsc::Sender<ClientFrame>,
    pub(crate) answers: Answers,
}

/// The frames that come back.
pub(crate) enum Answers {
    /// From a node in this process.
    #[cfg_attr(not(any(test, feature = "embedded")), allow(dead_code))]
    Local(mpsc::Receiver<ServerFrame>),
    /// From a node on the network.
    #[cfg(feature = "cell")]
    Network(Box<tonic::Streaming<ServerFrame>>),
}

impl Answers {
    /// The next frame, or why there is none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<ServerFrame, Refused> {
        match self {
            Answers::Local(receiver) => {
                receiver.recv().await.ok_or_else(|| Refused::because("the node has ended the stream"))
            }
            #[cfg(feature = "cell")]
            Answers::Network(stream) => match stream.message().await {
                Ok(Some(frame)) => Ok(frame),
                Ok(None) => Err(Refused::because("the node has ended the stream")),
                Err(status) => Err(super::network::refused(&status)),
            },
        }
    }
}

/// Why there is no link.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    pub(crate) why: SmolStr,
    /// The node does not lead, and this one does.
    pub(crate) leader: Option<SmolStr>,
    /// Another attempt will not help: the client is not allowed in.
    pub(crate) fatal: Option<crate::error::Error>,
}

impl Refused {
    pub(crate) fn because(why: impl Into<SmolStr>) -> Refused {
        Refused { why: why.into(), leader: None, fatal: None }
    }
}
