//! The tokenizer: text to ids and back. Owns special-token hygiene (rendered text never gains a second BOS) and
//! incremental decoding; knows no messages.

use crate::RenderError;
use crate::bounds::{self, MAX_TEXT};
use crate::guard::guarded;
use prl_types::TokenId;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tokenizers::{PostProcessor, PostProcessorWrapper};

/// A loaded `tokenizer.json`. Cloning is cheap: clones share one vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

struct Shared {
    inner: tokenizers::Tokenizer,
    /// Taken out of `inner`: it adds special tokens and trims offsets, and rendered text needs neither.
    post: Option<PostProcessorWrapper>,
    vocab_size: usize,
}

impl Tokenizer {
    /// Loads `tokenizer.json` of a model folder. Truncation and padding that the file asks for are switched off.
    ///
    /// # Errors
    /// The file is missing or is not a tokenizer.
    pub fn load(dir: &Path) -> Result<Self, RenderError> {
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|source| RenderError::Read { path: path.clone(), source })?;
        let fail =
            |reason: tokenizers::Error| RenderError::Tokenizer { path: path.clone(), reason: reason.to_string() };
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(fail)?;
        inner.with_truncation(None).map_err(fail)?;
        inner.with_padding(None);
        let post = inner.get_post_processor().cloned();
        inner.with_post_processor(None::<PostProcessorWrapper>);
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        Ok(Tokenizer { shared: Arc::new(Shared { inner, post, vocab_size }) })
    }

    /// Ids of a text that already holds its special tokens, as rendered chat text does. Adds nothing.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, RenderError> {
        Ok(self.encoding(text)?.get_ids().to_vec())
    }

    /// As [`Tokenizer::encode`], with the byte range of `text` that each token stands for. Tokens that share one
    /// character share its range.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode_with_offsets(&self, text: &str) -> Result<(Vec<TokenId>, Vec<Range<usize>>), RenderError> {
        let encoding = self.encoding(text)?;
        Ok((encoding.get_ids().to_vec(), encoding.get_offsets().iter().map(|(start, end)| *start..*end).collect()))
    }

    /// How many of `ids` are those of `before`, where `ids` and `offsets` are those of a text that begins with it; `None` where its
    /// ids are no beginning of theirs. Encodes only what follows the last added token in `before`: what such a token parts is
    /// encoded apart.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub(crate) fn ids_before(
        &self,
        before: &str,
        ids: &[TokenId],
        offsets: &[Range<usize>],
    ) -> Result<Option<usize>, RenderError> {
        let added = self.shared.inner.get_added_vocabulary().get_added_tokens_decoder();
        let parts = |n: &usize| {
            let token = added.get(&ids[*n]).filter(|t| !(t.normalized || t.single_word || t.lstrip || t.rstrip));
            token.is_some_and(|token| before.get(offsets[*n].clone()) == Some(token.content.as_str()))
        };
        let known = offsets.partition_point(|at| at.end <= before.len());
        let (first, from) = (0..known).rev().find(parts).map_or((0, 0), |n| (n, offsets[n].start));
        let rest = self.encode(&before[from..])?;
        Ok(ids[first..].starts_with(&rest).then_some(first + rest.len()))
    }

    /// Ids of a plain text (no chat template) with the special tokens the tokenizer itself adds, such as BOS. A text
    /// that already starts with them is left as it is, so there is never a second BOS.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<TokenId>, RenderError> {
        let encoding = self.encoding(text)?;
        let bare = encoding.get_ids().to_vec();
        let Some(post) = &self.shared.post else { return Ok(bare) };
        let full = post
            .process(encoding, None, true)
            .map_err(|e| RenderError::Encode { chars: text.chars().count(), reason: e.to_string() })?;
        let (ids, special) = (full.get_ids(), full.get_special_tokens_mask());
        let lead = ids.len().saturating_sub(bare.len()).min(special.iter().take_while(|s| **s == 1).count());
        let skip = if lead > 0 && bare.starts_with(&ids[..lead]) { lead } else { 0 };
        Ok(ids[skip..].to_vec())
    }

    /// Text of ids; invalid UTF-8 becomes U+FFFD. `skip_special` leaves special tokens out.
    ///
    /// # Errors
    /// The tokenizer refuses the ids.
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> Result<String, RenderError> {
        self.shared
            .inner
            .decode(ids, skip_special)
            .map_err(|e| RenderError::Decode { tokens: ids.len(), reason: e.to_string() })
    }

    /// Starts decoding ids one by one.
    pub fn stream(&self, skip_special: bool) -> TextStream {
        TextStream { tokenizer: self.clone(), skip_special, ids: Vec::new(), prefix: 0, read: 0 }
    }

    /// One more than the largest id. A model's embedding may have more rows (padding), never fewer.
    pub fn vocab_size(&self) -> usize {
        self.shared.vocab_size
    }

    /// The id of a token, given exactly as the vocabulary writes it.
    pub fn token_to_id(&self, token: &str) -> Option<TokenId> {
        self.shared.inner.token_to_id(token)
    }

    /// A token as the vocabulary writes it.
    pub fn id_to_token(&self, id: TokenId) -> Option<String> {
        self.shared.inner.id_to_token(id)
    }

    /// Whether the id is one of the tokenizer's special tokens.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.shared.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    /// Whether the id was added to the vocabulary that the model was made with.
    pub(crate) fn is_added(&self, id: TokenId) -> bool {
        self.shared.inner.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id)
    }

    /// The decoder as `tokenizer.json` writes it.
    pub(crate) fn decoder(&self) -> serde_json::Value {
        self.shared.inner.get_decoder().and_then(|decoder| serde_json::to_value(decoder).ok()).unwrap_or_default()
    }

    fn encoding(&self, text: &str) -> Result<tokenizers::Encoding, RenderError> {
        let fail = |reason| RenderError::Encode { chars: text.chars().count(), reason };
        if text.len() > MAX_TEXT {
            return Err(fail(bounds::too_long()));
        }
        // The library unwraps what its regular expressions give, and they give up where they would try for too long.
        let encoding = guarded(|| self.shared.inner.encode(text, false));
        let failed = |panic| fail(format!("the tokenizer fails on it, as on very long runs of one character: {panic}"));
        encoding.map_err(failed)?.map_err(|e| fail(e.to_string()))
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.shared.vocab_size).finish_non_exhaustive()
    }
}

/// Decodes ids as they arrive. A character whose bytes are spread over tokens appears with its last token.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    ids: Vec<TokenId>,
    /// Start of the ids decoded together; earlier ones cannot change the text any more.
    prefix: usize,
    /// Ids whose text has been given out.
    read: usize,
}

impl TextStream {
    /// Adds one id and returns the text that is now certain; empty while a character is incomplete.
    ///
    /// # Errors
    /// The tokenizer refuses the ids.
    pub fn push(&mut self, id: TokenId) -> Result<String, RenderError> {
        self.ids.push(id);
        let text = self.pending()?;
        if text.is_empty() || text.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        self.prefix = self.read;
        self.read = self.ids.len();
        Ok(text)
    }

    /// The rest, with incomplete characters as U+FFFD.
    ///
    /// # Errors
    /// The tokenizer refuses the ids.
    pub fn finish(mut self) -> Result<String, RenderError> {
        let text = self.pending()?;
        self.ids.clear();
        Ok(text)
    }

    fn pending(&mut self) -> Result<String, RenderError> {
        if self.prefix > 64 {
            self.ids.drain(..self.prefix);
            self.read -= self.prefix;
            self.prefix = 0;
        }
        let known = self.tokenizer.decode(&self.ids[self.prefix..self.read], self.skip_special)?;
        let all = self.tokenizer.decode(&self.ids[self.prefix..], self.skip_special)?;
        Ok(all.get(known.len()..).unwrap_or_default().to_string())
    }
}
