//! There are no tokens: the instances share no counter that could increase with each grant.

use crate::capabilities::TokenKind;

pub(super) const KIND: TokenKind = TokenKind::None;
