//! The scores of whole groups, again: members are gathered as they are read, and each group is scored once. Owns which
//! lines are a group; what is scored is what the log holds, so that a member need not have been run again before.

use super::again::{Ready, Verdict, refusal, shown, tape};
use crate::env::record::{Environment, Line, Replay};
use prl_environment::{GroupMember, Pool, Served};
use prl_types::{GroupId, Metric, RolloutId, Score, Task};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What tells a group from others in one log.
pub type Key = (String, GroupId, String, u64, u64);

/// The group of a line.
pub fn key(line: &Line) -> Key {
    let (rollout, task) = (&line.rollout, &line.rollout.task);
    (task.env.clone(), rollout.id.group, task.split.clone(), task.index, task.seed)
}

/// A line that was looked at.
pub struct Seen {
    /// Its place in the log, from 0.
    pub at: usize,
    /// Its rollout.
    pub id: RolloutId,
    /// What came of running it again; `None` where it was not to be run.
    pub verdict: Option<Verdict>,
}

/// The groups that are not whole yet.
#[derive(Default)]
pub struct Groups(BTreeMap<Key, Group>);

/// What is scored, by whom.
struct Of {
    pool: Pool,
    env: Environment,
    task: Arc<Task>,
}

#[derive(Default)]
struct Group {
    of: Option<Of>,
    /// Lines so far, those of failed rollouts included.
    lines: u32,
    /// Lines of the whole group, once it is known.
    size: Option<u32>,
    members: Vec<Member>,
    /// Why it cannot be scored again.
    not: Option<String>,
    services: Option<Served>,
    /// Whether a member's instance asked services in `configure`.
    asks_at_setup: bool,
}

/// A rollout that its group was scored with.
struct Member {
    seen: Seen,
    given: GroupMember,
    score: Score,
}

impl Groups {
    /// Takes a line in; gives those whose verdicts are final. They wait for their group where groups are scored.
    pub async fn add(&mut self, line: &Line, ready: &Ready, seen: Seen) -> Vec<Seen> {
        let scores = |pool: &Pool| pool.info().features.group_scoring;
        let key = key(line);
        if matches!(ready, Ready::Runs(pool) if !scores(pool)) {
            self.0.remove(&key);
            return vec![seen];
        }
        // Nor where no member can be run again.
        if line.replay.as_ref().is_some_and(|replay| replay.env.unsandboxed.is_some()) {
            return vec![seen];
        }
        let group = self.0.entry(key.clone()).or_default();
        group.lines += 1;
        let at_once = match (ready, line.record()) {
            _ if line.rollout.error.is_some() => Some(seen),
            (Ready::Runs(pool), Some(replay)) => {
                group.take(pool, line, replay, seen);
                None
            }
            (Ready::Not(reason), _) => {
                group.not = Some(format!("its group cannot be scored again: of {}: {reason}", line.rollout.id));
                group.members.iter_mut().for_each(|member| member.given.messages.clear());
                Some(seen)
            }
            (Ready::Runs(_), None) => Some(seen),
        };
        group.size = group.size.or(line.replay.as_ref().map(|replay| replay.context.group_size));
        let mut done: Vec<Seen> = at_once.into_iter().collect();
        if group.size.is_some_and(|size| group.lines >= size)
            && let Some(group) = self.0.remove(&key)
        {
            done.extend(group.verdicts().await);
        }
        done
    }

    /// What is left once the log is at its end: groups of which it holds only a part.
    pub async fn rest(&mut self) -> Vec<Seen> {
        let mut done = Vec::new();
        for group in std::mem::take(&mut self.0).into_values() {
            done.extend(group.verdicts().await);
        }
        done
    }
}

impl Group {
    fn take(&mut self, pool: &Pool, line: &Line, mut replay: Replay, seen: Seen) {
        let rollout = &line.rollout;
        if let Some(services) = replay.group_services.take() {
            self.services = Some(services);
        }
        self.asks_at_setup |= replay.services.as_ref().is_some_and(Served::has_setup);
        self.of.get_or_insert_with(|| Of { pool: pool.clone(), env: replay.env.clone(), task: rollout.task.clone() });
        self.members.push(Member { seen, given: member(line, &replay), score: rollout.score.clone() });
    }

    async fn verdicts(mut self) -> Vec<Seen> {
        self.members.sort_by_key(|member| member.seen.id);
        let told = self.score().await;
        let finals = self.members.into_iter().zip(told).map(|(Member { mut seen, .. }, of_group)| {
            if let (Some(Verdict::Equal(_)), Some(verdict)) = (&seen.verdict, of_group) {
                seen.verdict = Some(verdict);
            }
            seen
        });
        finals.collect()
    }

    /// What the group's score says of each member, in their order; `None` where it says what it said then.
    async fn score(&self) -> Vec<Option<Verdict>> {
        let count = self.members.len();
        let all = |verdict: fn(String) -> Verdict, reason: String| {
            (0..count).map(|_| Some(verdict(reason.clone()))).collect()
        };
        let wanted = self.members.iter().any(|member| member.seen.verdict.is_some());
        let Some(Of { pool, env, task }) = self.of.as_ref().filter(|_| wanted) else {
            return (0..count).map(|_| None).collect();
        };
        let services = self.services.as_ref();
        // What scored it was another instance than those of its members.
        let unknown = self.asks_at_setup && !services.is_some_and(Served::has_setup);
        let of_setup = || unknown.then(|| "its log does not hold what `configure` was answered for that".to_owned());
        let of_services = || {
            let reason = refusal(env, services).or_else(of_setup)?;
            Some(format!("its group cannot be scored again: {reason}"))
        };
        if let Some(reason) = self.not.clone().or_else(of_services) {
            return all(Verdict::Skipped, reason);
        }
        let given: Vec<GroupMember> = self.members.iter().map(|member| member.given.clone()).collect();
        let tape = tape(env, services);
        let scored = pool.score_group_taped(task, &given, tape.clone()).await;
        if let Some(finding) = tape.finding() {
            return all(Verdict::Different, format!("while its group was scored, {finding}"));
        }
        let scores = match scored {
            Ok(scores) => scores,
            Err(error) => return all(Verdict::Different, format!("its group cannot be scored: {error}")),
        };
        if let Some(finding) = tape.unasked() {
            return all(Verdict::Different, format!("while its group was scored, {finding}"));
        }
        let told = |(member, now): (&Member, &Score)| {
            let (old, new) = (shown(&Some(&member.score)), shown(&Some(now)));
            (*now != member.score).then(|| Verdict::Different(format!("its group's score was {old}, now {new}")))
        };
        self.members.iter().zip(&scores).map(told).collect()
    }
}

/// As it was handed over to be scored with its group: its own score, and what its turns counted.
fn member(line: &Line, replay: &Replay) -> GroupMember {
    let rollout = &line.rollout;
    let messages = rollout.conversation(replay.opening.iter().flat_map(|opening| &opening.messages));
    let mut score = replay.score.clone().unwrap_or_default();
    let mut counted: Vec<Metric> = Vec::new();
    let answers = replay.opening.iter().chain(replay.turns.iter().filter_map(|turn| turn.answer.as_ref()));
    answers.for_each(|answer| Metric::add_all(&mut counted, &answer.metrics));
    score.take_counted(counted);
    let reward = score.reward(&rollout.turns);
    GroupMember { context: replay.context.clone(), messages, truncated: replay.truncated.clone(), score, reward }
}
