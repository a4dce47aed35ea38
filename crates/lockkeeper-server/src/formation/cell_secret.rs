//! The secret that the members of a cell share. It is generated when the cell is formed, stored in each member's data
//! folder, and sent to a node before it is added. Every message between members is authenticated with it, so that only
//! members can vote, append or install a snapshot, even without certificates.
//!
//! The proof authenticates the sender, not the content: against attackers who can read or change the traffic between
//! members, use TLS (docs/security.md).

use std::fmt::{self, Write};
use std::io;

use ring::hmac;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const SECRET_BYTES: usize = 32;
/// Domain separation: distinguishes these proofs from any other use of the secret.
const CONTEXT: &[u8] = b"lockkeeper member 1";

/// The secret of a cell. Its `Debug` output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct CellSecret([u8; SECRET_BYTES]);

/// Sender and receiver that a proof is bound to.
#[derive(Debug, Clone, Copy)]
pub struct Parties<'a> {
    /// The cell.
    pub cell: &'a str,
    /// The node that sends.
    pub from: u64,
    /// The node that receives; 0 if the sender does not know it.
    pub to: u64,
    /// The data folder of the receiver; 0 if the sender does not know it.
    pub to_folder: u64,
}

impl Parties<'_> {
    fn to_bytes(self) -> Vec<u8> {
        let numbers = [self.from, self.to, self.to_folder].map(u64::to_le_bytes);
        [CONTEXT, numbers.as_flattened(), self.cell.as_bytes()].concat()
    }
}

impl CellSecret {
    /// Generates a random secret.
    pub fn generate() -> io::Result<CellSecret> {
        let mut bytes = [0; SECRET_BYTES];
        lockkeeper_net::random::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(CellSecret(bytes))
    }

    /// Parses the secret from another member's message. `None` if its length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<CellSecret> {
        bytes.try_into().ok().map(CellSecret)
    }

    /// Returns the bytes, for a node that joins the cell.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    /// Creates a proof that the sender knows the secret.
    pub fn prove(&self, parties: Parties<'_>) -> Vec<u8> {
        hmac::sign(&self.key(), &parties.to_bytes()).as_ref().to_vec()
    }

    /// Reports whether the sender knows the secret. Runs in constant time.
    pub fn verify(&self, parties: Parties<'_>, proof: &[u8]) -> bool {
        hmac::verify(&self.key(), &parties.to_bytes(), proof).is_ok()
    }
}

impl fmt::Debug for CellSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CellSecret(..)")
    }
}

impl Serialize for CellSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(2 * SECRET_BYTES);
        for byte in self.0 {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for CellSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CellSecret, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("the secret is not 64 hexadecimal digits");
        if text.len() != 2 * SECRET_BYTES || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; SECRET_BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| wrong())?;
        }
        Ok(CellSecret(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTIES: Parties<'_> = Parties { cell: "c0ffee", from: 1, to: 2, to_folder: 77 };

    #[test]
    fn a_proof_is_bound_to_its_secret_and_its_parties() {
        let (one, other) = (CellSecret([1; 32]), CellSecret([2; 32]));
        let proof = one.prove(PARTIES);
        assert!(one.verify(PARTIES, &proof));
        assert!(!other.verify(PARTIES, &proof));
        for wrong in [
            Parties { cell: "c0ffe", ..PARTIES },
            Parties { from: 3, ..PARTIES },
            Parties { to: 3, ..PARTIES },
            Parties { to_folder: 78, ..PARTIES },
        ] {
            assert!(!one.verify(wrong, &proof), "{wrong:?}");
        }
        assert!(!one.verify(PARTIES, &[]));
        assert!(!one.verify(PARTIES, &proof[..31]));
    }

    #[test]
    fn a_secret_round_trips_through_json_and_is_not_printed() {
        let secret = CellSecret::generate().expect("random bytes");
        let json = serde_json::to_string(&secret).expect("written");
        assert_eq!(serde_json::from_str::<CellSecret>(&json).expect("read"), secret);
        assert_eq!(format!("{secret:?}"), "CellSecret(..)");
        for wrong in ["\"\"", "\"zz\"", &json.replace('"', "\"0"), "\"\u{e9}\""] {
            assert!(serde_json::from_str::<CellSecret>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(CellSecret::from_bytes(&secret.to_bytes()), Some(secret));
        assert_eq!(CellSecret::from_bytes(&[0; 31]), None);
    }
}
