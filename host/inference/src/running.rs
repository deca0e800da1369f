//! What is on its way in a scheduler: prompts, sequences that decode, and the step under way.
//!
//! Owns what is known of each by itself. Must not know who comes next.

use crate::forward::Answers;
use crate::live::Live;
use prl_model::{Answer, Want};
use prl_types::TokenId;
use std::sync::Arc;

/// A request whose prompt is through; the cache holds all but the last token that was drawn or is on its way.
pub(crate) struct Decoding<C> {
    pub live: Live,
    pub cache: C,
    /// The answer that it gets its next token from.
    pub answer: Pending,
}

/// Which answer is waited for, of the step under way, and of the one that was begun behind it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pending {
    pub now: Option<usize>,
    pub next: Option<usize>,
}

/// Tokens on their way through the model, and the requests that wait for them.
pub(crate) struct Prefill<C> {
    /// The prompt, and what was drawn before a preemption.
    pub ids: Arc<[TokenId]>,
    pub cache: C,
    pub done: usize,
    pub members: Vec<Live>,
    /// The answer to it.
    pub answer: Pending,
}

impl<C> Prefill<C> {
    /// How many tokens go through the model here. The last one is left to each request where the model answers in tokens and
    /// scores: so every member gets a token of its own, and a prompt that is scored has a label behind each.
    pub fn target(&self, ahead: bool) -> usize {
        let many = self.members.len() > 1 || self.members.iter().any(Live::scores_prompt);
        self.ids.len() - usize::from(ahead && many)
    }

    /// Whether all that was to be told of the prompt is there.
    pub fn is_scored(&self) -> bool {
        let missing = |live: &Live| live.scores_prompt() && live.scored_tokens() + 1 < self.ids.len();
        !self.members.iter().any(missing)
    }
}

/// A step whose answers are not looked at yet.
pub(crate) struct Step {
    pub answers: Answers,
    /// What was wanted, and of how many tokens.
    pub wanted: Vec<(Kind, usize)>,
}

/// What kind of answer there must be.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Logits,
    /// Logits will do.
    Token,
    Scores,
}

impl Kind {
    /// That of a want of `tokens` tokens, and how many there are of it.
    pub fn of(want: Want<'_>, tokens: usize) -> Option<(Self, usize)> {
        match want {
            Want::Nothing => None,
            Want::Logits => Some((Kind::Logits, 1)),
            Want::AllLogits => Some((Kind::Logits, tokens)),
            Want::Token(_) => Some((Kind::Token, 1)),
            Want::Scores { .. } => Some((Kind::Scores, tokens)),
        }
    }
}

impl Step {
    /// Waits for the answers, in rows of `vocab` logits.
    ///
    /// # Errors
    /// The model's own; answers that are not what was asked for.
    pub fn finish(self, vocab: usize) -> Result<Vec<Answer>, String> {
        let answers = (self.answers)()?;
        let fits = |((kind, rows), answer): (&(Kind, usize), &Answer)| match answer {
            Answer::Logits(logits) => *kind != Kind::Scores && logits.len() == vocab * rows,
            Answer::Token(..) => *kind == Kind::Token,
            Answer::Scores(scores) => *kind == Kind::Scores && scores.len() == *rows,
        };
        match answers.len() == self.wanted.len() && self.wanted.iter().zip(&answers).all(fits) {
            true => Ok(answers),
            false => Err(format!("the model gave {} answers that are not what was asked for", answers.len())),
        }
    }

    /// Whether drawing waits for the host.
    pub fn needs_host(&self) -> bool {
        self.wanted.iter().any(|(kind, _)| *kind == Kind::Logits)
    }
}
