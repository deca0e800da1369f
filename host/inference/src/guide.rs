//! What a grammar leaves of the next token's logits.
//!
//! Owns the state of one request within its grammar. Must not know how grammars are written or how tokens are drawn.

use crate::InferenceError;
use crate::grammar::words_of;
use llguidance::Matcher;
use prl_types::TokenId;
use std::sync::Arc;

/// A grammar that is ready to be used by any number of requests, made by [`crate::Grammars`]. Cheap to clone.
#[derive(Clone)]
pub struct Guide {
    /// Before the first token; every request goes on with a copy that shares nothing with others.
    start: Arc<Matcher>,
    /// Entries of the vocabulary. The one after the last stands for the end of the text.
    vocab_size: usize,
    /// The token behind which it begins.
    after: Option<TokenId>,
}

impl Guide {
    pub(crate) fn new(start: Matcher, vocab_size: usize) -> Self {
        Guide { start: Arc::new(start), vocab_size, after: None }
    }

    /// The same for text behind the first such token, such as the end of the reasoning: what comes before is free, but
    /// cannot be the end.
    pub fn after(self, token: TokenId) -> Self {
        Guide { after: Some(token), ..self }
    }

    /// Entries of the vocabulary that it was made for.
    pub(crate) fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").field("after", &self.after).finish_non_exhaustive()
    }
}

/// A request within its grammar.
pub(crate) struct Guided {
    guide: Guide,
    /// Once the text is bound and a token was asked for.
    matcher: Option<Matcher>,
    /// Whether the text is still free.
    free: bool,
    tokens: usize,
}

impl Guided {
    pub fn new(guide: Guide) -> Self {
        let free = guide.after.is_some();
        Guided { guide, matcher: None, free, tokens: 0 }
    }

    /// Sets the logits of all tokens to −∞ that must not come next; `ends` end the request, and may come where the text may
    /// end. Whether it may.
    pub fn restrict(&mut self, logits: &mut [f32], ends: &[TokenId]) -> Result<bool, InferenceError> {
        if self.free {
            for id in ends {
                logits.get_mut(*id as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
            }
            return Ok(false);
        }
        let mask = self.matcher().compute_mask().map_err(|e| self.astray(&e.to_string()))?;
        let whole = mask.is_allowed(self.guide.vocab_size as TokenId);
        for (id, logit) in logits.iter_mut().enumerate() {
            let id = id as TokenId;
            let may = mask.is_allowed(id) || (whole && ends.contains(&id));
            if !may {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(whole)
    }

    /// A token that does not end the request was drawn. Whether the text is complete: nothing may follow.
    pub fn push(&mut self, id: TokenId) -> Result<bool, InferenceError> {
        self.tokens += 1;
        if self.free {
            self.free = self.guide.after != Some(id);
            return Ok(false);
        }
        self.matcher().consume_token(id).map_err(|e| self.astray(&e.to_string()))?;
        Ok(self.matcher().is_stopped())
    }

    /// Nothing may come next, and the text is not whole.
    pub fn stuck(&self) -> InferenceError {
        self.astray("no token goes on as it asks")
    }

    fn matcher(&mut self) -> &mut Matcher {
        self.matcher.get_or_insert_with(|| self.guide.start.deep_clone())
    }

    fn astray(&self, reason: &str) -> InferenceError {
        InferenceError::Astray { tokens: self.tokens, reason: words_of(reason) }
    }
}
