//! What a format writes: pieces of text with their origin, and their ids. Owns where text is cut to be encoded: wherever
//! the model takes over or hands back, so that what it samples never merges with what it was given.

use crate::spans::{Segment, token_spans};
use crate::{RenderError, Rendered, Tokenizer};
use prl_types::{Role, RoleSpan, TokenId};
use std::ops::Range;

/// A text of one origin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub text: String,
    pub role: Role,
    /// Index of the message; `None` for the invitation to speak and for what no message says.
    pub message: Option<usize>,
    /// Whether it is the message's own text.
    pub is_content: bool,
    /// Whether the model writes it.
    pub sampled: bool,
}

/// Takes pieces in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    pieces: Vec<Piece>,
}

impl Writer {
    /// What the format puts around messages.
    pub fn scaffold(&mut self, role: Role, message: Option<usize>, text: &str) {
        self.push(Piece { text: text.into(), role, message, is_content: false, sampled: false });
    }

    /// A message's own text that the model is given.
    pub fn given(&mut self, role: Role, message: usize, text: &str) {
        self.push(Piece { text: text.into(), role, message: Some(message), is_content: true, sampled: false });
    }

    /// What the model writes; `is_content` tells its text from markup and reasoning.
    pub fn sampled(&mut self, message: usize, is_content: bool, text: &str) {
        self.push(Piece {
            text: text.into(),
            role: Role::Assistant,
            message: Some(message),
            is_content,
            sampled: true,
        });
    }

    fn push(&mut self, piece: Piece) {
        let like = |p: &Piece| (p.role, p.message, p.is_content, p.sampled);
        match self.pieces.last_mut() {
            _ if piece.text.is_empty() => {}
            Some(last) if like(last) == like(&piece) => last.text.push_str(&piece.text),
            _ => self.pieces.push(piece),
        }
    }

    /// The pieces.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Drops all behind the last text of message `n`; whether it has one.
    pub fn open_at(&mut self, n: usize) -> bool {
        let last = self.pieces.iter().rposition(|p| p.is_content && p.message == Some(n));
        self.pieces.truncate(last.map_or(0, |at| at + 1));
        last.is_some()
    }

    /// Drops the token that ends the last turn, where one of `ends` does.
    pub fn drop_end(&mut self, ends: &[&str]) {
        if let Some(last) = self.pieces.last_mut()
            && let Some(rest) = ends.iter().find_map(|end| last.text.strip_suffix(end))
        {
            last.text.truncate(rest.len());
            self.pieces.pop_if(|last| last.text.is_empty());
        }
    }

    /// All text.
    pub fn text(&self) -> String {
        self.pieces.iter().map(|piece| piece.text.as_str()).collect()
    }

    /// The ids.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoded, RenderError> {
        let mut out = Encoded::default();
        let run = |a: &Piece, b: &Piece| a.sampled == b.sampled && (!a.sampled || a.message == b.message);
        let mut first = 0;
        for run in self.pieces.chunk_by(run) {
            let text: String = run.iter().map(|piece| piece.text.as_str()).collect();
            let (ids, offsets) = tokenizer.encode_with_offsets(&text)?;
            let mut from = 0;
            let segments: Vec<Segment> = run
                .iter()
                .map(|piece| {
                    let range = from..from + piece.text.len();
                    from = range.end;
                    Segment { range, role: piece.role, is_content: piece.is_content, message: piece.message }
                })
                .collect();
            let at = out.ids.len();
            let spans = token_spans(&segments, &offsets);
            let mut spans = spans.into_iter().map(|span| RoleSpan { start: span.start + at, ..span }).peekable();
            let origin = |p: &Piece| (p.role, p.message, p.is_content);
            let goes_on = first > 0 && origin(&self.pieces[first - 1]) == origin(&run[0]);
            if let (true, Some(last)) = (goes_on, out.spans.last_mut())
                && let Some(more) = spans.next_if(|next| next.start == last.start + last.len)
            {
                last.len += more.len;
            }
            out.spans.extend(spans);
            let owner = |at: &Range<usize>| segments.partition_point(|s| s.range.end <= at.start).min(run.len() - 1);
            out.owners.extend(offsets.iter().map(|at| first + owner(at)));
            out.sampled.extend(std::iter::repeat_n(run[0].sampled, ids.len()));
            out.ids.extend(ids);
            first += run.len();
        }
        Ok(out)
    }
}

/// Ids of pieces; all lists but the spans have one entry per token.
#[derive(Clone, Debug, Default)]
pub(crate) struct Encoded {
    pub ids: Vec<TokenId>,
    pub spans: Vec<RoleSpan>,
    pub sampled: Vec<bool>,
    /// Index of the piece that holds the token's first byte.
    pub owners: Vec<usize>,
}

impl From<Encoded> for Rendered {
    fn from(encoded: Encoded) -> Self {
        Rendered { ids: encoded.ids, spans: encoded.spans, sampled: encoded.sampled }
    }
}
