//! Tokens: those that come with a grant, and those that are to be checked.

use std::sync::atomic::AtomicU8;
use std::sync::{Arc, OnceLock};

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as Answered;
use lockkeeper_api::v1::operation::Kind as Asked;
use lockkeeper_core::Token;

use super::session::Session;
use super::work::Acquiring;
use super::{Cell, answer, pick};
use crate::engines::Fence;
use crate::error::Error;
use crate::grant::Grant;
use crate::view::TokenCheck;

impl Cell {
    pub(super) async fn check(
        &self,
        lock: String,
        token: u64,
        sequencer: String,
    ) -> Result<TokenCheck, Error> {
        let asked = Asked::CheckToken(v1::CheckTokenRequest { lock, token, sequencer });
        pick!(self.call(asked, true).await?, CheckToken).map(Into::into)
    }
}

/// The grant as the wire told it. The names are our own: the answer has none.
pub(super) fn granted(number: u64, acquiring: &Acquiring, session: &Session, grant: v1::Grant) -> Arc<Grant> {
    Arc::new(Grant {
        number,
        locks: acquiring.ask.locks.clone(),
        mode: answer::mode(grant.mode),
        token: Some(Token(grant.token)),
        sequencer: OnceLock::new(),
        session: acquiring.ask.value.is_some().then(|| session.id.clone()),
        deadline: Arc::clone(&session.deadline),
        grace: acquiring.ask.grace,
        works_in_jeopardy: acquiring.ask.works_in_jeopardy,
        lost: AtomicU8::new(0),
    })
}

pub(super) fn on_the_wire(fence: Fence) -> v1::Fence {
    v1::Fence { lock: fence.lock, token: fence.token.0 }
}
