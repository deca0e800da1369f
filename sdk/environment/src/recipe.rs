//! An environment from its parts: tasks, a rubric of weighted functions, a hook for further turns, tools. Owns the
//! bookkeeping of an attempt and the order in which the parts are asked; must not know any particular environment.

use crate::tools::ToolResult;
use crate::{
    Args, Completion, Component, Environment, Error, ErrorCode, Features, Finished, Info, Message, NamedValue, Result,
    Rng, Rollout, RolloutContext, Score, Split, Stop, StopKind, Task, ToolDef, Turn, dispatch,
};
use serde_json::Value;
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// An environment described by its parts; see the crate's example. It is an [`Environment`] by itself.
pub trait Recipe: Sized + 'static {
    /// What a run may set: declare it with [`args!`](crate::args), or [`NoArgs`](crate::NoArgs).
    type Args: Args;
    /// What an attempt keeps between its turns.
    type State: Default + 'static;

    /// The static parts: names, splits, rubric, tools.
    fn spec() -> Spec<Self>;

    /// Takes checked arguments.
    ///
    /// # Errors
    /// [`Error::invalid_config`] for arguments that do not fit together.
    fn new(args: Self::Args) -> Result<Self>;

    /// The task at `index` of `split`, which is one of the spec's and has that many. Split, index, seed, tools, and
    /// the key if it is empty, are filled in. The same arguments must give the same task.
    ///
    /// # Errors
    /// When it cannot be made.
    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task>;

    /// Before the first sampled turn: sets up the state, and may add messages.
    ///
    /// # Errors
    /// An error ends the rollout.
    fn start(&self, attempt: &mut Attempt<Self>) -> Result<Turn> {
        let _ = attempt;
        Ok(Turn::next(Vec::new()))
    }

    /// Reacts to an assistant turn without tool calls (those are answered by the spec's tools), the last of
    /// `attempt.completions`. Ends the rollout unless it is written.
    ///
    /// # Errors
    /// An error ends the rollout.
    fn reply(&self, attempt: &mut Attempt<Self>) -> Result<Turn> {
        let _ = attempt;
        Ok(Turn::terminated("answered"))
    }

    /// Changes the description to what the arguments made of it, such as sizes of splits.
    fn info(&self, info: &mut Info) {
        let _ = info;
    }
}

/// What a rubric's function gives: a number, a yes or no, or an error that fails the rollout.
pub trait Verdict {
    /// As a number.
    ///
    /// # Errors
    /// The function's own.
    fn value(self) -> Result<f64>;
}

impl Verdict for f64 {
    fn value(self) -> Result<f64> {
        Ok(self)
    }
}

impl Verdict for bool {
    fn value(self) -> Result<f64> {
        Ok(f64::from(u8::from(self)))
    }
}

impl<V: Verdict> Verdict for Result<V> {
    fn value(self) -> Result<f64> {
        self?.value()
    }
}

type Judge<R> = Box<dyn Fn(&R, &Attempt<R>) -> Result<f64>>;
type GroupJudge<R> = Box<dyn Fn(&R, &Task, &[Finished]) -> Result<Vec<f64>>>;
type Run<R> = Box<dyn Fn(&R, &mut Attempt<R>, &str) -> ToolResult>;

/// The static parts of a [`Recipe`].
pub struct Spec<R: Recipe> {
    info: Info,
    rewards: Vec<(String, Judge<R>)>,
    group_rewards: Vec<(String, GroupJudge<R>)>,
    metrics: Vec<(String, Judge<R>)>,
    tools: Vec<(ToolDef, Run<R>)>,
    max_turns: Option<u32>,
}

impl<R: Recipe> Spec<R> {
    /// A deterministic, single-turn environment without splits and rubric; `version` is its own.
    pub fn new(name: &str, version: &str, description: &str) -> Self {
        Spec {
            info: Info {
                name: name.into(),
                version: version.into(),
                description: description.into(),
                args_schema: R::Args::schema().to_string(),
                splits: Vec::new(),
                features: Features::DETERMINISTIC,
                components: Vec::new(),
                metrics: Vec::new(),
                roles: Vec::new(),
                tags: Vec::new(),
            },
            rewards: Vec::new(),
            group_rewards: Vec::new(),
            metrics: Vec::new(),
            tools: Vec::new(),
            max_turns: None,
        }
    }

    /// Adds a split; without a size its tasks have no end.
    pub fn split(mut self, name: &str, size: impl Into<Option<u64>>) -> Self {
        self.info.splits.push(Split { name: name.into(), size: size.into() });
        self
    }

    /// Adds a line of the rubric: what it gives counts times `weight`.
    pub fn reward<V: Verdict>(
        mut self,
        name: &str,
        weight: f64,
        judge: impl Fn(&R, &Attempt<R>) -> V + 'static,
    ) -> Self {
        self.info.components.push(Component { name: name.into(), weight, description: String::new() });
        self.rewards.push((name.into(), Box::new(move |recipe, attempt| judge(recipe, attempt).value())));
        self
    }

    /// Says what the line of the rubric that was added last measures.
    pub fn measures(mut self, description: &str) -> Self {
        if let Some(line) = self.info.components.last_mut() {
            line.description = description.into();
        }
        self
    }

    /// Adds a line of the rubric that looks at all members of a group at once; one number per member, in order.
    pub fn group_reward(
        mut self,
        name: &str,
        weight: f64,
        judge: impl Fn(&R, &Task, &[Finished]) -> Result<Vec<f64>> + 'static,
    ) -> Self {
        self.info.components.push(Component { name: name.into(), weight, description: String::new() });
        self.info.features |= Features::GROUP_SCORING;
        self.group_rewards.push((name.into(), Box::new(judge)));
        self
    }

    /// Adds a number that is reported and gives no reward.
    pub fn metric<V: Verdict>(mut self, name: &str, judge: impl Fn(&R, &Attempt<R>) -> V + 'static) -> Self {
        self.info.metrics.push(name.into());
        self.metrics.push((name.into(), Box::new(move |recipe, attempt| judge(recipe, attempt).value())));
        self
    }

    /// Declares a metric that turns add to (see [`Attempt::count`]).
    pub fn turn_metric(mut self, name: &str) -> Self {
        self.info.metrics.push(name.into());
        self
    }

    /// Rollouts may have up to so many assistant turns.
    pub fn multi_turn(mut self, max_turns: u32) -> Self {
        self.info.features |= Features::MULTI_TURN;
        self.max_turns = Some(max_turns);
        self
    }

    /// Offers a tool in every task. Its arguments are declared with [`args!`](crate::args); a call that does not
    /// follow them is answered with what is wrong. Needs [`Spec::multi_turn`].
    pub fn tool<A: Args>(
        mut self,
        name: &str,
        description: &str,
        run: impl Fn(&R, &mut Attempt<R>, A) -> ToolResult + 'static,
    ) -> Self {
        self.info.features |= Features::TOOLS | Features::MULTI_TURN;
        let run = move |recipe: &R, attempt: &mut Attempt<R>, given: &str| {
            let given = A::parse(given).map_err(|error| error.message)?;
            run(recipe, attempt, given)
        };
        self.tools.push((ToolDef::new(name, description, &A::schema()), Box::new(run)));
        self
    }

    /// Roles that [`services::llm`](crate::services::llm) is asked for. Such an environment is not deterministic.
    pub fn roles(mut self, roles: &[&str]) -> Self {
        self.info.roles = roles.iter().map(|role| (*role).to_owned()).collect();
        self.info.features -= Features::DETERMINISTIC;
        self
    }

    /// Adds free labels.
    pub fn tags(mut self, tags: &[&str]) -> Self {
        self.info.tags.extend(tags.iter().map(|tag| (*tag).to_owned()));
        self
    }
}

/// An attempt at a task, as the parts of a [`Recipe`] see it.
pub struct Attempt<R: Recipe> {
    /// The task.
    pub task: Task,
    /// What the host told of the rollout.
    pub context: RolloutContext,
    /// The whole conversation so far, prompt included.
    pub messages: Vec<Message>,
    /// The sampled turns.
    pub completions: Vec<Completion>,
    /// The environment's own.
    pub state: R::State,
    /// Randomness of this rollout.
    pub rng: Rng,
    /// Why the host cut the rollout off, once it is scored.
    pub truncated: Option<String>,
    turn: Turn,
}

impl<R: Recipe> Attempt<R> {
    /// The text of the last assistant turn; empty before the first.
    pub fn text(&self) -> String {
        self.completions.last().map(|completion| completion.message.text()).unwrap_or_default()
    }

    /// The task's reference answer as text.
    pub fn answer(&self) -> String {
        self.task.answer_text()
    }

    /// The task's payload.
    pub fn payload(&self) -> Value {
        self.task.payload_value()
    }

    /// Adds credit for the assistant turn just taken.
    pub fn credit(&mut self, reward: f64) {
        self.turn.reward = Some(self.turn.reward.unwrap_or(0.0) + reward);
    }

    /// Adds to a metric declared with [`Spec::turn_metric`].
    pub fn count(&mut self, name: &str, value: f64) {
        self.turn.metrics.push(NamedValue::new(name, value));
    }

    /// Ends the rollout after this turn; for tools that finish a task.
    pub fn stop(&mut self, reason: &str) {
        self.turn.stop = Some(Stop { kind: StopKind::Terminated, reason: reason.into() });
    }
}

/// One spec per recipe and thread: it is asked for in every call.
fn spec<R: Recipe>() -> Rc<Spec<R>> {
    thread_local! {
        static SPECS: RefCell<HashMap<TypeId, Rc<dyn Any>>> = RefCell::new(HashMap::new());
    }
    let known = SPECS.with_borrow(|specs| specs.get(&TypeId::of::<R>()).cloned());
    if let Some(spec) = known.and_then(|spec| spec.downcast::<Spec<R>>().ok()) {
        return spec;
    }
    let spec = Rc::new(R::spec());
    SPECS.with_borrow_mut(|specs| specs.insert(TypeId::of::<R>(), spec.clone()));
    spec
}

impl<R: Recipe> Environment for R {
    type Rollout = Cooked<R>;

    fn describe() -> Info {
        spec::<R>().info.clone()
    }

    fn configure(args: &str) -> Result<Self> {
        R::new(R::Args::parse(args)?)
    }

    fn info(&self) -> Info {
        let mut info = spec::<R>().info.clone();
        Recipe::info(self, &mut info);
        info
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let (spec, info) = (spec::<R>(), Environment::info(self));
        let Some(known) = info.splits.iter().find(|known| known.name == split) else {
            let names: Vec<String> = info.splits.iter().map(|split| format!("`{}`", split.name)).collect();
            return Err(Error::invalid_task(format!("no split `{split}`; there are {}", names.join(", "))));
        };
        if let Some(size) = known.size.filter(|size| index >= *size) {
            return Err(Error::invalid_task(format!("split `{split}` has {size} tasks, no index {index}")));
        }
        let mut task = Recipe::task(self, split, index, seed)?;
        task.split = split.into();
        task.index = index;
        task.seed = seed;
        if task.key.is_empty() {
            task.key = match known.size {
                Some(_) => format!("{split}/{index}"),
                None => format!("{split}/{seed}/{index}"),
            };
        }
        task.tools.extend(spec.tools.iter().map(|(tool, _)| tool.clone()));
        let single = (!spec.info.features.contains(Features::MULTI_TURN)).then_some(1);
        task.max_turns = task.max_turns.or(spec.max_turns).or(single);
        Ok(task)
    }

    fn open(self: &Rc<Self>, task: Task, context: RolloutContext) -> Result<Cooked<R>> {
        let attempt = Attempt {
            messages: task.prompt.clone(),
            completions: Vec::new(),
            state: R::State::default(),
            rng: Rng::from_parts(&[context.seed]),
            truncated: None,
            turn: Turn::next(Vec::new()),
            task,
            context,
        };
        Ok(Cooked { recipe: self.clone(), spec: spec(), attempt, over: false })
    }

    fn score_group(&self, task: Task, members: Vec<Finished>) -> Result<Vec<Score>> {
        let mut scores: Vec<Score> = members.iter().map(|member| member.score.clone()).collect();
        for (name, judge) in &spec::<R>().group_rewards {
            let values = judge(self, &task, &members)?;
            if values.len() != members.len() {
                let text = format!("group reward `{name}` gave {} values for {}", values.len(), members.len());
                return Err(Error::internal(text));
            }
            for (score, value) in scores.iter_mut().zip(values) {
                score.components.push(NamedValue::new(name, value));
            }
        }
        Ok(scores)
    }
}

/// The rollout of a [`Recipe`].
pub struct Cooked<R: Recipe> {
    recipe: Rc<R>,
    spec: Rc<Spec<R>>,
    attempt: Attempt<R>,
    over: bool,
}

impl<R: Recipe> Cooked<R> {
    /// What the hook said, with what it noted on the attempt.
    fn finish(&mut self, mut turn: Turn) -> Turn {
        let noted = std::mem::replace(&mut self.attempt.turn, Turn::next(Vec::new()));
        if let Some(reward) = noted.reward {
            turn = turn.reward(reward);
        }
        turn.metrics.extend(noted.metrics);
        turn.stop = turn.stop.or(noted.stop);
        self.over = turn.stop.is_some();
        self.attempt.messages.extend(turn.messages.iter().cloned());
        turn
    }

    fn run_tools(&mut self, calls: &[crate::ToolCall]) -> Turn {
        let names: Vec<&str> = self.spec.tools.iter().map(|(tool, _)| tool.name.as_str()).collect();
        let (spec, recipe, attempt) = (&self.spec, &self.recipe, &mut self.attempt);
        let answers = dispatch(calls, &names, |name, given| {
            let (_, run) = spec.tools.iter().find(|(tool, _)| tool.name == name).ok_or("no such tool")?;
            run(recipe, attempt, &Value::Object(given).to_string())
        });
        Turn::next(answers)
    }
}

impl<R: Recipe> Rollout for Cooked<R> {
    fn start(&mut self) -> Result<Turn> {
        let turn = self.recipe.clone().start(&mut self.attempt)?;
        Ok(self.finish(turn))
    }

    fn step(&mut self, completion: Completion) -> Result<Turn> {
        if self.over {
            return Err(Error::new(ErrorCode::InvalidState, "the rollout is over"));
        }
        let calls = completion.message.tool_calls.clone();
        self.attempt.messages.push(completion.message.clone());
        self.attempt.completions.push(completion);
        let turn = if calls.is_empty() || self.spec.tools.is_empty() {
            self.recipe.clone().reply(&mut self.attempt)?
        } else {
            self.run_tools(&calls)
        };
        Ok(self.finish(turn))
    }

    fn score(&mut self, truncated: Option<&str>) -> Result<Score> {
        self.over = true;
        self.attempt.truncated = truncated.map(str::to_owned);
        let mut score = Score::empty();
        for (name, judge) in &self.spec.rewards {
            score = score.reward(name, judge(&self.recipe, &self.attempt)?);
        }
        for (name, judge) in &self.spec.metrics {
            score = score.metric(name, judge(&self.recipe, &self.attempt)?);
        }
        Ok(score)
    }
}
