//! Messages to token ids and back.
//!
//! Owns the tokenizer, the model's chat template and the hand-written formats of model families, the attribution of tokens to messages, and the reading of a sampled
//! turn. Must not know what tokens are used for: no weights, no sampling, no rewards. Nothing here turns sampled text
//! into ids again: sampled ids are kept as they are and only extended.

mod arguments;
mod bounds;
mod bytes;
mod error;
mod formats;
mod formatted;
mod guard;
mod parse;
mod pyjson;
mod renderer;
mod rows;
mod sources;
mod spans;
mod template;
mod templated;
mod tokenizer;

pub use error::RenderError;
pub use formats::FormatName;
pub use parse::{Calls, Thinking, TurnDelta, TurnStream};
pub use renderer::{Choice, LossMask, Open, Prompt, Rendered, Renderer, RendererOptions, TrainingSample};
pub use rows::{COLUMNS, Conversation, read_conversation, read_messages};
pub use sources::chat_template;
pub use tokenizer::{TextStream, Tokenizer};
