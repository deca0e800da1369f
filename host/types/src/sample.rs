//! The token border: what the engine sampled and what the trainer learns from.
//!
//! Token ids of what the policy sampled are never rebuilt from text: [`Sampled`] is made by the engine, and a [`Sample`] is
//! built from prompt ids, environment ids and `Sampled` values only. What a model outside the run answered comes as text;
//! its ids are the renderer's, and it has no log-probabilities. Numbers that somebody wrote down to try an algorithm out
//! are no text, and have a door of their own, [`Sample::made_up`]; samples that a checkpoint holds are read back as they were.

use crate::{PolicyVersion, Role, TokenId};
use serde::{Deserialize, Serialize};

/// Why sampling stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The end-of-sequence or another configured stop token; it is the last of the ids.
    StopToken(TokenId),
    /// A stop string; its tokens are kept in the ids.
    StopString(String),
    /// The text is whole under the grammar that bound it, and nothing may follow.
    Complete,
    /// `max_completion_tokens` or the context limit.
    Length,
    /// Cancelled; the ids are what had been sampled.
    Aborted,
}

/// One sampled assistant turn: ids with the log-probability each had when it was drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sampled {
    ids: Vec<TokenId>,
    logprobs: Vec<f32>,
    versions: Option<(PolicyVersion, PolicyVersion)>,
    finish: FinishReason,
}

impl Sampled {
    /// For the engine alone. `logprobs[i]` is the full-vocabulary log-softmax of `ids[i]` at the sampling temperature,
    /// before bias, penalties, grammars, top-k, top-p and min-p; `versions` are the oldest and newest policy version that
    /// drew a token.
    ///
    /// # Errors
    /// [`SampleError::Length`] when the two lists differ in length, [`SampleError::NotFinite`] for a NaN or infinite
    /// logprob.
    pub fn from_engine(
        ids: Vec<TokenId>,
        logprobs: Vec<f32>,
        versions: (PolicyVersion, PolicyVersion),
        finish: FinishReason,
    ) -> Result<Self, SampleError> {
        check_len("logprobs", logprobs.len(), ids.len())?;
        check_finite("logprobs", &logprobs)?;
        Ok(Sampled { ids, logprobs, versions: Some(versions), finish })
    }

    /// The answer of a model outside the run, in the ids that the renderer gives its text. Its log-probabilities are not
    /// known and stand as 0.
    pub fn from_text(ids: Vec<TokenId>, finish: FinishReason) -> Self {
        Sampled { logprobs: vec![0.0; ids.len()], ids, versions: None, finish }
    }

    /// The sampled ids, a final stop token included.
    pub fn ids(&self) -> &[TokenId] {
        &self.ids
    }

    /// One log-probability per id.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// Oldest and newest policy version that drew one of the ids; nothing when it was not the policy.
    pub fn versions(&self) -> Option<(PolicyVersion, PolicyVersion)> {
        self.versions
    }

    /// Why sampling stopped.
    pub fn finish(&self) -> &FinishReason {
        &self.finish
    }
}

/// A run of tokens that came from one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleSpan {
    /// First token.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
    /// The message's role.
    pub role: Role,
    /// Whether these tokens are the message's own text rather than the template's scaffold.
    pub is_content: bool,
}

/// One training sample: a whole branch of a rollout, prompt included. All lists have one entry per token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Sample {
    token_ids: Vec<TokenId>,
    mask: Vec<bool>,
    logprobs: Vec<f32>,
    temperature: f32,
    spans: Vec<RoleSpan>,
    versions: Option<(PolicyVersion, PolicyVersion)>,
}

/// A sample as a checkpoint holds it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    token_ids: Vec<TokenId>,
    mask: Vec<bool>,
    logprobs: Vec<f32>,
    temperature: f32,
    spans: Vec<RoleSpan>,
    versions: Option<(PolicyVersion, PolicyVersion)>,
}

impl TryFrom<Written> for Sample {
    type Error = SampleError;

    /// The third door for ids: those of a sample that a run had written down before it ended.
    fn try_from(written: Written) -> Result<Self, SampleError> {
        let Written { token_ids, mask, logprobs, temperature, spans, versions } = written;
        check_len("mask", mask.len(), token_ids.len())?;
        check_len("logprobs", logprobs.len(), token_ids.len())?;
        check_finite("logprobs", &logprobs)?;
        Ok(Sample { token_ids, mask, logprobs, temperature, spans, versions })
    }
}

impl Sample {
    /// Starts a sample from a rendered prompt. `temperature` is the sampling temperature of every sampled token.
    pub fn from_prompt(prompt: &[TokenId], spans: Vec<RoleSpan>, temperature: f32) -> Self {
        Sample {
            token_ids: prompt.to_vec(),
            mask: vec![false; prompt.len()],
            logprobs: vec![0.0; prompt.len()],
            temperature,
            spans,
            versions: None,
        }
    }

    /// A sample out of numbers that somebody wrote down, to try an algorithm or a loss out: no text that a model is trained
    /// on. `logprobs` count where the mask is true; `versions` are the oldest and newest policy version that drew a token.
    ///
    /// # Errors
    /// [`SampleError::Length`] when a list has not one entry for each of `token_ids`, [`SampleError::NotFinite`] for a NaN
    /// or infinite logprob.
    pub fn made_up(
        token_ids: Vec<TokenId>,
        mask: Vec<bool>,
        mut logprobs: Vec<f32>,
        temperature: f32,
        spans: Vec<RoleSpan>,
        versions: (PolicyVersion, PolicyVersion),
    ) -> Result<Self, SampleError> {
        check_len("mask", mask.len(), token_ids.len())?;
        check_len("logprobs", logprobs.len(), token_ids.len())?;
        check_finite("logprobs", &logprobs)?;
        logprobs.iter_mut().zip(&mask).filter(|(_, sampled)| !**sampled).for_each(|(logprob, _)| *logprob = 0.0);
        let versions = mask.iter().any(|sampled| *sampled).then_some(versions);
        Ok(Sample { token_ids, mask, logprobs, temperature, spans, versions })
    }

    /// Appends a sampled turn; its tokens are the ones trained.
    pub fn push_sampled(&mut self, turn: &Sampled) {
        self.spans.push(RoleSpan {
            start: self.token_ids.len(),
            len: turn.ids.len(),
            role: Role::Assistant,
            is_content: true,
        });
        self.token_ids.extend_from_slice(&turn.ids);
        self.mask.resize(self.token_ids.len(), true);
        self.logprobs.extend_from_slice(&turn.logprobs);
        if let Some((lo, hi)) = turn.versions {
            self.versions = Some(self.versions.map_or((lo, hi), |(a, b)| (a.min(lo), b.max(hi))));
        }
    }

    /// Appends tokens the model did not sample (environment messages and template scaffold). `spans` count from the
    /// first of `ids`.
    pub fn push_context(&mut self, ids: &[TokenId], spans: &[RoleSpan]) {
        let base = self.token_ids.len();
        self.spans.extend(spans.iter().map(|s| RoleSpan { start: s.start + base, ..s.clone() }));
        self.token_ids.extend_from_slice(ids);
        self.mask.resize(self.token_ids.len(), false);
        self.logprobs.resize(self.token_ids.len(), 0.0);
    }

    /// Cuts the sample to at most `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.token_ids.truncate(len);
        self.mask.truncate(len);
        self.logprobs.truncate(len);
        self.spans.retain_mut(|s| {
            s.len = s.len.min(len.saturating_sub(s.start));
            s.len > 0
        });
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.token_ids.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.token_ids.is_empty()
    }

    /// Prompt and completion ids.
    pub fn token_ids(&self) -> &[TokenId] {
        &self.token_ids
    }

    /// True where the model sampled the token.
    pub fn mask(&self) -> &[bool] {
        &self.mask
    }

    /// Sampling log-probabilities; 0 where the mask is false.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// The sampling temperature.
    pub fn temperature(&self) -> f32 {
        self.temperature
    }

    /// Which message each token came from.
    pub fn spans(&self) -> &[RoleSpan] {
        &self.spans
    }

    /// Oldest and newest policy version among the sampled tokens; nothing where no policy of the run sampled any.
    pub fn versions(&self) -> Option<(PolicyVersion, PolicyVersion)> {
        self.versions
    }

    /// Number of sampled tokens.
    pub fn output_tokens(&self) -> usize {
        self.mask.iter().filter(|m| **m).count()
    }
}

/// Per-token credit and loss routing for one [`Sample`], written by an algorithm. An absent `rl_weights` means weight 1
/// on every sampled token; an absent `ce_weights` or `ref_kl_weights` means that the component has no tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streams {
    /// Advantage of each token; required where rl weights are live.
    pub advantages: Option<Vec<f32>>,
    /// Weight of each token in the rl component.
    pub rl_weights: Option<Vec<f32>>,
    /// Weight of each token in the cross-entropy component.
    pub ce_weights: Option<Vec<f32>>,
    /// Weight of each token in the reference-KL component.
    pub ref_kl_weights: Option<Vec<f32>>,
    /// Reference log-probabilities, needed by the reference-KL component.
    pub ref_logprobs: Option<Vec<f32>>,
}

impl Streams {
    /// Checks lengths and finiteness against the sample's number of tokens.
    ///
    /// # Errors
    /// Names the first stream that is wrong.
    pub fn validate(&self, tokens: usize) -> Result<(), SampleError> {
        for (name, stream) in [
            ("advantages", &self.advantages),
            ("rl_weights", &self.rl_weights),
            ("ce_weights", &self.ce_weights),
            ("ref_kl_weights", &self.ref_kl_weights),
            ("ref_logprobs", &self.ref_logprobs),
        ] {
            if let Some(values) = stream {
                check_len(name, values.len(), tokens)?;
                check_finite(name, values)?;
            }
        }
        Ok(())
    }

    /// Cuts every stream to at most `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        for values in [
            &mut self.advantages,
            &mut self.rl_weights,
            &mut self.ce_weights,
            &mut self.ref_kl_weights,
            &mut self.ref_logprobs,
        ]
        .into_iter()
        .flatten()
        {
            values.truncate(len);
        }
    }
}

/// A list that does not belong to the sample it came with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// Wrong number of entries.
    #[error("`{name}` has {got} entries for {want} tokens")]
    Length {
        /// Which list.
        name: &'static str,
        /// Entries found.
        got: usize,
        /// Entries needed.
        want: usize,
    },
    /// NaN or infinity.
    #[error("`{name}` is {value} at token {index}")]
    NotFinite {
        /// Which list.
        name: &'static str,
        /// Which token.
        index: usize,
        /// What was found.
        value: f32,
    },
}

fn check_len(name: &'static str, got: usize, want: usize) -> Result<(), SampleError> {
    if got == want { Ok(()) } else { Err(SampleError::Length { name, got, want }) }
}

fn check_finite(name: &'static str, values: &[f32]) -> Result<(), SampleError> {
    match values.iter().position(|v| !v.is_finite()) {
        Some(index) => Err(SampleError::NotFinite { name, index, value: values[index] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(n: usize, v: u64) -> Sampled {
        let version = PolicyVersion(v);
        Sampled::from_engine(vec![7; n], vec![-0.5; n], (version, version), FinishReason::Length).unwrap()
    }

    #[test]
    fn sampled_rejects_unequal_and_non_finite_lists() {
        let v = (PolicyVersion(0), PolicyVersion(0));
        let err = Sampled::from_engine(vec![1, 2], vec![0.0], v, FinishReason::Length).unwrap_err();
        assert_eq!(err, SampleError::Length { name: "logprobs", got: 1, want: 2 });
        let err = Sampled::from_engine(vec![1], vec![f32::NEG_INFINITY], v, FinishReason::Length).unwrap_err();
        assert!(matches!(err, SampleError::NotFinite { index: 0, .. }));
    }

    #[test]
    fn a_sample_extends_verbatim_and_masks_only_sampled_tokens() {
        let mut s = Sample::from_prompt(&[1, 2], vec![], 0.7);
        s.push_sampled(&sampled(2, 3));
        s.push_context(&[9], &[RoleSpan { start: 0, len: 1, role: Role::Tool, is_content: true }]);
        s.push_sampled(&sampled(1, 1));
        assert_eq!(s.token_ids(), [1, 2, 7, 7, 9, 7]);
        assert_eq!(s.mask(), [false, false, true, true, false, true]);
        assert_eq!(s.output_tokens(), 3);
        assert_eq!(s.versions(), Some((PolicyVersion(1), PolicyVersion(3))));
        assert_eq!(s.spans()[1].start, 4);
        s.truncate(3);
        assert_eq!((s.len(), s.logprobs().len(), s.spans().len()), (3, 3, 1));
        assert_eq!(s.spans()[0].len, 1);
    }

    #[test]
    fn samples_come_back_as_they_were_written() {
        let mut s = Sample::from_prompt(&[1, 2], vec![], 0.7);
        let (version, third) = (PolicyVersion(3), 1.0f32 / 3.0);
        let turn = vec![-third, -0.1, -f32::MIN_POSITIVE];
        s.push_sampled(&Sampled::from_engine(vec![7; 3], turn, (version, version), FinishReason::Length).unwrap());
        let text = serde_json::to_string(&s).unwrap();
        assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), s);
        let short = text.replacen("[1,2,", "[1,", 1);
        assert!(serde_json::from_str::<Sample>(&short).unwrap_err().to_string().contains("`mask` has 5 entries for 4"));
        let streams = Streams { advantages: Some(vec![third, 1e-40, -0.0]), ..Streams::default() };
        assert_eq!(serde_json::from_str::<Streams>(&serde_json::to_string(&streams).unwrap()).unwrap(), streams);
    }

    #[test]
    fn made_up_samples_keep_the_rules() {
        let v = (PolicyVersion(1), PolicyVersion(2));
        let s = Sample::made_up(vec![1, 2], vec![false, true], vec![-9.0, -0.5], 1.0, vec![], v).unwrap();
        assert_eq!((s.logprobs(), s.versions(), s.output_tokens()), (&[0.0, -0.5][..], Some(v), 1));
        let none = Sample::made_up(vec![1], vec![false], vec![0.0], 1.0, vec![], v).unwrap();
        assert_eq!(none.versions(), None);
        let error = Sample::made_up(vec![1], vec![true], vec![], 1.0, vec![], v).unwrap_err();
        assert_eq!(error.to_string(), "`logprobs` has 0 entries for 1 tokens");
        let error = Sample::made_up(vec![1], vec![true], vec![f32::NAN], 1.0, vec![], v).unwrap_err();
        assert!(matches!(error, SampleError::NotFinite { index: 0, .. }));
    }

    #[test]
    fn streams_are_checked_by_name() {
        let streams = Streams { ce_weights: Some(vec![0.0, f32::NAN]), ..Default::default() };
        assert_eq!(streams.validate(3).unwrap_err().to_string(), "`ce_weights` has 2 entries for 3 tokens");
        assert!(streams.validate(2).unwrap_err().to_string().contains("NaN at token 1"));
    }
}
