//! Connections for elections, kept from one to the next. openraft makes a new client for each election and gives its
//! questions 50 ms or so: on a busy machine a new connection alone takes longer, and nobody would ever be elected.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_proto::peer::peer_client::PeerClient as Grpc;
use tonic::transport::Channel;

use super::MESSAGE_BYTES_MAX;
use super::dial::Dialer;

/// After so many questions without an answer, a connection may be cut without knowing it: a new one finds out sooner.
const UNANSWERED_MAX: u32 = 5;

/// The connections, by address.
#[derive(Debug)]
pub(super) struct Ways {
    dialer: Dialer,
    known: Mutex<HashMap<String, Way>>,
}

#[derive(Debug)]
struct Way {
    grpc: Grpc<Channel>,
    unanswered: u32,
}

impl Ways {
    pub(super) fn new(dialer: Dialer) -> Ways {
        Ways { dialer, known: Mutex::default() }
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// A connection to this address, which comes about when it is used, and again when it was lost.
    pub(super) fn connect(&self, address: &str) -> Result<Grpc<Channel>, String> {
        Ok(Grpc::new(self.dialer.lazily(address)?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Way>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to this address, for one question. Whoever asks may be gone before it is known that there is no
    /// answer, so every question counts as unanswered until `answered` is called.
    pub(super) fn ask(&self, address: &str) -> Result<Grpc<Channel>, String> {
        let mut known = self.known();
        if let Some(way) = known.get_mut(address)
            && way.unanswered < UNANSWERED_MAX
        {
            way.unanswered += 1;
            return Ok(way.grpc.clone());
        }
        let way = Way { grpc: self.connect(address)?, unanswered: 1 };
        let grpc = way.grpc.clone();
        known.insert(address.to_owned(), way);
        Ok(grpc)
    }

    /// There was an answer.
    pub(super) fn answered(&self, address: &str) {
        if let Some(way) = self.known().get_mut(address) {
            way.unanswered = 0;
        }
    }
}
