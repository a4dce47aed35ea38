//! There is none: no number that all instances agree on, hence nothing that rises with every grant.

use crate::capabilities::TokenKind;

pub(super) const KIND: TokenKind = TokenKind::None;
