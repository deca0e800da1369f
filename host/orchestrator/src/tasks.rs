//! Which task a group gets. A group's environment is a function of the run's seed and the group's id, its index a
//! function of how many groups that environment had before, or with difficulty pools a draw by the group's id. State: that
//! number, what pools know, and the groups that a run which ended had opened and not used.

use crate::curriculum::{Course, Rewards};
use crate::seed::{derive, permutation, stream, unit};
use crate::state::Open;
use crate::{Progress, TrainEnv};
use prl_types::{GroupId, Rollout};
use rand_chacha::rand_core::Rng;
use std::collections::{BTreeMap, VecDeque};

/// A task to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub group: GroupId,
    pub env: usize,
    pub index: u64,
    pub seed: u64,
}

/// Seed of a task, by the run's seed, `task` or `eval-task`, the environment's name and the task's index: the same task
/// whenever it comes up.
pub fn task_seed(run_seed: u64, purpose: &str, env: &str, index: u64) -> u64 {
    derive(run_seed, purpose, crate::seed::fnv1a(env), index)
}

impl Pick {
    /// Of a group that had been open; nothing where its environment is gone.
    fn again(seed: u64, envs: &[TrainEnv], open: &Open) -> Option<Self> {
        let env = envs.iter().position(|env| env.name == open.env)?;
        Some(Pick::new(seed, &open.env, (open.group, env, open.index)))
    }

    /// `name` is the environment's.
    fn new(run_seed: u64, name: &str, (group, env, index): (u64, usize, u64)) -> Self {
        Pick { group: GroupId(group), env, index, seed: task_seed(run_seed, "task", name, index) }
    }
}

struct Cursor {
    name: String,
    ratio: f64,
    size: Option<u64>,
    taken: u64,
    course: Course,
    table: Vec<u64>,
    epoch: Option<u64>,
}

pub(crate) struct TaskSource {
    seed: u64,
    next: u64,
    envs: Vec<Cursor>,
    total_ratio: f64,
    /// Groups that come before all new ones.
    again: VecDeque<Pick>,
}

impl TaskSource {
    /// `sizes[i]` is the number of tasks of environment i, `None` for unbounded; none may be 0. `resume` says how far an
    /// earlier run was, and which groups it had open.
    pub(crate) fn new(
        seed: u64,
        envs: &[TrainEnv],
        sizes: &[Option<u64>],
        resume: Option<(&Progress, &[Open])>,
    ) -> Self {
        let (resume, open) = resume.unzip();
        let cursor = |(env, size): (&TrainEnv, &Option<u64>)| Cursor {
            name: env.name.clone(),
            ratio: env.ratio,
            size: *size,
            taken: resume.and_then(|p| p.tasks_taken.get(&env.name).copied()).unwrap_or(0),
            course: Course::new(
                &env.curriculum,
                *size,
                resume.and_then(|p| p.rewards.get(&env.name).cloned()).unwrap_or_default(),
            ),
            table: Vec::new(),
            epoch: None,
        };
        TaskSource {
            seed,
            next: resume.map_or(0, |p| p.next_group),
            envs: envs.iter().zip(sizes).map(cursor).collect(),
            total_ratio: envs.iter().map(|e| e.ratio).sum(),
            again: open.into_iter().flatten().filter_map(|open| Pick::again(seed, envs, open)).collect(),
        }
    }

    fn env_of(&self, group: u64) -> usize {
        let mut at = unit(derive(self.seed, "env", group, 0)) * self.total_ratio;
        for (i, env) in self.envs.iter().enumerate() {
            at -= env.ratio;
            if at < 0.0 {
                return i;
            }
        }
        self.envs.len() - 1
    }

    /// The next group's task.
    pub(crate) fn pick(&mut self) -> Pick {
        if let Some(pick) = self.again.pop_front() {
            return pick;
        }
        let group = self.next;
        let env = self.env_of(group);
        self.next += 1;
        let seed = self.seed;
        let cursor = &mut self.envs[env];
        let taken = cursor.taken;
        cursor.taken += 1;
        let index = match cursor.size {
            None => taken,
            Some(_) if cursor.course.has_pools() => {
                let mut rng = stream(seed, "curriculum", crate::seed::fnv1a(&cursor.name), group);
                cursor.course.draw(unit(rng.next_u64()), rng.next_u64())
            }
            Some(size) => {
                let epoch = taken / size;
                if cursor.epoch != Some(epoch) {
                    let mut rng = stream(seed, "shuffle", crate::seed::fnv1a(&cursor.name), epoch);
                    cursor.table = permutation(&mut rng, size);
                    cursor.epoch = Some(epoch);
                }
                cursor.table[(taken % size) as usize]
            }
        };
        Pick::new(seed, &cursor.name, (group, env, index))
    }

    /// Has a group picked again, before all new ones.
    pub(crate) fn put_back(&mut self, group: u64, env: usize, index: u64) {
        self.again.push_back(Pick::new(self.seed, &self.envs[env].name, (group, env, index)));
    }

    /// Groups of an earlier run that are still to be picked.
    pub(crate) fn again(&self) -> impl Iterator<Item = &Pick> {
        self.again.iter()
    }

    /// Has what was learned count from here on: called when a batch is opened.
    pub(crate) fn open_batch(&mut self) {
        self.envs.iter_mut().for_each(|env| env.course.open_batch());
    }

    /// Learns from a scored group of environment `env`, and takes it out of training if a gate turns it away.
    pub(crate) fn learn(&mut self, env: usize, group: &mut [Rollout]) {
        self.envs[env].course.learn(group);
    }

    /// What pools know, by environment; nothing of those without.
    pub(crate) fn rewards(&self) -> BTreeMap<String, Rewards> {
        let with = self.envs.iter().filter(|env| env.course.has_pools());
        with.map(|env| (env.name.clone(), env.course.rewards().clone())).collect()
    }

    /// `curriculum/<env>/…` of a batch.
    pub(crate) fn metrics(&mut self) -> impl Iterator<Item = (String, f64)> + '_ {
        self.envs.iter_mut().flat_map(|env| env.course.metrics(&env.name))
    }

    /// The next new group's id.
    pub(crate) fn next_group(&self) -> u64 {
        self.next
    }

    /// How many tasks each environment has given.
    pub(crate) fn taken(&self) -> BTreeMap<String, u64> {
        self.envs.iter().map(|e| (e.name.clone(), e.taken)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sampling;

    fn env(name: &str, ratio: f64) -> TrainEnv {
        TrainEnv {
            name: name.into(),
            split: "train".into(),
            ratio,
            group_size: 2,
            sampling: Sampling::default(),
            max_turns: None,
            timeout: None,
            curriculum: Default::default(),
        }
    }

    #[test]
    fn finite_splits_are_shuffled_anew_each_epoch_and_unbounded_ones_count_up() {
        let mut source = TaskSource::new(3, &[env("a", 1.0)], &[Some(5)], None);
        let picks: Vec<u64> = (0..10).map(|_| source.pick().index).collect();
        for epoch in picks.chunks(5) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        assert_ne!(picks[..5], picks[5..]);
        let mut source = TaskSource::new(3, &[env("a", 1.0)], &[None], None);
        assert_eq!((0..4).map(|_| source.pick().index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn ratios_are_kept_and_any_point_can_be_resumed() {
        let envs = [env("a", 3.0), env("b", 1.0)];
        let sizes = [Some(7), None];
        let mut source = TaskSource::new(11, &envs, &sizes, None);
        let picks: Vec<Pick> = (0..4000).map(|_| source.pick()).collect();
        let share = picks.iter().filter(|p| p.env == 0).count() as f64 / 4000.0;
        assert!((share - 0.75).abs() < 0.03, "{share}");
        for at in [0u64, 1, 17, 3900] {
            let mut source = TaskSource::new(11, &envs, &sizes, None);
            let before: Vec<Pick> = (0..at).map(|_| source.pick()).collect();
            let progress = Progress { next_group: at, tasks_taken: source.taken(), ..Progress::default() };
            let open = |p: &Pick| Open { group: p.group.0, env: envs[p.env].name.clone(), index: p.index };
            let open: Vec<Open> = before.iter().rev().take(2).map(open).collect();
            let mut again = TaskSource::new(11, &envs, &sizes, Some((&progress, &open)));
            assert_eq!(again.next_group(), at);
            assert!(before.iter().rev().take(2).all(|p| *p == again.pick()), "the open ones come first");
            assert!(picks[at as usize..].iter().take(50).all(|p| *p == again.pick()));
        }
    }
}
