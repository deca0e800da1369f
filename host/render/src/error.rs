//! What can go wrong between messages and token ids. Owns the wording of those errors, nothing else.

use std::path::PathBuf;

/// An error of this crate. Messages name the file, template or message concerned and say what helps.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// A file of the model folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file of the model folder is not the JSON it should be.
    #[error("{} is not valid: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// `tokenizer.json` is there but the tokenizer cannot be built.
    #[error("cannot load the tokenizer {}: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The tokenizer library's reason.
        reason: String,
    },
    /// No chat template anywhere.
    #[error(
        "no chat template in {}: looked for chat_template.jinja, and for `chat_template` in tokenizer_config.json. \
         Set `renderer.name` to a format that the model is to learn, such as \"chatml\", or `tokenizer.chat_template` to a \
         template or a template file",
        dir.display()
    )]
    NoTemplate {
        /// The model folder.
        dir: PathBuf,
    },
    /// The `chat_template` option is neither a file nor a template.
    #[error("chat_template `{value}` is no file, and has no `{{{{` or `{{%` that would make it a template")]
    TemplateOption {
        /// What was given.
        value: String,
    },
    /// The template does not compile.
    #[error("chat template from {origin} does not compile: {reason}")]
    TemplateSyntax {
        /// Where the template came from.
        origin: String,
        /// The template engine's reason.
        reason: String,
    },
    /// The template refused the messages.
    #[error("chat template from {origin} fails on {messages} messages: {reason}")]
    Template {
        /// Where the template came from.
        origin: String,
        /// How many messages were rendered.
        messages: usize,
        /// The template's own error or the engine's.
        reason: String,
    },
    /// The last message cannot be left open.
    #[error(
        "chat template from {origin} does not show the text of the last message as it is, so it cannot be continued"
    )]
    NotContinuable {
        /// Where the template came from.
        origin: String,
    },
    /// The tokenizer refused a text.
    #[error("cannot tokenise {chars} characters: {reason}")]
    Encode {
        /// Length of the text.
        chars: usize,
        /// The tokenizer library's reason.
        reason: String,
    },
    /// The tokenizer refused ids.
    #[error("cannot decode {tokens} token ids: {reason}")]
    Decode {
        /// Number of ids.
        tokens: usize,
        /// The tokenizer library's reason.
        reason: String,
    },
    /// Tokens have no bytes of their own.
    #[error("a tokenizer with the decoder `{decoder}` does not say which bytes each token stands for")]
    NoBytes {
        /// Its kind.
        decoder: String,
    },
    /// The conversation rendered whole does not start with what the model saw before one of its turns, so no loss mask
    /// can be right.
    #[error(
        "chat template from {origin} is not prefix-stable at message {message} ({role}): {what}. Rendering the whole \
         conversation is not what the model sees turn by turn; choose a format by `renderer.name`, use a template that keeps earlier turns unchanged, or \
         split the conversation so that each row ends with its only assistant message"
    )]
    NotPrefixStable {
        /// Where the template came from.
        origin: String,
        /// Index of the message.
        message: usize,
        /// Its role.
        role: &'static str,
        /// Which comparison failed.
        what: &'static str,
    },
    /// A trained assistant message is not followed by a stop token.
    #[error(
        "chat template from {origin} puts no stop token after message {message}: a model trained on it would never \
         learn to stop. Stop tokens are {stops:?}; check eos_token in tokenizer_config.json and eos_token_id in \
         generation_config.json"
    )]
    NoStopToken {
        /// Where the template came from.
        origin: String,
        /// Index of the message.
        message: usize,
        /// The stop tokens' texts.
        stops: Vec<String>,
    },
    /// The text of a message whose body should be trained cannot be found in what the template made of it.
    #[error(
        "cannot locate the text of message {message} ({role}) in the rendered conversation, so it cannot be trained"
    )]
    ContentNotFound {
        /// Index of the message.
        message: usize,
        /// Its role.
        role: &'static str,
    },
    /// A format was asked for that the tokenizer is not made for.
    #[error("the format {format} does not fit the model: {reason}. Choose another `renderer.name`")]
    UnfitFormat {
        /// The format.
        format: &'static str,
        /// Why.
        reason: String,
    },
    /// Thinking was switched where there is no switch.
    #[error(
        "`enable_thinking` has no meaning for this model: neither its format nor its chat template {} knows it",
        origin.as_deref().unwrap_or_default()
    )]
    NoThinkingSwitch {
        /// Where the template came from.
        origin: Option<String>,
    },
    /// A conversation has something that the format cannot write.
    #[error("the format {format} has no place for what message {message} has: {what}. Take it out, or {remedy}")]
    NoPlace {
        /// The format.
        format: &'static str,
        /// Index of the message.
        message: usize,
        /// What it has.
        what: &'static str,
        /// What to do to keep it.
        remedy: &'static str,
    },
}
