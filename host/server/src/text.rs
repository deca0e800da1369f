//! The text of one sequence as its tokens come. Owns what is held back: characters that are not complete, and what may
//! be the beginning of a stop string. Must not know messages or the engine.

use prl_render::{RenderError, Renderer, TextStream};
use prl_types::{FinishReason, TokenId};
use std::sync::Arc;

/// How text is made of tokens.
#[derive(Clone)]
pub(crate) struct TextRules {
    pub renderer: Arc<Renderer>,
    pub skip_special: bool,
    /// Strings that end the sequence.
    pub stop: Vec<String>,
    /// Tokens that end the sequence.
    pub stop_ids: Vec<TokenId>,
    /// Whether what ends the sequence is part of the text.
    pub include_stop: bool,
}

impl TextRules {
    /// All text of some ids, for the engine to look for stop strings in.
    pub fn decode(&self, ids: &[TokenId]) -> String {
        let kept: Vec<TokenId> = ids.iter().copied().filter(|id| self.keeps(*id)).collect();
        // Ids of the vocabulary's padding have no text.
        self.renderer.decode(&kept).unwrap_or_default()
    }

    fn keeps(&self, id: TokenId) -> bool {
        !self.skip_special || self.renderer.is_text(id)
    }
}

/// The text of a sequence under way.
pub(crate) struct Text {
    rules: Arc<TextRules>,
    stream: TextStream,
    /// What may still be cut off.
    held: String,
    /// Where in `held` the stop string may begin that ends the sequence: earlier ones did not.
    from: usize,
}

impl Text {
    pub fn new(rules: Arc<TextRules>) -> Self {
        let stream = rules.renderer.tokenizer().stream(false);
        Text { rules, stream, held: String::new(), from: 0 }
    }

    /// Adds a token and gives the text that is now certain.
    pub fn push(&mut self, id: TokenId) -> Result<String, RenderError> {
        // Whatever was complete before this token has not ended the sequence.
        while let Some((at, stop)) = self.complete() {
            self.from = at + stop.chars().next().map_or(1, char::len_utf8);
        }
        let ends = self.rules.stop_ids.contains(&id) && !self.rules.include_stop;
        if !ends && self.rules.keeps(id) {
            self.held += &self.stream.push(id)?;
        }
        let certain = match self.complete() {
            Some((at, _)) => at,
            None => self.held.len() - self.begun(),
        };
        self.from = self.from.saturating_sub(certain);
        Ok(self.held.drain(..certain).collect())
    }

    /// The rest, as the sequence ended. A character whose bytes did not all come is left out.
    pub fn finish(self, end: &FinishReason) -> Result<String, RenderError> {
        let Text { rules, stream, mut held, from } = self;
        held += stream.finish()?.trim_end_matches(char::REPLACEMENT_CHARACTER);
        if let FinishReason::StopString(stop) = end {
            let found = held[from..].find(stop.as_str()).map(|at| from + at).or_else(|| held.rfind(stop.as_str()));
            if let Some(at) = found {
                held.truncate(if rules.include_stop { at + stop.len() } else { at });
            }
        }
        Ok(held)
    }

    /// The first stop string that is there as a whole.
    fn complete(&self) -> Option<(usize, &str)> {
        let found = |stop: &'_ String| self.held[self.from..].find(stop.as_str());
        let stops = self.rules.stop.iter();
        stops.filter_map(|stop| found(stop).map(|at| (self.from + at, stop.as_str()))).min_by_key(|(at, _)| *at)
    }

    /// Length of the longest end of the text that a stop string may begin with.
    fn begun(&self) -> usize {
        let tail = &self.held[self.from..];
        let longest = |stop: &String| {
            let most = stop.len().saturating_sub(1).min(tail.len());
            (1..=most).rev().find(|n| stop.is_char_boundary(*n) && tail.ends_with(&stop[..*n]))
        };
        self.rules.stop.iter().filter_map(longest).max().unwrap_or(0)
    }
}
