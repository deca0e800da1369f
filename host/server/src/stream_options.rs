//! `stream` and `stream_options`, as all doors have them. Owns these fields.

use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::json;

/// How an answer is streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    /// Whether a last piece tells the usage.
    pub usage: bool,
}

/// `None` where the answer comes in one piece.
pub(crate) fn stream_options(fields: &mut Fields) -> Result<Option<StreamOptions>, ApiError> {
    let streams = fields.flag("stream", false)?;
    let Some(options) = fields.value("stream_options") else { return Ok(streams.then(StreamOptions::default)) };
    if !streams {
        return Err(ApiError::field("stream_options", "`stream_options` needs `stream` = true"));
    }
    let mut options = Fields::within(options, "stream_options")?;
    let usage = options.flag("include_usage", false)?;
    options.neutral("continuous_usage_stats", &[json!(false)])?;
    options.neutral("include_obfuscation", &[json!(false)])?;
    options.finish(&[])?;
    Ok(Some(StreamOptions { usage }))
}
