//! Access tokens: `lk_ID_SECRET`. The secret has 256 random bits and is kept nowhere; the table has SHA-256 of a salt
//! and the secret.
//!
//! No slow hash is needed: those protect passwords, which can be guessed. Nobody guesses 256 random bits, however fast
//! the hash, and a slow one would let strangers keep the node busy.

use lockkeeper_core::{AccessChange, AccessToken};
use ring::digest::{Context, SHA256};
use smol_str::SmolStr;
use subtle::ConstantTimeEq;

use crate::failure::Failure;

const MARK: &str = "lk_";
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// A token that was just made.
pub struct NewToken {
    /// Its public part.
    pub id: SmolStr,
    /// The whole, for its owner's eyes only.
    pub text: String,
    /// What the cell remembers of it.
    pub change: AccessChange,
}

/// Draws a token.
pub fn draw(identity: &str) -> Result<NewToken, Failure> {
    let mut bytes = [0; ID_BYTES + 16 + SECRET_BYTES];
    lockkeeper_net::random::fill(&mut bytes)
        .map_err(|error| Failure::Unavailable(format!("the system gives no random bytes: {error}")))?;
    let (id, rest) = bytes.split_at(ID_BYTES);
    let (salt, secret) = rest.split_at(16);
    let (id, secret) = (hex(id), hex(secret));
    let mut salted = [0; 16];
    salted.copy_from_slice(salt);
    let hash = hash(&salted, secret.as_bytes());
    let text = format!("{MARK}{id}_{secret}");
    let id = SmolStr::from(id);
    let change = AccessChange::AddToken { id: id.clone(), identity: identity.into(), salt: salted, hash };
    Ok(NewToken { id, text, change })
}

/// The public part and the secret of a token's text.
pub fn parts(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(MARK)?.split_once('_')
}

/// Whether the secret belongs to the token.
pub fn fits(token: &AccessToken, secret: &str) -> bool {
    same(&hash(&token.salt, secret.as_bytes()), &token.hash)
}

/// SHA-256 of salt and secret.
pub fn hash(salt: &[u8; 16], secret: &[u8]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(salt);
    context.update(secret);
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// In a time that tells nothing about where they differ.
pub fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_fits_its_own_secret_alone() {
        let made = draw("ci").unwrap();
        let AccessChange::AddToken { id, identity, salt, hash } = made.change else { panic!("a token") };
        assert_eq!(identity, "ci");
        let token = AccessToken { identity, salt, hash, made: Default::default() };
        let (shown, secret) = parts(&made.text).unwrap();
        assert_eq!(shown, id);
        assert_eq!(secret.len(), 2 * SECRET_BYTES);
        assert!(fits(&token, secret));
        assert!(!fits(&token, &secret[1..]));
        assert!(!fits(&token, ""));
        let (_, other) = {
            let other = draw("ci").unwrap();
            (other.id, other.text)
        };
        assert!(!fits(&token, parts(&other).unwrap().1));
    }
}
