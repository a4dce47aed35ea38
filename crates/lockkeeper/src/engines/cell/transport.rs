//! How frames get to a node and back. The client is the same over a network and inside one process.

use std::future::Future;
use std::pin::Pin;

use lockkeeper_api::v1::{ClientFrame, ServerFrame};
use smol_str::SmolStr;
use tokio::sync::mpsc;

/// A link that is being opened.
pub(crate) type Opening = Pin<Box<dyn Future<Output = Result<Link, Refused>> + Send>>;

/// Opens links to nodes.
pub(crate) trait Transport: Send + Sync + 'static {
    /// Opens a link to the given leader, or else to one of the nodes: a higher attempt means another node.
    fn open(&self, attempt: usize, leader: Option<SmolStr>) -> Opening;

    /// Whether there is more than one node to go to.
    fn has_choice(&self) -> bool {
        false
    }

    /// Where the nodes are, for people.
    fn addresses(&self) -> String;
}

/// An open stream of frames in both directions.
pub(crate) struct Link {
    pub(crate) address: SmolStr,
    pub(crate) frames: Frames,
    pub(crate) answers: Answers,
}

/// The frames that go out. Takes one at a time: while it has no room, operations gather for the next one.
pub(crate) enum Frames {
    /// To a node in this process; the channel holds one frame.
    #[cfg_attr(not(any(test, feature = "embedded")), allow(dead_code))]
    Local(mpsc::Sender<ClientFrame>),
    /// To a node on the network.
    #[cfg(feature = "cell")]
    Direct(super::direct::Writer),
}

impl Frames {
    /// Whether a frame can be sent now.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Frames::Local(sender) => sender.capacity() > 0,
            #[cfg(feature = "cell")]
            Frames::Direct(writer) => !writer.is_behind(),
        }
    }

    /// Sends a frame. Only with room; a closed link is noticed at its other end, with the reason.
    pub(crate) fn send(&mut self, frame: ClientFrame) {
        match self {
            Frames::Local(sender) => drop(sender.try_send(frame)),
            #[cfg(feature = "cell")]
            Frames::Direct(writer) => writer.send(&frame),
        }
    }

    /// Whether something has to be done for what was sent, even if nothing more is to be sent.
    pub(crate) fn is_behind(&self) -> bool {
        match self {
            Frames::Local(_) => false,
            #[cfg(feature = "cell")]
            Frames::Direct(writer) => writer.is_behind(),
        }
    }

    /// Waits for room. Cancel-safe.
    pub(crate) async fn room(&mut self) {
        match self {
            Frames::Local(sender) => drop(sender.reserve().await),
            #[cfg(feature = "cell")]
            Frames::Direct(writer) => writer.catch_up().await,
        }
    }
}

/// The frames that come back.
pub(crate) enum Answers {
    /// From a node in this process.
    #[cfg_attr(not(any(test, feature = "embedded")), allow(dead_code))]
    Local(mpsc::Receiver<ServerFrame>),
    /// From a node on the network.
    #[cfg(feature = "cell")]
    Direct(super::direct::Reader),
}

impl Answers {
    /// The next frame, or why there is none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<ServerFrame, Refused> {
        match self {
            Answers::Local(receiver) => {
                receiver.recv().await.ok_or_else(|| Refused::because("the node has ended the stream"))
            }
            #[cfg(feature = "cell")]
            Answers::Direct(reader) => reader.next().await,
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
