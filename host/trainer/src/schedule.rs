//! The learning rate as a function of the step. Owns the shapes; must not know optimisers.

use crate::TrainerError;
use prl_config::Scheduler;
use prl_types::Step;

/// Learning rate over a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    lr: f64,
    shape: Scheduler,
    max_steps: Option<u64>,
}

impl Schedule {
    /// `lr` is the highest rate of the run.
    ///
    /// # Errors
    /// A decaying shape without `max_steps`, or one whose phases do not fit into them.
    pub fn new(lr: f64, shape: Scheduler, max_steps: Option<u64>) -> Result<Self, TrainerError> {
        let setting = |key, reason: String| Err(TrainerError::Setting { key, reason });
        match (&shape, max_steps) {
            (Scheduler::Constant(_), _) => {}
            (Scheduler::Linear(s), None) if s.decay_steps > 0 => {
                return setting("max_steps", "is needed to know when the linear decay starts".into());
            }
            (Scheduler::Linear(s), Some(max)) if s.warmup_steps + s.decay_steps > max => {
                return setting(
                    "scheduler.decay_steps",
                    format!("= {} and `warmup_steps` = {} exceed `max_steps` = {max}", s.decay_steps, s.warmup_steps),
                );
            }
            (Scheduler::Cosine(_), None) => {
                return setting("max_steps", "is needed to know where the cosine ends".into());
            }
            (Scheduler::Cosine(s), Some(max)) if s.warmup_steps >= max => {
                return setting(
                    "scheduler.warmup_steps",
                    format!("= {} must be below `max_steps` = {max}", s.warmup_steps),
                );
            }
            _ => {}
        }
        Ok(Schedule { lr, shape, max_steps })
    }

    /// The rate used in `step`, counted from 1, of a schedule that begins after the step `from`.
    ///
    /// Linear: from `min_lr` (at least 1e-8 of the rate) to the rate over `warmup_steps`, constant, and over the last
    /// `decay_steps` down to `min_lr`, which the last step uses. Cosine: the same warm-up, then a half cosine down to
    /// `min_lr` over what is left of `max_steps`.
    pub fn lr(&self, step: Step, from: Step) -> f64 {
        let done = step.saturating_sub(1).saturating_sub(from);
        let max_steps = self.max_steps.map(|max| max.saturating_sub(from));
        match &self.shape {
            Scheduler::Constant(_) => self.lr,
            Scheduler::Linear(s) => {
                let decay_from = max_steps.map_or(u64::MAX, |max| max.saturating_sub(s.decay_steps));
                if done < s.warmup_steps {
                    self.warmup(done, s.warmup_steps, s.min_lr)
                } else if s.decay_steps > 0 && done >= decay_from {
                    let steps = s.decay_steps - 1;
                    let at = if steps == 0 { 1.0 } else { ((done - decay_from) as f64 / steps as f64).min(1.0) };
                    self.lr + (s.min_lr - self.lr) * at
                } else {
                    self.lr
                }
            }
            Scheduler::Cosine(s) => {
                if done < s.warmup_steps {
                    return self.warmup(done, s.warmup_steps, s.min_lr);
                }
                let steps = max_steps.unwrap_or(1).saturating_sub(s.warmup_steps).max(1);
                let at = ((done - s.warmup_steps) as f64 / steps as f64).min(1.0);
                s.min_lr + (self.lr - s.min_lr) * 0.5 * (1.0 + (std::f64::consts::PI * at).cos())
            }
        }
    }

    fn warmup(&self, done: u64, steps: u64, min_lr: f64) -> f64 {
        let from = min_lr.max(1e-8 * self.lr);
        from + (self.lr - from) * (done as f64 / steps as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_config::{ConstantScheduler, CosineScheduler, LinearScheduler};

    fn rates(shape: Scheduler, max_steps: u64) -> Vec<f64> {
        let schedule = Schedule::new(1.0, shape, Some(max_steps)).unwrap();
        (1..=max_steps).map(|s| schedule.lr(s, 0)).collect()
    }

    fn close(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 1e-9, "{got:?} != {want:?}");
        }
    }

    #[test]
    fn a_schedule_may_begin_later() {
        let shape = || Scheduler::Linear(LinearScheduler { warmup_steps: 2, decay_steps: 3, min_lr: 0.2 });
        let whole = Schedule::new(1.0, shape(), Some(10)).unwrap();
        let late: Vec<f64> = (5..=10).map(|step| whole.lr(step, 4)).collect();
        close(&late, &rates(shape(), 6));
    }

    #[test]
    fn constant_is_constant() {
        close(&rates(Scheduler::Constant(ConstantScheduler {}), 3), &[1.0; 3]);
    }

    #[test]
    fn linear_warms_up_holds_and_decays_to_the_end() {
        let shape = LinearScheduler { warmup_steps: 2, decay_steps: 3, min_lr: 0.2 };
        close(&rates(Scheduler::Linear(shape), 7), &[0.2, 0.6, 1.0, 1.0, 1.0, 0.6, 0.2]);
        let shape = LinearScheduler { warmup_steps: 0, decay_steps: 1, min_lr: 0.0 };
        close(&rates(Scheduler::Linear(shape), 2), &[1.0, 0.0]);
        let shape = LinearScheduler { warmup_steps: 2, decay_steps: 0, min_lr: 0.0 };
        close(&rates(Scheduler::Linear(shape), 4), &[1e-8, 0.5 + 0.5e-8, 1.0, 1.0]);
    }

    #[test]
    fn cosine_warms_up_and_falls() {
        let shape = CosineScheduler { warmup_steps: 1, min_lr: 0.0 };
        close(&rates(Scheduler::Cosine(shape), 5), &[1e-8, 1.0, 0.853_553_390_6, 0.5, 0.146_446_609_4]);
    }

    #[test]
    fn impossible_shapes_say_what_is_missing() {
        let linear = Scheduler::Linear(LinearScheduler { warmup_steps: 5, decay_steps: 6, min_lr: 0.0 });
        let cosine = Scheduler::Cosine(CosineScheduler { warmup_steps: 5, min_lr: 0.0 });
        let error = |shape: &Scheduler, max| Schedule::new(1.0, shape.clone(), max).unwrap_err().to_string();
        assert_eq!(error(&linear, None), "`max_steps` is needed to know when the linear decay starts");
        assert!(error(&linear, Some(10)).contains("exceed `max_steps` = 10"));
        assert!(error(&cosine, None).contains("cosine"));
        assert!(error(&cosine, Some(5)).contains("must be below `max_steps` = 5"));
    }
}
