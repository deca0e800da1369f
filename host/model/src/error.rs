//! The one error type of the crate. Owns how failures of model files, devices and inputs read; must not know who asks.

use std::path::{Path, PathBuf};

/// What can go wrong with a model: its files, its device, or what it is fed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file or folder could not be read or written.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// For example `read`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// A file that every model folder has is not there.
    #[error("`{dir}` is not a model folder: it has no {missing}")]
    NotAModel {
        /// The folder.
        dir: PathBuf,
        /// What was looked for.
        missing: &'static str,
    },
    /// A file is not JSON or lacks the shape it must have.
    #[error("`{path}` is not valid: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A key of `config.json` is missing or has a value that is not supported.
    #[error("`{path}`: key `{key}` {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A weight file is damaged or holds other tensors than the config asks for.
    #[error("`{path}`: {reason}")]
    Weights {
        /// The safetensors file, or the folder if no single file is to blame.
        path: PathBuf,
        /// Names the tensor and says what is wrong with it.
        reason: String,
    },
    /// A model name that is neither a folder nor available from the hub.
    #[error("model `{name}`: {reason}")]
    Hub {
        /// The name as given.
        name: String,
        /// What is wrong and what to do about it.
        reason: String,
    },
    /// The device does not exist or this build cannot use it.
    #[error("device `{device}`: {reason}")]
    Device {
        /// For example `cuda:0`.
        device: String,
        /// What is wrong and what to do about it.
        reason: String,
    },
    /// What is to be computed at a time does not fit the device's memory.
    #[error("{0}")]
    Memory(String),
    /// A setting of an adapter that is to be trained.
    #[error("`lora.{key}` {reason}")]
    Lora {
        /// The key.
        key: &'static str,
        /// What is wrong with it and what to do about it.
        reason: String,
    },
    /// Token ids, lengths or temperatures that no model could take.
    #[error("invalid model input: {0}")]
    Input(String),
    /// A computation failed on the device.
    #[error("the device failed: {0}")]
    Execution(String),
}

impl ModelError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ModelError {
        let path = path.to_path_buf();
        move |source| ModelError::Io { action, path, source }
    }

    pub(crate) fn config(path: &Path, key: impl Into<String>, reason: impl Into<String>) -> ModelError {
        ModelError::Config { path: path.to_path_buf(), key: key.into(), reason: reason.into() }
    }

    pub(crate) fn weights(path: &Path, reason: impl Into<String>) -> ModelError {
        ModelError::Weights { path: path.to_path_buf(), reason: reason.into() }
    }

    pub(crate) fn execution(error: impl std::fmt::Debug) -> ModelError {
        ModelError::Execution(format!("{error:?}"))
    }
}
