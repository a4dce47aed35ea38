//! The transport of frames to a node and back. The client is the same over a network and within one process.

use std::future::Future;
use std::pin::Pin;

use lockkeeper_api::v1::{ClientFrame, ServerFrame};
use smol_str::SmolStr;
use tokio::sync::mpsc;

/// Future of a link that is being opened.
pub(crate) type Opening = Pin<Box<dyn Future<Output = Result<Link, LinkError>> + Send>>;

/// Opens links to nodes.
pub(crate) trait Transport: Send + Sync + 'static {
    /// Opens a link to the given leader, or else to a node chosen by `attempt`.
    fn open(&self, attempt: usize, leader: Option<SmolStr>) -> Opening;

    /// Whether there is more than one node.
    fn has_choice(&self) -> bool {
        false
    }

    /// The addresses of the nodes, for messages.
    fn addresses(&self) -> String;
}

/// An open stream of frames in both directions.
pub(crate) struct Link {
    pub(crate) address: SmolStr,
    pub(crate) frames: Frames,
    pub(crate) answers: Answers,
}

/// The outgoing frames. Accepts one at a time: until it is writable again, operations are queued for the next one.
pub(crate) enum Frames {
    /// To a node in this process; the channel holds one frame.
    #[cfg_attr(not(any(test, feature = "embedded")), allow(dead_code))]
    Local(mpsc::Sender<ClientFrame>),
    /// To a node on the network.
    #[cfg(feature = "cell")]
    Direct(super::direct::Writer),
}

impl Frames {
    /// Whether it can accept a frame now.
    pub(crate) fn is_writable(&self) -> bool {
        match self {
            Frames::Local(sender) => sender.capacity() > 0,
            #[cfg(feature = "cell")]
            Frames::Direct(writer) => !writer.has_unsent(),
        }
    }

    /// Sends a frame. Call it only if writable; a closed link is reported by the incoming half, with the reason.
    pub(crate) fn send(&mut self, frame: ClientFrame) {
        match self {
            Frames::Local(sender) => drop(sender.try_send(frame)),
            #[cfg(feature = "cell")]
            Frames::Direct(writer) => writer.send(&frame),
        }
    }

    /// Whether part of a sent frame still has to be written.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Frames::Local(_) => false,
            #[cfg(feature = "cell")]
            Frames::Direct(writer) => writer.has_unsent(),
        }
    }

    /// Waits until it is writable. Cancel-safe.
    pub(crate) async fn writable(&mut self) {
        match self {
            Frames::Local(sender) => drop(sender.reserve().await),
            #[cfg(feature = "cell")]
            Frames::Direct(writer) => writer.flush_unsent().await,
        }
    }
}

/// The incoming frames.
pub(crate) enum Answers {
    /// From a node in this process.
    #[cfg_attr(not(any(test, feature = "embedded")), allow(dead_code))]
    Local(mpsc::Receiver<ServerFrame>),
    /// From a node on the network.
    #[cfg(feature = "cell")]
    Direct(super::direct::Reader),
}

impl Answers {
    /// Waits for the next frame, or the reason for the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<ServerFrame, LinkError> {
        match self {
            Answers::Local(receiver) => {
                receiver.recv().await.ok_or_else(|| LinkError::new("the node closed the stream"))
            }
            #[cfg(feature = "cell")]
            Answers::Direct(reader) => reader.next().await,
        }
    }
}

/// Reason why a link was lost or could not be opened.
#[derive(Debug, Clone)]
pub(crate) struct LinkError {
    pub(crate) why: SmolStr,
    /// The address of the leader, if the node redirects to it.
    pub(crate) leader: Option<SmolStr>,
    /// An error that a retry will not fix: the client is not authenticated.
    pub(crate) fatal: Option<crate::error::Error>,
}

impl LinkError {
    pub(crate) fn new(why: impl Into<SmolStr>) -> LinkError {
        LinkError { why: why.into(), leader: None, fatal: None }
    }
}
