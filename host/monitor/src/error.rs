//! What can go wrong in a sink. Owns the wording of those errors, nothing else.

use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, for example `write`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A log level that is none.
    #[error("unknown log level `{name}`: it is one of debug, info, success, warning, error")]
    Level {
        /// What was given.
        name: String,
    },
    /// A subscriber is installed already.
    #[error("logging is set up already in this process")]
    Installed,
    /// A sink outside this crate failed.
    #[error("{0}")]
    Sink(String),
}

/// Attaches action and path to an I/O error.
pub(crate) trait At<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, MonitorError>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, MonitorError> {
        self.map_err(|source| MonitorError::Io { action, path: path.to_path_buf(), source })
    }
}
