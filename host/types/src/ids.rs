//! Identifiers and counters. Owns their order and text form, nothing else.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An index into the tokenizer's vocabulary.
pub type TokenId = u32;

/// A training step. Steps are numbered from 1: step n trains on batch n and yields policy version n.
pub type Step = u64;

/// The version of the policy's weights: 0 is what the run started from, n is the result of step n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// A group: `group_size` rollouts of one task. Numbered from 0 in the order in which groups are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u64);

/// One rollout: its group and its place in the group. The order of ids is the order in which rollouts are handled,
/// whatever order they arrive in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RolloutId {
    /// The group.
    pub group: GroupId,
    /// 0-based index within the group.
    pub member: u32,
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.group.0, self.member)
    }
}
