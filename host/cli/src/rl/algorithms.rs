//! The algorithms of a run: plug-ins, their instances by training environment, the models that they use and the shadows beside
//! them. Owns what is checked of them before anything is written.

use crate::failure::{Failure, input};
use crate::ports::algorithm::PluginAlgorithm;
use crate::ports::outside::{ChatSource, Outside, Teacher};
use crate::ports::policy::{PolicyReference, Scores};
use crate::ports::shadow::Shadowed;
use prl_algorithm::{Hook, Metadata, Plugin, Registry};
use prl_config::{Algo, RlConfig};
use prl_orchestrator::{Env, Reference, Source, TrainDeps};
use prl_render::Renderer;
use prl_types::{Message, Role};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A text of many different tokens, which a teacher is tried on.
const PROBE: &str = "The quick brown fox jumps over the lazy dog: 0 1 2 3 4 5 6 7 8 9, ABCDEFGHIJKLMNOPQRSTUVWXYZ.";

/// The algorithms, by training environment.
pub struct Algorithms {
    plugins: Vec<Plugin>,
    models: Vec<Models>,
    /// The same for all environments.
    shadows: Vec<Plugin>,
}

/// The instances of one training environment.
pub struct Instance {
    /// The environment.
    pub env: String,
    /// What trains.
    pub real: Arc<PluginAlgorithm>,
    shadows: Vec<PluginAlgorithm>,
    models: Models,
    /// Whether the live policy is its reference.
    live: bool,
}

impl Algorithms {
    /// Opens the plug-ins, and tries them with their configuration. One that several environments have is loaded once.
    pub fn open(registry: &Registry, config: &RlConfig) -> Result<Self, Failure> {
        let orchestrator = &config.orchestrator;
        let mut loaded = BTreeMap::<String, Plugin>::new();
        let mut open = |key: &str, algo: &Algo| -> Result<Plugin, Failure> {
            let plugin = match loaded.get(&algo.kind) {
                Some(plugin) => plugin.clone(),
                None => registry.open(&algo.kind).map_err(input(format_args!("`{key}.type`")))?,
            };
            loaded.insert(algo.kind.clone(), plugin.clone());
            create(&plugin, (key, algo), config.seed)?;
            Ok(plugin)
        };
        let envs = 0..orchestrator.train.env.len();
        let plugins = envs.map(|i| {
            let (key, algo) = orchestrator.algo_of(i);
            open(&key, algo)
        });
        let plugins = plugins.collect::<Result<Vec<_>, _>>()?;
        let mut shadows = Vec::new();
        for (i, algo) in orchestrator.shadow_algo.iter().enumerate() {
            let key = shadow_key(i);
            let plugin = open(&key, algo)?;
            check_shadow(&key, plugin.metadata(), algo, &plugins)?;
            shadows.push(plugin);
        }
        Ok(Algorithms { plugins, models: Vec::new(), shadows })
    }

    /// Reaches the models outside the run that they use.
    pub async fn connect(&mut self, config: &RlConfig, renderer: &Arc<Renderer>) -> Result<(), Failure> {
        for (i, plugin) in self.plugins.iter().enumerate() {
            let models = Models::connect(plugin.metadata(), config.orchestrator.algo_of(i), renderer).await?;
            self.models.push(models);
        }
        Ok(())
    }

    /// What they say of themselves.
    pub fn about(&self) -> impl Iterator<Item = &Metadata> {
        self.plugins.iter().map(Plugin::metadata)
    }

    /// Their names, each once.
    pub fn names(&self) -> String {
        let names: BTreeSet<&str> = self.about().map(|about| about.name.as_str()).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// The instances, with the states that a checkpoint holds.
    pub fn instances(
        &self,
        config: &RlConfig,
        states: Option<&BTreeMap<String, String>>,
    ) -> Result<Vec<Instance>, Failure> {
        let orchestrator = &config.orchestrator;
        let mut instances = Vec::new();
        for (i, (plugin, env)) in self.plugins.iter().zip(&orchestrator.train.env).enumerate() {
            let (key, algo) = orchestrator.algo_of(i);
            let real = create(plugin, (&key, algo), config.seed)?;
            let stateful = plugin.metadata().hooks.contains(&Hook::State);
            match states.map(|states| states.get(&env.name)) {
                Some(Some(state)) => real.resume(state).map_err(input("`ckpt.resume_step`"))?,
                Some(None) if stateful => {
                    return Err(Failure::input(format_args!(
                        "`ckpt.resume_step`: the checkpoint has no state of the algorithm `{}` of environment `{}`: another \
                         algorithm wrote it",
                        real.name(),
                        env.name
                    )));
                }
                _ => {}
            }
            let shadows = self.shadows.iter().zip(&orchestrator.shadow_algo).enumerate();
            let shadow = |(i, (plugin, algo))| create(plugin, (&shadow_key(i), algo), config.seed);
            instances.push(Instance {
                env: env.name.clone(),
                real: Arc::new(real),
                shadows: shadows.map(shadow).collect::<Result<_, _>>()?,
                models: self.models.get(i).cloned().unwrap_or_default(),
                live: plugin.metadata().reference == prl_algorithm::Reference::Policy,
            });
        }
        Ok(instances)
    }
}

impl Instance {
    /// What the orchestrator needs of it, for its environment.
    pub fn deps(self, env: Arc<dyn Env>, policy: Arc<dyn Scores>, renderer: Arc<Renderer>) -> TrainDeps {
        let Instance { real, shadows, models: Models { source, teacher }, live, .. } = self;
        let reference: Option<Arc<dyn Reference>> = match live {
            true => Some(Arc::new(PolicyReference { policy, algorithm: real.clone(), renderer })),
            false => teacher,
        };
        TrainDeps { env, algorithm: Arc::new(Shadowed::new(real, shadows)), source, reference }
    }
}

fn shadow_key(index: usize) -> String {
    format!("orchestrator.shadow_algo.{index}")
}

fn create(plugin: &Plugin, (key, algo): (&str, &Algo), seed: u64) -> Result<PluginAlgorithm, Failure> {
    let options = Value::Object(algo.config.clone());
    let made = plugin.create(&options, seed).map_err(input(format_args!("`{key}`")))?;
    Ok(PluginAlgorithm::new(made, options))
}

/// A shadow sees what the run's algorithms make the host provide, and no more.
fn check_shadow(key: &str, shadow: &Metadata, algo: &Algo, plugins: &[Plugin]) -> Result<(), Failure> {
    let wrong = |why: String| Err(Failure::input(format_args!("`{key}`: {why}")));
    if algo.teacher.is_some() || algo.sampling.source.is_some() {
        return wrong("a shadow has no models of its own; it sees those of the run's algorithm".into());
    }
    let other = plugins.iter().map(Plugin::metadata).find(|real| {
        let refers = shadow.reference != prl_algorithm::Reference::None && shadow.reference != real.reference;
        refers || shadow.source != real.source
    });
    match other {
        Some(real) => wrong(format!(
            "`{}` needs a reference or a source that the run's `{}` does not have, so it cannot be its shadow",
            shadow.name, real.name
        )),
        None => Ok(()),
    }
}

/// Models outside the run that an environment's algorithm uses.
#[derive(Clone, Default)]
struct Models {
    source: Option<Arc<dyn Source>>,
    teacher: Option<Arc<dyn Reference>>,
}

impl Models {
    async fn connect(
        plugin: &Metadata,
        (key, algo): (String, &Algo),
        renderer: &Arc<Renderer>,
    ) -> Result<Self, Failure> {
        let name = &plugin.name;
        let wrong = |place: &str, why: String| Err(Failure::input(format_args!("`{key}.{place}`{why}")));
        let model = "set `name` and `base_url` of a served model";
        match (plugin.reference == prl_algorithm::Reference::Teacher, &algo.teacher) {
            (true, None) => {
                return wrong("teacher", format!(" is missing: `{name}` wants a teacher's log-probabilities; {model}"));
            }
            (false, Some(_)) => return wrong("teacher", format!(": `{name}` asks no teacher; remove it")),
            _ => {}
        }
        match (plugin.source == prl_algorithm::Source::Frozen, &algo.sampling.source) {
            (true, None) => {
                let why = format!(" is missing: `{name}` learns from what a model outside the run answers; {model}");
                return wrong("sampling.source", why);
            }
            (false, Some(_)) => {
                let why = format!(
                    ": `{name}` needs log-probabilities of what is sampled, so it must be the policy's; remove it"
                );
                return wrong("sampling.source", why);
            }
            _ => {}
        }
        let mut models = Models::default();
        if let Some(source) = &algo.sampling.source {
            let model = Outside::connect(source, &format!("{key}.sampling.source")).await?;
            models.source = Some(Arc::new(ChatSource { model, renderer: renderer.clone() }));
        }
        if let Some(teacher) = &algo.teacher {
            let place = format!("{key}.teacher");
            let model = Outside::connect(teacher, &place).await?;
            let probe = [Message::text(Role::User, PROBE)];
            let probe = renderer.render_ids(&probe, &[], true).map_err(Failure::input)?;
            model.check_scores(renderer, &probe.ids, &place).await?;
            models.teacher = Some(Arc::new(Teacher(model)));
        }
        Ok(models)
    }
}
