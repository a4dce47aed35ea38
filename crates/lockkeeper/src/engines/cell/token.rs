//! Tokens of grants, and checks of tokens.

use std::sync::atomic::AtomicU8;
use std::sync::{Arc, OnceLock};

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as AnswerKind;
use lockkeeper_api::v1::operation::Kind as OperationKind;
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
        let operation = OperationKind::CheckToken(v1::CheckTokenRequest { lock, token, sequencer });
        pick!(self.call(operation, true).await?, CheckToken).map(Into::into)
    }
}

/// Converts a grant from the wire. The lock names are those of the request: the answer has none.
pub(super) fn granted(number: u64, acquiring: &Acquiring, session: &Session, grant: v1::Grant) -> Arc<Grant> {
    Arc::new(Grant {
        number,
        locks: acquiring.request.locks.clone(),
        mode: answer::mode(grant.mode),
        token: Some(Token(grant.token)),
        sequencer: OnceLock::new(),
        session: acquiring.request.value.is_some().then(|| session.id.clone()),
        deadline: Arc::clone(&session.deadline),
        grace: acquiring.request.grace,
        works_in_jeopardy: acquiring.request.works_in_jeopardy,
        lost: AtomicU8::new(0),
    })
}

pub(super) fn to_wire(fence: Fence) -> v1::Fence {
    v1::Fence { lock: fence.lock, token: fence.token.0 }
}
