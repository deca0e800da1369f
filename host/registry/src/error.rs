//! What can go wrong with a registry. Owns the wording.

use std::path::PathBuf;

/// An error of this crate. Messages name the reference, address or file, and say what helps.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Not of the form `oci://registry/name:version[@sha256:…]`.
    #[error("`{text}` is no reference such as oci://ghcr.io/me/words:1.0.0 ({reason})")]
    Reference {
        /// As given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The registry cannot be reached, or breaks off.
    #[error("`{url}` cannot be had: {reason}; is the registry's name right, and does it run?")]
    Transport {
        /// What was asked for.
        url: String,
        /// Why it failed.
        reason: String,
    },
    /// The registry refuses.
    #[error("`{url}`: status {status}: {said}{}", help(*status))]
    Status {
        /// What was asked for.
        url: String,
        /// Its status.
        status: u16,
        /// Its words.
        said: String,
    },
    /// What came is not what was asked for.
    #[error("{what} is sha256:{got}, not sha256:{wanted}: it was changed on the way or in the registry")]
    Digest {
        /// Of what.
        what: String,
        /// In hex.
        wanted: String,
        /// In hex.
        got: String,
    },
    /// There is something else under that name.
    #[error("`{reference}` is no environment: {reason}")]
    NotAnEnvironment {
        /// The reference.
        reference: String,
        /// What does not fit.
        reason: String,
    },
    /// The cache cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

fn help(status: u16) -> &'static str {
    match status {
        401 | 403 => "; set PRL_REGISTRY_USER and PRL_REGISTRY_PASSWORD to an account that may",
        404 => "; is the name right, and is it published?",
        _ => "",
    }
}
