//! Lines for the environment's log file. The host limits their rate and length. Outside a sandbox (in native unit
//! tests) there is no log and lines are dropped.

pub use crate::bindings::prl::env::log::Level;

/// Writes one line with named fields.
pub fn emit(level: Level, message: &str, fields: &[(String, String)]) {
    #[cfg(target_arch = "wasm32")]
    crate::bindings::prl::env::log::emit(level, message, fields);
    #[cfg(not(target_arch = "wasm32"))]
    let _ = (level, message, fields);
}

/// Writes one line at level debug.
pub fn debug(message: &str) {
    emit(Level::Debug, message, &[]);
}

/// Writes one line at level info.
pub fn info(message: &str) {
    emit(Level::Info, message, &[]);
}

/// Writes one line at level warn.
pub fn warn(message: &str) {
    emit(Level::Warn, message, &[]);
}

/// Writes one line at level error.
pub fn error(message: &str) {
    emit(Level::Error, message, &[]);
}
