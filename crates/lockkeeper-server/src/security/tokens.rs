//! Access tokens: `lk_ID_SECRET`. The secret has 256 random bits and is never stored; the table has the SHA-256 of a salt
//! and the secret.
//!
//! No slow hash is needed: slow hashes protect passwords, which can be guessed. 256 random bits cannot be guessed, and a slow
//! hash would let unauthenticated callers overload the node.

use lockkeeper_core::{AccessChange, AccessToken};
use ring::digest::{Context, SHA256};
use smol_str::SmolStr;
use subtle::ConstantTimeEq;

use crate::failure::Failure;

const MARK: &str = "lk_";
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// A newly generated token.
pub struct NewToken {
    /// Its public id.
    pub id: SmolStr,
    /// The whole token, for its owner only.
    pub text: String,
    /// The change that adds it to the cell.
    pub change: AccessChange,
}

/// Generates a token for an identity.
pub fn generate(identity: &str) -> Result<NewToken, Failure> {
    let mut bytes = [0; ID_BYTES + 16 + SECRET_BYTES];
    lockkeeper_net::random::fill(&mut bytes).map_err(|error| {
        Failure::Unavailable(format!("failed to get random bytes from the operating system: {error}"))
    })?;
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

/// Splits the text of a token into its id and its secret.
pub fn parts(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(MARK)?.split_once('_')
}

/// Whether the secret belongs to the token.
pub fn verify(token: &AccessToken, secret: &str) -> bool {
    constant_time_eq(&hash(&token.salt, secret.as_bytes()), &token.hash)
}

/// Returns the SHA-256 of salt and secret.
pub fn hash(salt: &[u8; 16], secret: &[u8]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(salt);
    context.update(secret);
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// Compares in constant time.
pub fn constant_time_eq(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_verified_by_its_own_secret_only() {
        let generated = generate("ci").unwrap();
        let AccessChange::AddToken { id, identity, salt, hash } = generated.change else {
            panic!("not an AddToken")
        };
        assert_eq!(identity, "ci");
        let token = AccessToken { identity, salt, hash, made: Default::default() };
        let (shown, secret) = parts(&generated.text).unwrap();
        assert_eq!(shown, id);
        assert_eq!(secret.len(), 2 * SECRET_BYTES);
        assert!(verify(&token, secret));
        assert!(!verify(&token, &secret[1..]));
        assert!(!verify(&token, ""));
        let (_, other) = {
            let other = generate("ci").unwrap();
            (other.id, other.text)
        };
        assert!(!verify(&token, parts(&other).unwrap().1));
    }
}
