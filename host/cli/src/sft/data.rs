//! Training documents of `prl sft`: conversations from files or from the tasks of an environment, or made-up ones. Owns
//! which of these a section means and the tasks of environments; how conversations become tokens is the renderer's business.

use crate::assets;
use crate::environments;
use crate::failure::{Failure, input};
use crate::sft::files::{self, Filling};
use prl_config::{EnvHost, FakeData, Loaded, SftConfig, SftData, TrainEnv};
use prl_environment::Pool;
use prl_model::Decoder;
use prl_orchestrator::derive;
use prl_render::{Conversation, LossMask, Renderer, read_messages};
use prl_trainer::{Document, Documents, Generated, Mixture, Part, Turns, Until, fake_document};
use prl_types::{Message, Role};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::{Handle, Runtime};

/// Documents that are there, or a source that makes them without end.
pub enum Data {
    /// All there are, and how their sources take turns.
    All(Vec<Part>, Turns),
    /// Task by task.
    Endless(Box<EnvTasks>),
    /// Made up for a vocabulary of this size.
    Fake(FakeData, usize),
}

/// The tokenizer, opened when a conversation needs it: made-up documents do without.
pub struct Texts<'a> {
    loaded: &'a Loaded<SftConfig>,
    model_dir: &'a Path,
    decoder: &'a Decoder,
    renderer: OnceCell<Arc<Renderer>>,
}

impl<'a> Texts<'a> {
    /// For the model in a folder.
    pub fn new(loaded: &'a Loaded<SftConfig>, model_dir: &'a Path, decoder: &'a Decoder) -> Self {
        Texts { loaded, model_dir, decoder, renderer: OnceCell::new() }
    }

    /// A path in the value of `key`.
    pub fn path_of(&self, key: &str, value: &str) -> PathBuf {
        self.loaded.path_of(key, value)
    }

    /// What rendered; none where nothing had to be.
    pub fn into_renderer(self) -> Option<Arc<Renderer>> {
        self.renderer.into_inner()
    }

    /// The tokenizer and its template.
    pub fn renderer(&self) -> Result<&Arc<Renderer>, Failure> {
        if let Some(renderer) = self.renderer.get() {
            return Ok(renderer);
        }
        let config = &self.loaded.config;
        let folder = match &config.tokenizer.name {
            Some(name) if *name != config.model.name => assets::model_dir(self.loaded, "tokenizer.name", name)?,
            _ => self.model_dir.to_path_buf(),
        };
        let template = config.tokenizer.chat_template.clone();
        let renderer = assets::renderer(&folder, template, &config.renderer, self.decoder)?;
        Ok(self.renderer.get_or_init(|| renderer))
    }
}

/// Demonstrations of an environment's tasks.
pub struct EnvTasks {
    pool: Pool,
    runtime: Handle,
    renderer: Arc<Renderer>,
    loss: LossMask,
    split: String,
    demonstration: String,
    hint_share: f64,
    hint_template: String,
    seed: u64,
}

/// What stands for the demonstration in a hint.
const PLACE: &str = "{demonstration}";

impl EnvTasks {
    /// The one document of task `index`.
    fn document(&self, index: u64) -> Result<Document, String> {
        let Conversation { messages, tools } = self.conversation(index)?;
        let sample = self.renderer.training_sample(&messages, &tools, self.loss).map_err(|e| e.to_string())?;
        Ok(Document { ids: sample.ids, mask: sample.mask })
    }

    /// All documents of task `index`.
    fn documents(&self, index: u64) -> Result<Vec<Document>, String> {
        documents(&self.renderer, &self.conversation(index)?, self.loss)
    }

    /// The demonstration of task `index`.
    fn conversation(&self, index: u64) -> Result<Conversation, String> {
        let task = self.runtime.block_on(self.pool.task(&self.split, index, self.seed)).map_err(|e| e.to_string())?;
        let (key, name) = (&task.key, &self.demonstration);
        let answer = task.payload.get(name).filter(|answer| !answer.is_null());
        let answer = answer.ok_or_else(|| format!("task {key} has no `{name}` in its payload to learn from"))?;
        let mut messages = task.prompt;
        let drawn = derive(self.seed, "hint", index, 0) as f64 / u64::MAX as f64;
        if drawn < self.hint_share {
            let text = answer.as_str().ok_or_else(|| {
                format!("`{name}` of task {key} is no text: only a text can be a hint, so `hint_share` must be 0")
            })?;
            messages.insert(0, Message::text(Role::System, self.hint_template.replace(PLACE, text)));
        }
        let turns = read_messages(answer, Role::Assistant).map_err(|e| format!("`{name}` of task {key}: {e}"))?;
        messages.extend(turns);
        Ok(Conversation { messages, tools: task.tools })
    }
}

/// One, or one for each turn where the template changes earlier ones.
pub fn documents(renderer: &Renderer, conversation: &Conversation, loss: LossMask) -> Result<Vec<Document>, String> {
    let samples = renderer.training_samples(&conversation.messages, &conversation.tools, loss);
    let samples = samples.map_err(|e| e.to_string())?.into_iter();
    Ok(samples.map(|s| Document { ids: s.ids, mask: s.mask }).collect())
}

impl Data {
    /// Opens the data of the section `key`.
    pub fn open(texts: &Texts<'_>, key: &str, data: &SftData, runtime: &Runtime) -> Result<Self, Failure> {
        let loaded = texts.loaded;
        let loss_of = |mask: &prl_config::LossMask| {
            let prl_config::LossMask { system, user, assistant, tool } = *mask;
            LossMask { system, user, assistant, tool }
        };
        match data {
            SftData::Fake(fake) => Ok(Data::Fake(fake.clone(), texts.decoder.config().vocab_size)),
            SftData::Files(files) => {
                let (loss, turns) = (loss_of(&files.loss_mask), files::turns(files));
                // A validation takes every document once, whatever turns it has.
                let drawn = (key == "data").then_some(&turns);
                Ok(Data::All(files::parts(texts, key, files, (loss, drawn))?, turns))
            }
            SftData::Env(env) => {
                let (renderer, loss) = (texts.renderer()?, loss_of(&env.loss_mask));
                let sandbox = environments::sandbox()?;
                let name =
                    std::path::Path::new(&env.id).file_stem().map_or(env.id.clone(), |s| s.to_string_lossy().into());
                let env_config = TrainEnv { id: env.id.clone(), args: env.args.clone(), ..TrainEnv::default() };
                let host = EnvHost { name: name.clone(), ..env_config.host() };
                let log = crate::logging::env_sink("train", &name);
                let open = environments::environment(&sandbox, loaded, key, &host, 1, log);
                let pool = runtime.block_on(open)?;
                let Some(split) = pool.info().split(&env.split) else {
                    let known: Vec<&str> = pool.info().splits.iter().map(|s| s.name.as_str()).collect();
                    return Err(Failure::input(format_args!(
                        "`{key}.split`: environment `{name}` has no split `{}`; it has {}",
                        env.split,
                        known.join(", ")
                    )));
                };
                let asked = env.num_examples.map(|n| n as u64);
                let len = match (split.size, asked) {
                    (Some(size), Some(n)) => Some(size.min(n)),
                    (size, n) => size.or(n),
                };
                let tasks = EnvTasks {
                    pool,
                    runtime: runtime.handle().clone(),
                    renderer: renderer.clone(),
                    loss,
                    split: env.split.clone(),
                    demonstration: env.demonstration.clone(),
                    hint_share: env.hint_share,
                    hint_template: env.hint_template.clone(),
                    seed: env.seed,
                };
                let failed = || input(format!("`{key}`: environment `{name}`"));
                match len {
                    Some(len) => {
                        let mut filling = Filling::new(key, data.seq_len())?;
                        for index in 0..len {
                            filling.push(tasks.documents(index).map_err(failed())?)?;
                        }
                        let turns = Turns { probabilities: None, until: Until::All, seed: env.seed };
                        Ok(Data::All(vec![filling.finish(&env.split, None)?], turns))
                    }
                    None => {
                        // One document shows whether the rest can be made.
                        tasks.document(0).map_err(failed())?;
                        Ok(Data::Endless(Box::new(tasks)))
                    }
                }
            }
        }
    }

    /// All documents once and in order, for validation on the section `key`: nobody's turn comes twice.
    pub fn once(self, key: &str) -> Result<Mixture, Failure> {
        match self {
            Data::All(parts, _) => Mixture::once(parts).map_err(input(format!("`{key}`"))),
            Data::Endless(_) => Err(Failure::input(format_args!(
                "`{key}.num_examples` must say how many tasks of the unbounded split to use"
            ))),
            Data::Fake(..) => Err(Failure::input(format_args!("`{key}.type`: made-up documents have no end"))),
        }
    }

    /// The source the trainer draws from.
    pub fn into_documents(self, data: &SftData) -> Result<Box<dyn Documents>, Failure> {
        match self {
            Data::All(parts, turns) => {
                let shuffle = data.shuffle().then(|| data.seed());
                Ok(Box::new(Mixture::new(parts, &turns, shuffle, None).map_err(input("`data`"))?))
            }
            Data::Endless(tasks) => Ok(Box::new(Generated(move |n| tasks.document(n)))),
            Data::Fake(fake, vocab_size) => Ok(Box::new(Generated(move |n| Ok(fake_document(&fake, vocab_size, n))))),
        }
    }
}
