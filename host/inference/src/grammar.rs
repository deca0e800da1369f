//! Grammars that text may be bound to, and what is made of them once for all requests that have them.
//!
//! Owns how they are compiled, the bounds on that, and which are kept. Must not know requests; what a grammar does to the
//! next token is [`crate::guide`]'s.

use crate::{Guide, InferenceError};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use prl_types::TokenId;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a grammar.
const MAX_SOURCE: usize = 256 << 10;
/// Bytes of a token; longer ones are never drawn.
const MAX_WORD: usize = 1000;
/// Bytes of all tokens, which make as many nodes of a tree at most: what their 22 bits hold, less one for the end.
const MAX_NODES: usize = (1 << 22) - 64;
/// Grammars that are kept ready.
const KEPT: usize = 16;
/// Stack of the thread that compiles, which calls itself as deep as rules lead to rules: enough for the longest such
/// chain in [`MAX_SOURCE`].
const STACK: usize = 256 << 20;
/// States of a request's lexer, of one to two kilobytes each.
const MAX_LEXER_STATES: usize = 20_000;

/// White space in JSON where its schema says nothing of it: enough to indent by, and not enough to get lost in.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// What text must be.
#[derive(Clone, Debug)]
pub enum Grammar {
    /// JSON that a JSON Schema describes. llguidance's options may be in its `x-guidance`; without one on white space, there
    /// are at most 40 characters of it at a time.
    Json(Value),
    /// What a regular expression matches as a whole.
    Regex(String),
    /// One of these.
    Choice(Vec<String>),
    /// What the rule `start` of a context-free grammar in llguidance's variant of Lark's notation derives.
    Lark(String),
}

type Key = (&'static str, String);

impl Grammar {
    /// Its kind and its text. Schemas are compared by their text: the order of properties matters.
    fn key(&self) -> Key {
        match self {
            Grammar::Json(schema) => ("json", schema.to_string()),
            Grammar::Regex(text) => ("regex", text.clone()),
            Grammar::Choice(all) => ("choice", json!(all).to_string()),
            Grammar::Lark(text) => ("lark", text.clone()),
        }
    }

    fn source(&self) -> Result<TopLevelGrammar, InferenceError> {
        Ok(match self {
            Grammar::Json(schema) => TopLevelGrammar::from_json_schema(bounded(schema)),
            Grammar::Regex(text) => TopLevelGrammar::from_regex(text),
            Grammar::Choice(all) if all.is_empty() => return Err(bad("there is nothing to choose from")),
            Grammar::Choice(all) => {
                // Literals are written as in JSON.
                let literals: Vec<String> = all.iter().map(|one| json!(one).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", literals.join(" | ")))
            }
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        })
    }
}

/// The schema with an option on white space.
fn bounded(schema: &Value) -> Value {
    let mut bounded = if schema == &Value::Bool(true) { json!({}) } else { schema.clone() };
    let options = bounded.as_object_mut().map(|schema| schema.entry("x-guidance").or_insert_with(|| json!({})));
    if let Some(options) = options.and_then(Value::as_object_mut)
        && !["whitespace_pattern", "whitespace_flexible"].iter().any(|name| options.contains_key(*name))
    {
        options.insert("whitespace_pattern".into(), json!(WHITE_SPACE));
    }
    bounded
}

/// What an entry of the vocabulary is to a grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Never drawn.
    Nothing,
    /// A piece of text.
    Text(Vec<u8>),
    /// No text; a grammar may name it.
    Special(String),
}

/// Makes grammars ready for the tokens of one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    /// Held while one is made ready: one at a time, whoever asks.
    compiling: Mutex<()>,
    /// The ones used last, latest first.
    kept: Mutex<VecDeque<(Key, Guide)>>,
}

impl Grammars {
    /// For a model's vocabulary. Takes a moment, which grows with it.
    ///
    /// # Errors
    /// [`InferenceError::BadGrammar`] where its tokens have more text than can be searched.
    pub fn new(words: &[Word]) -> Result<Self, InferenceError> {
        let marked = |name: &str| [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
        let mut bytes: Vec<Vec<u8>> = words
            .iter()
            .map(|word| match word {
                Word::Nothing => Vec::new(),
                Word::Text(bytes) => bytes.clone(),
                Word::Special(name) => marked(name),
            })
            .map(|bytes| if bytes.len() > MAX_WORD { Vec::new() } else { bytes })
            .collect();
        let nodes: usize = bytes.iter().map(Vec::len).sum();
        if nodes >= MAX_NODES {
            return Err(bad(format!("a vocabulary of {} tokens of {nodes} bytes is too large", words.len())));
        }
        // A token that the model does not have stands for the end: which of its own end a request is the request's.
        let end = bytes.len() as TokenId;
        bytes.push(marked("<|prl: end of the text|>"));
        let info = TokRxInfo::new(bytes.len() as u32, end);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &bytes)));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| bad(e.to_string()))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_LEXER_STATES;
        Ok(Grammars { factory, compiling: Mutex::default(), kept: Mutex::default() })
    }

    /// Makes a grammar ready, or finds it ready. Blocks: mostly for a millisecond, at worst for seconds, and while others
    /// are made ready.
    ///
    /// # Errors
    /// [`InferenceError::BadGrammar`] for one that is wrong, needs what is not supported, is too large, or has no text;
    /// [`InferenceError::Failed`] when the system gives no thread.
    pub fn compile(&self, grammar: &Grammar) -> Result<Guide, InferenceError> {
        let key = grammar.key();
        if let Some(guide) = self.find(&key) {
            return Ok(guide);
        }
        let bytes = key.1.len();
        if bytes > MAX_SOURCE {
            return Err(bad(format!("it has {bytes} bytes; at most {MAX_SOURCE} are taken")));
        }
        let source = grammar.source()?;
        let _one = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have become ready meanwhile.
        if let Some(guide) = self.find(&key) {
            return Ok(guide);
        }
        let thread = std::thread::Builder::new().name("prl-grammar".into()).stack_size(STACK);
        let made = std::thread::scope(|scope| {
            let running = thread.spawn_scoped(scope, || self.start(source));
            running.map(|thread| thread.join().unwrap_or_else(|_| Err(bad("its compiler broke down"))))
        });
        let no_thread = |e| InferenceError::Failed { message: format!("cannot start a thread for a grammar: {e}") };
        let guide = Guide::new(made.map_err(no_thread)??, self.factory.tok_env().tok_trie().vocab_size() - 1);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front((key, guide.clone()));
        Ok(guide)
    }

    fn find(&self, key: &Key) -> Option<Guide> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(one, _)| one == key)?;
        let found = kept.remove(at)?;
        let guide = found.1.clone();
        kept.push_front(found);
        Some(guide)
    }

    /// The state before the first token.
    fn start(&self, source: TopLevelGrammar) -> Result<Matcher, InferenceError> {
        let matcher = Matcher::new(self.factory.create_parser(source));
        if let Some(reason) = matcher.get_error() {
            return Err(bad(words_of(&reason)));
        }
        // What cannot begin has no text.
        match matcher.deep_clone().compute_mask() {
            Ok(_) => Ok(matcher),
            Err(reason) => match words_of(&reason.to_string()) {
                reason if reason.starts_with("NoExtension") => Err(bad("no text is as it asks")),
                reason => Err(bad(reason)),
            },
        }
    }
}

/// The reason alone, without what surrounds it for whoever works on the library.
pub(crate) fn words_of(reason: &str) -> String {
    match reason.strip_prefix("panic: ") {
        Some(_) => "it is beyond what its compiler can take".into(),
        None => reason.split("\n<").next().unwrap_or_default().trim_end().to_owned(),
    }
}

fn bad(reason: impl Into<String>) -> InferenceError {
    InferenceError::BadGrammar { reason: reason.into() }
}
