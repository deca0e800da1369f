//! Which tasks of an environment are worth sampling, learned from what came of them: pools of difficulty that weigh the
//! draw of a task, and gates that turn whole groups away. Pure: a draw is a function of its random words and of the rewards
//! known when the batch was opened.

use prl_types::{Rollout, Streams};
use std::collections::BTreeMap;

/// Tasks of a similar mean reward.
#[derive(Clone, Debug, PartialEq)]
pub struct DifficultyPool {
    /// Its name in metrics.
    pub name: String,
    /// The largest mean reward of a task in it.
    pub threshold: f64,
    /// How often one of its tasks is drawn, where a task that was never seen has 1; 0 is never.
    pub weight: f64,
}

/// Turns groups away whose advantages all lie in a range.
#[derive(Clone, Debug, PartialEq)]
pub struct AdvantageRange {
    /// Its name in metrics.
    pub name: String,
    /// Least advantage that is turned away.
    pub reject_min: f64,
    /// Largest advantage that is turned away.
    pub reject_max: f64,
}

/// How the tasks of an environment are chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curriculum {
    /// By threshold, each above the one before; a task with a mean reward above all of them is in the last. Without pools
    /// tasks come in a random order, each as often as the others.
    pub pools: Vec<DifficultyPool>,
    /// A group that one of them turns away does not train, and is replaced.
    pub gates: Vec<AdvantageRange>,
}

impl Curriculum {
    /// The first thing wrong with it: which part, and what to do.
    pub(crate) fn validate(&self) -> Result<(), (&'static str, String)> {
        for (i, pool) in self.pools.iter().enumerate() {
            let name = &pool.name;
            if !pool.threshold.is_finite() {
                return Err(("pools", format!("`{name}` has the threshold {}; it must be a number", pool.threshold)));
            }
            if !(pool.weight.is_finite() && pool.weight >= 0.0) {
                return Err(("pools", format!("`{name}` has the weight {}; it must be at least 0", pool.weight)));
            }
            if i > 0 && self.pools[i - 1].threshold >= pool.threshold {
                let before = &self.pools[i - 1].name;
                return Err(("pools", format!("the threshold of `{name}` must be above that of `{before}`")));
            }
        }
        for gate in &self.gates {
            if gate.reject_min.is_nan() || gate.reject_max.is_nan() || gate.reject_min > gate.reject_max {
                let AdvantageRange { name, reject_min, reject_max } = gate;
                return Err(("gates", format!("`{name}` turns away {reject_min} to {reject_max}, which is no range")));
            }
        }
        Ok(())
    }
}

/// Latest mean reward of the tasks seen, by index: all that pools know.
pub(crate) type Rewards = BTreeMap<u64, f64>;

/// Tasks that are drawn alike.
struct Class {
    weight: f64,
    tasks: Vec<u64>,
}

/// A curriculum with what it knows.
pub(crate) struct Course {
    settings: Curriculum,
    size: u64,
    rewards: Rewards,
    /// The pools and behind them what was never seen, as of the last [`Course::open_batch`].
    classes: Vec<Class>,
    changed: bool,
    /// Groups turned away since the last metrics, by gate.
    rejected: Vec<u64>,
}

impl Course {
    /// `size` tasks, with the rewards of a run that is gone on with. An unbounded split has no pools.
    pub(crate) fn new(settings: &Curriculum, size: Option<u64>, rewards: Rewards) -> Self {
        let mut course = Course {
            settings: settings.clone(),
            size: size.unwrap_or(0),
            rewards,
            classes: Vec::new(),
            changed: true,
            rejected: vec![0; settings.gates.len()],
        };
        course.open_batch();
        course
    }

    pub(crate) fn has_pools(&self) -> bool {
        !self.settings.pools.is_empty()
    }

    /// What a checkpoint must hold of it.
    pub(crate) fn rewards(&self) -> &Rewards {
        &self.rewards
    }

    fn pool_of(&self, reward: f64) -> usize {
        let pools = &self.settings.pools;
        pools.iter().position(|pool| reward <= pool.threshold).unwrap_or(pools.len() - 1)
    }

    /// Has what was learned count from here on.
    pub(crate) fn open_batch(&mut self) {
        if !self.has_pools() || !std::mem::take(&mut self.changed) {
            return;
        }
        let weights = self.settings.pools.iter().map(|pool| pool.weight).chain([1.0]);
        let mut classes: Vec<Class> = weights.map(|weight| Class { weight, tasks: Vec::new() }).collect();
        let unseen = classes.len() - 1;
        let mut seen = self.rewards.iter().peekable();
        for task in 0..self.size {
            let reward = seen.next_if(|(index, _)| **index == task).map(|(_, reward)| *reward);
            classes[reward.map_or(unseen, |reward| self.pool_of(reward))].tasks.push(task);
        }
        if classes.iter().all(|class| class.weight == 0.0 || class.tasks.is_empty()) {
            tracing::warn!("All tasks are in difficulty pools of weight 0; each is drawn as often as the others");
            classes.iter_mut().for_each(|class| class.weight = 1.0);
        }
        self.classes = classes;
    }

    /// A task, drawn with two random words: one for the pool (in [0, 1)), one for the task in it.
    pub(crate) fn draw(&self, unit: f64, word: u64) -> u64 {
        let mass = |class: &Class| class.weight * class.tasks.len() as f64;
        let mut at = unit * self.classes.iter().map(mass).sum::<f64>();
        let mut drawn = None;
        for class in self.classes.iter().filter(|class| mass(class) > 0.0) {
            drawn = Some(class);
            at -= mass(class);
            if at < 0.0 {
                break;
            }
        }
        drawn.map_or(0, |class| class.tasks[((u128::from(word) * class.tasks.len() as u128) >> 64) as usize])
    }

    /// Learns from a scored group, and takes it out of training if a gate turns it away.
    pub(crate) fn learn(&mut self, group: &mut [Rollout]) {
        let rewards: Vec<f64> = group.iter().filter(|r| r.error.is_none()).map(|r| r.reward).collect();
        if self.has_pools()
            && let Some(first) = group.first()
            && !rewards.is_empty()
        {
            self.rewards.insert(first.task.index, rewards.iter().sum::<f64>() / rewards.len() as f64);
            self.changed = true;
        }
        for (gate, rejected) in self.settings.gates.iter().zip(&mut self.rejected) {
            if turns_away(gate, group) {
                *rejected += 1;
                for rollout in group.iter_mut().filter(|r| r.is_effective()) {
                    crate::filters::flag(rollout, &format!("gates/{}", gate.name));
                    rollout.is_filtered = true;
                }
                return;
            }
        }
    }

    /// `curriculum/<env>/…`: the pools that the batch was drawn from, and the groups turned away since the last time.
    pub(crate) fn metrics(&mut self, env: &str) -> Vec<(String, f64)> {
        let mut out = Vec::new();
        let total: f64 = self.classes.iter().map(|class| class.weight * class.tasks.len() as f64).sum();
        let names = self.settings.pools.iter().map(|pool| format!("pools/{}", pool.name)).chain(["unseen".to_owned()]);
        for (name, class) in names.zip(&self.classes) {
            let tasks = class.tasks.len() as f64;
            out.push((format!("curriculum/{env}/{name}/tasks"), tasks));
            out.push((format!("curriculum/{env}/{name}/share"), class.weight * tasks / total));
        }
        for (gate, rejected) in self.settings.gates.iter().zip(&mut self.rejected) {
            out.push((format!("curriculum/{env}/gates/{}/rejected", gate.name), std::mem::take(rejected) as f64));
        }
        out
    }
}

/// Whether all advantages of the group's tokens that train lie in the range; false where there are none.
fn turns_away(gate: &AdvantageRange, group: &[Rollout]) -> bool {
    let mut any = false;
    for rollout in group.iter().filter(|r| r.is_effective()) {
        for (sample, streams) in rollout.samples.iter().zip(&rollout.streams) {
            let Streams { advantages: Some(advantages), rl_weights, .. } = streams else { continue };
            let live = |i: usize| sample.mask()[i] && rl_weights.as_ref().is_none_or(|weights| weights[i] != 0.0);
            for (_, advantage) in advantages.iter().enumerate().filter(|(i, _)| live(*i)) {
                any = true;
                if !(gate.reject_min..=gate.reject_max).contains(&f64::from(*advantage)) {
                    return false;
                }
            }
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{stream, unit};
    use rand_chacha::rand_core::Rng;

    fn pool(name: &str, threshold: f64, weight: f64) -> DifficultyPool {
        DifficultyPool { name: name.into(), threshold, weight }
    }

    fn pools() -> Curriculum {
        Curriculum { pools: vec![pool("hard", 0.25, 0.2), pool("easy", 1.0, 0.0)], gates: vec![] }
    }

    fn shares(course: &Course) -> Vec<f64> {
        let mut rng = stream(1, "test", 0, 0);
        let mut counts = vec![0.0; course.size as usize];
        for _ in 0..20_000 {
            counts[course.draw(unit(rng.next_u64()), rng.next_u64()) as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    #[test]
    fn a_task_is_drawn_by_the_weight_of_its_pool_and_thresholds_are_inclusive() {
        let rewards = Rewards::from([(0, 0.25), (1, 0.26), (2, 7.0), (3, -1.0)]);
        let course = Course::new(&pools(), Some(6), rewards);
        // Hard: 0 and 3 with 0.2 each; easy: 1 and 2, never; unseen: 4 and 5 with 1 each.
        for (share, want) in shares(&course).into_iter().zip([0.2, 0.0, 0.0, 0.2, 1.0, 1.0]) {
            assert!((share - want / 2.4).abs() < 0.01, "{share} {want}");
        }
    }

    #[test]
    fn where_no_pool_may_be_drawn_from_all_are() {
        let course = Course::new(&pools(), Some(3), Rewards::from([(0, 1.0), (1, 1.0), (2, 1.0)]));
        assert!(shares(&course).iter().all(|share| (share - 1.0 / 3.0).abs() < 0.02));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |change: fn(&mut Curriculum)| {
            let mut curriculum = pools();
            change(&mut curriculum);
            curriculum.validate().unwrap_err()
        };
        assert_eq!(wrong(|c| c.pools[1].threshold = 0.25).1, "the threshold of `easy` must be above that of `hard`");
        assert_eq!(wrong(|c| c.pools[0].weight = -1.0).1, "`hard` has the weight -1; it must be at least 0");
        assert_eq!(wrong(|c| c.pools[0].threshold = f64::NAN).0, "pools");
        let gate = AdvantageRange { name: "g".into(), reject_min: 1.0, reject_max: 0.0 };
        let reversed = Curriculum { pools: vec![], gates: vec![gate] };
        assert_eq!(reversed.validate().unwrap_err(), ("gates", "`g` turns away 1 to 0, which is no range".into()));
        assert_eq!(pools().validate(), Ok(()));
    }
}
