//! Repositories of the Hugging Face hub in its usual cache, which the Python library shares.
//!
//! Owns how the hub is asked, what every failure says, and which files of a repository are there. Must not know which files
//! anybody needs, nor what is in them.

mod cache;
mod client;
mod download;
mod options;
mod repo;

pub use options::HubOptions;
pub use repo::{Cached, Hub, HubError, Kind, Listed, Listing};

/// Whether a name looks like an id of the hub: `owner/name`.
pub fn is_hub_id(name: &str) -> bool {
    matches!(name.split_once('/'), Some((owner, name)) if is_plain_name(owner) && is_plain_name(name))
}

/// Whether a name is that of a file in the folder itself.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}
