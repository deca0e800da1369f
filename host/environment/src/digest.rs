//! SHA-256 in hex, the identity of components and files. Must not know what is hashed.

use sha2::{Digest, Sha256};
use std::io::{self, Read};

/// Of bytes.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Of all that is left to read.
pub fn sha256_of(reader: &mut impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(reader, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

/// Two digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
