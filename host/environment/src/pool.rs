//! The workers of one environment in a run. Owns instances, their replacement, and the bound on live rollouts; must
//! not know the order in which rollouts are wanted.

use crate::instance::{Deadline, Identity, Instance};
use crate::session::Session;
use crate::tape::{Served, Tape};
use crate::turn::GroupMember;
use crate::{EnvError, EnvFile, EnvInfo, Failure, Limits, LogSink, Services, StartError, check, log, schema};
use futures::future::BoxFuture;
use prl_types::{RolloutContext, Score, Task};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Mutex, Semaphore};

/// What shares an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Every rollout has an instance of its own: a crash or a hang costs that rollout only.
    #[default]
    Rollout,
    /// All rollouts of a worker share one, for environments with a costly `configure`. After a crash the others are
    /// replayed in a new instance when the environment is deterministic, else they fail.
    Worker,
}

/// How to run an environment.
#[derive(Clone)]
pub struct PoolConfig {
    /// Its name in the run.
    pub name: String,
    /// Its arguments: a JSON object.
    pub args: Value,
    /// Weights of reward components that replace its own, by name.
    pub weights: BTreeMap<String, f64>,
    /// Workers: log files, and instances under [`Isolation::Worker`].
    pub workers: usize,
    /// Rollouts alive at once; `open` waits for a free place.
    pub max_rollouts: usize,
    /// What shares an instance.
    pub isolation: Isolation,
    /// What stands behind its grants; an environment behind HTTP gets nothing of it.
    pub services: Services,
    /// Takes its log.
    pub log: LogSink,
}

/// Counts since the pool was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Rollouts opened.
    pub opened: u64,
    /// Rollouts alive now.
    pub live: usize,
    /// Most rollouts alive at once.
    pub peak_live: usize,
    /// Calls that failed, for whatever reason.
    pub failed: u64,
    /// Instances ended by a crash, a limit or a cancelled call.
    pub ended: u64,
    /// Rollouts replayed in a new instance.
    pub replayed: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    opened: AtomicU64,
    live: AtomicUsize,
    peak_live: AtomicUsize,
    failed: AtomicU64,
    ended: AtomicU64,
    pub(crate) replayed: AtomicU64,
}

/// A configured environment, ready for rollouts. Cloning gives another handle.
#[derive(Clone)]
pub struct Pool(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub file: EnvFile,
    pub isolation: Isolation,
    /// What the arguments made of the description; set once the pool has started.
    info: OnceLock<EnvInfo>,
    name: Arc<str>,
    args: String,
    weights: BTreeMap<String, f64>,
    services: Services,
    log: LogSink,
    /// Makes tasks and scores groups.
    control: Arc<Seat>,
    /// One for each worker under [`Isolation::Worker`], else only their number counts.
    seats: Vec<Arc<Seat>>,
    workers: usize,
    /// What `configure` is answered in place of asking, where rollouts are run again.
    setup: Option<Served>,
    next_worker: AtomicUsize,
    places: Arc<Semaphore>,
    pub counters: Counters,
}

impl Pool {
    /// Checks the configuration and configures the environment once, so that bad arguments and crashes show up here.
    ///
    /// # Errors
    /// What does not fit, or whatever `configure` ended with.
    pub async fn start(file: &EnvFile, config: PoolConfig) -> Result<Self, StartError> {
        Pool::start_with(file, config, None).await
    }

    /// Like [`Pool::start`] to run rollouts again: `configure` is answered as it was then, and roles need no models.
    ///
    /// # Errors
    /// As there.
    pub async fn start_again(file: &EnvFile, config: PoolConfig, setup: Served) -> Result<Self, StartError> {
        Pool::start_with(file, config, Some(setup)).await
    }

    async fn start_with(file: &EnvFile, config: PoolConfig, setup: Option<Served>) -> Result<Self, StartError> {
        let again = setup.is_some();
        let env = || config.name.clone();
        schema::check(&file.info().args_schema, &config.args, "args")
            .map_err(|reason| StartError::Args { env: env(), reason })?;
        let workers = config.workers.max(1);
        let seats = match config.isolation {
            Isolation::Rollout => Vec::new(),
            Isolation::Worker => (0..workers).map(|worker| Arc::new(Seat::new(worker))).collect(),
        };
        let pool = Pool(Arc::new(Shared {
            file: file.clone(),
            isolation: config.isolation,
            info: OnceLock::new(),
            name: config.name.as_str().into(),
            args: config.args.to_string(),
            weights: config.weights.clone(),
            log: log::limited(config.log.clone(), file.limits().log_lines_per_second),
            services: file.own_services().unwrap_or(&config.services).clone(),
            control: Arc::new(Seat::new(0)),
            seats,
            workers,
            setup,
            next_worker: AtomicUsize::new(0),
            places: Arc::new(Semaphore::new(config.max_rollouts.clamp(1, Semaphore::MAX_PERMITS))),
            counters: Counters::default(),
        }));
        let (deadline, grants) = (Deadline::of_call(file.limits()), file.grants().to_vec());
        let identity = pool.0.identity(0);
        let describe = pool.0.on_seat(&pool.0.control, "configure", Tape::default(), move |instance, _| {
            Box::pin(async move {
                let info = instance.describe(deadline).await?;
                check::info(&info, &grants)
                    .map_err(|reason| identity.error("describe", Failure::Invalid(reason)))
                    .map(|()| info)
            })
        });
        let mut info = describe.await?;
        info.weigh(&config.weights).map_err(|reason| StartError::Weights { env: env(), reason })?;
        let known = config.services.llm.as_ref().map(|llm| llm.roles()).unwrap_or_default();
        if let Some(role) = info.roles.iter().find(|role| !again && !known.contains(role)) {
            return Err(StartError::Role { env: env(), role: role.clone() });
        }
        pool.0.info.get_or_init(|| info);
        Ok(pool)
    }

    /// The environment's description under its arguments, with the run's weights.
    pub fn info(&self) -> &EnvInfo {
        self.0.info()
    }

    /// The environment's name in the run.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Makes the task at `index` of `split`.
    ///
    /// # Errors
    /// No such split or index, a failure of the guest, or a task that is not valid.
    pub async fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task, EnvError> {
        let shared = &self.0;
        let error = |reason| shared.identity(0).error("get-task", Failure::Unsupported(reason));
        match shared.info().split(split) {
            None => {
                let names: Vec<_> = self.info().splits.iter().map(|split| format!("`{}`", split.name)).collect();
                return Err(error(format!("there is no split `{split}`, only {}", names.join(", "))));
            }
            Some(crate::Split { size: Some(size), .. }) if index >= *size => {
                return Err(error(format!("split `{split}` has {size} tasks, there is no index {index}")));
            }
            Some(_) => {}
        }
        let (split, deadline) = (split.to_owned(), Deadline::of_call(shared.limits()));
        let (control, asked) = (&shared.control, shared.clone());
        shared
            .on_seat(control, "get-task", Tape::default(), move |instance, _| {
                Box::pin(async move { instance.task(asked.info(), (&split, index, seed), deadline).await })
            })
            .await
    }

    /// The file it runs.
    pub fn file(&self) -> &EnvFile {
        &self.0.file
    }

    /// Begins a rollout of `task`; waits while `max_rollouts` are alive.
    ///
    /// # Errors
    /// A failure of the guest.
    pub async fn open(&self, task: &Task, context: RolloutContext) -> Result<Session, EnvError> {
        self.open_taped(task, context, Tape::default()).await
    }

    /// Like [`Pool::open`], the rollout's requests of services on a tape.
    ///
    /// # Errors
    /// As there.
    pub async fn open_taped(&self, task: &Task, context: RolloutContext, tape: Tape) -> Result<Session, EnvError> {
        let shared = &self.0;
        let place = shared.places.clone().acquire_owned().await;
        let place = place.map_err(|_| shared.identity(0).error("open", Failure::Cancelled))?;
        let seat = match shared.isolation {
            Isolation::Rollout => {
                let worker = shared.next_worker.fetch_add(1, Ordering::Relaxed) % shared.workers;
                Arc::new(Seat::new(worker))
            }
            // The one with the fewest rollouts, counted by the handles to its seat.
            Isolation::Worker => {
                let least = shared.seats.iter().min_by_key(|seat| Arc::strong_count(seat));
                least.unwrap_or(&shared.control).clone()
            }
        };
        Session::open(shared.clone(), seat, task, context, tape, place).await
    }

    /// Scores a whole group; one score per member, in order.
    ///
    /// # Errors
    /// [`Failure::Unsupported`] when the environment does not offer it, a failure of the guest, or invalid scores.
    pub async fn score_group(&self, task: &Task, members: &[GroupMember]) -> Result<Vec<Score>, EnvError> {
        self.score_group_taped(task, members, Tape::default()).await
    }

    /// Like [`Pool::score_group`], its requests of services on a tape.
    ///
    /// # Errors
    /// As there.
    pub async fn score_group_taped(
        &self,
        task: &Task,
        members: &[GroupMember],
        tape: Tape,
    ) -> Result<Vec<Score>, EnvError> {
        let shared = &self.0;
        if !self.info().features.group_scoring {
            let reason = "it does not score groups".to_owned();
            return Err(shared.identity(0).error("score-group", Failure::Unsupported(reason)));
        }
        let (task, members, deadline) = (task.clone(), members.to_vec(), Deadline::of_call(shared.limits()));
        // Run again, it is scored by an instance that was set up with the answers of the one of then.
        let again = tape.is_playing();
        let (seat, setup) = match again {
            true => (Arc::new(Seat::new(0)), tape.clone()),
            false => (shared.control.clone(), Tape::default()),
        };
        let asked = shared.clone();
        shared
            .on_seat(&seat, "score-group", setup, move |instance, _| {
                Box::pin(async move { instance.score_group(asked.info(), &task, &members, tape, deadline).await })
            })
            .await
    }

    /// Counts so far.
    pub fn stats(&self) -> PoolStats {
        let counters = &self.0.counters;
        PoolStats {
            opened: counters.opened.load(Ordering::Relaxed),
            live: counters.live.load(Ordering::Relaxed),
            peak_live: counters.peak_live.load(Ordering::Relaxed),
            failed: counters.failed.load(Ordering::Relaxed),
            ended: counters.ended.load(Ordering::Relaxed),
            replayed: counters.replayed.load(Ordering::Relaxed),
        }
    }
}

/// A place for one instance, which is made when it is first needed and again after each end.
pub(crate) struct Seat {
    pub worker: usize,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    instance: Option<Instance>,
    /// How many instances there have been.
    generation: u64,
}

impl Seat {
    fn new(worker: usize) -> Self {
        Seat { worker, slot: Mutex::default() }
    }
}

impl Shared {
    pub fn limits(&self) -> &Limits {
        self.file.limits()
    }

    /// Until the pool has started, what the file says.
    pub fn info(&self) -> &EnvInfo {
        self.info.get().unwrap_or(self.file.info())
    }

    pub fn identity(&self, worker: usize) -> Identity {
        Identity { env: self.name.clone(), worker }
    }

    /// Counts a rollout in.
    pub fn enter(&self) {
        self.counters.opened.fetch_add(1, Ordering::Relaxed);
        let live = self.counters.live.fetch_add(1, Ordering::Relaxed) + 1;
        self.counters.peak_live.fetch_max(live, Ordering::Relaxed);
    }

    /// Counts it out.
    pub fn leave(&self) {
        self.counters.live.fetch_sub(1, Ordering::Relaxed);
    }

    async fn make(&self, worker: usize, setup: Tape) -> Result<Instance, EnvError> {
        let (identity, log) = (self.identity(worker), self.log.clone());
        let (file, limits, services) = (&self.file, self.limits(), self.services.clone());
        let mut instance = Instance::new(file.linked(), limits, identity, log, services, setup).await?;
        instance.configure(&self.args, Deadline::of_call(limits)).await?;
        self.check_same(&mut instance, worker).await?;
        Ok(instance)
    }

    /// A file stays what it is; a server may have been started anew with something else.
    async fn check_same(&self, instance: &mut Instance, worker: usize) -> Result<(), EnvError> {
        let (Some(_), Some(before)) = (self.file.unsandboxed(), self.info.get()) else { return Ok(()) };
        let mut now = instance.describe(Deadline::of_call(self.limits())).await?;
        // A weight for a component that is gone shows in what follows.
        let _ = now.weigh(&self.weights);
        match now.differs(before) {
            None => Ok(()),
            Some(how) => Err(self.identity(worker).error("configure", Failure::Replaced(how))),
        }
    }

    /// Makes an instance for a rollout, or for none. What it asks while it is set up is the rollout's, too: `open` takes
    /// it over, and so does one that does not come to its `open`.
    async fn make_for(&self, worker: usize, tape: &Tape) -> Result<Instance, EnvError> {
        let setup = match (&self.setup, tape.is_on()) {
            (Some(served), false) => Tape::play(served.clone()),
            _ => tape.of_setup(),
        };
        let made = self.make(worker, setup.clone()).await;
        if made.is_err() {
            tape.precede(&setup);
        }
        made
    }

    /// Runs `work` on the seat's instance, on the sandbox's threads; it is told the instance's generation. An instance
    /// that did not come back from it alive, be it because the caller gave up, is not used again. A new one is made with
    /// `tape`.
    pub async fn on_seat<R, F>(
        self: &Arc<Self>,
        seat: &Arc<Seat>,
        call: &'static str,
        tape: Tape,
        work: F,
    ) -> Result<R, EnvError>
    where
        R: Send + 'static,
        F: for<'a> FnOnce(&'a mut Instance, u64) -> BoxFuture<'a, Result<R, EnvError>> + Send + 'static,
    {
        let (shared, seat) = (self.clone(), seat.clone());
        let worker = seat.worker;
        let result = self.file.sandbox().run(async move {
            let mut slot = seat.slot.lock().await;
            let mut guard = EndGuard { shared: &shared, returned: false };
            let mut instance = match slot.instance.take() {
                Some(instance) => instance,
                None => {
                    slot.generation += 1;
                    shared.make_for(seat.worker, &tape).await?
                }
            };
            let result = work(&mut instance, slot.generation).await;
            if instance.is_alive() {
                guard.returned = true;
                slot.instance = Some(instance);
            }
            result
        });
        let result = result.await.unwrap_or_else(|| Err(self.identity(worker).error(call, Failure::Cancelled)));
        if result.is_err() {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Like [`Shared::on_seat`] without waiting, and only if the instance of that generation is still there.
    pub fn on_seat_later<F>(self: &Arc<Self>, seat: &Arc<Seat>, generation: u64, work: F)
    where
        F: for<'a> FnOnce(&'a mut Instance) -> BoxFuture<'a, Result<(), EnvError>> + Send + 'static,
    {
        let (shared, seat) = (self.clone(), seat.clone());
        self.file.sandbox().detach(async move {
            let mut slot = seat.slot.lock().await;
            if slot.generation != generation {
                return;
            }
            if let Some(mut instance) = slot.instance.take() {
                let mut guard = EndGuard { shared: &shared, returned: false };
                if let Err(error) = work(&mut instance).await {
                    tracing::debug!("{error}");
                }
                if instance.is_alive() {
                    guard.returned = true;
                    slot.instance = Some(instance);
                }
            }
        });
    }
}

/// Counts an instance as ended unless it came back.
struct EndGuard<'a> {
    shared: &'a Shared,
    returned: bool,
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        if !self.returned {
            self.shared.counters.ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}
