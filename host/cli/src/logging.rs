//! What the commands do around a run: logs, run directory, metric sinks, the resolved configuration. Owns no format.

use crate::environments;
use crate::failure::{Failure, input, run as running};
use crate::signals::Stop;
use prl_config::{Dump, Loaded, LogLevel, TrainerCkpt, Wandb as WandbConfig};
use prl_environment::{LogLine, LogSink, Pool};
use prl_model::{Kernels, ModelConfig};
use prl_monitor::{
    Jsonl, Level, LogFile, LogOptions, Logs, Monitor, Wandb, WandbOptions, env_server_log, env_worker_log,
};
use prl_store::{Create, Marks, RunDir, StoreError, write_atomic};
use prl_types::Step;
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Sends every log event to the console; files follow once the run directory is known.
pub fn install(level: LogLevel, json: bool, file: LogFile) -> Result<Logs, Failure> {
    let level = match level {
        LogLevel::Trace | LogLevel::Debug => Level::Debug,
        LogLevel::Info => Level::Info,
        LogLevel::Success => Level::Success,
        LogLevel::Warning => Level::Warning,
        LogLevel::Error => Level::Error,
    };
    let options = LogOptions { json, ..LogOptions::stdout(level, file) };
    Logs::install(options).map_err(running("logs"))
}

/// `--dry-run`: writes the effective configuration, unless a run is there, which keeps its own, and says where every value that
/// is not a default comes from.
pub fn dry_run(output_dir: &Path, dumps: &[Dump], explained: &str) -> Result<u8, Failure> {
    let dir = output_dir.join("configs");
    if RunDir::holds_run(output_dir) {
        let here = output_dir.display();
        return print(&format!("{explained}The configuration is valid. It is not written: `{here}` holds a run"));
    }
    write_dumps(&dir, dumps)?;
    print(&format!("{explained}The configuration is valid. Its effective form is in {}", dir.display()))
}

/// A text without what a terminal would take for a command: environments, servers and files have their say in it. As in JSON,
/// which stays JSON.
pub fn plain(text: &str) -> Cow<'_, str> {
    let is_odd = |c: char| c.is_control() && !"\n\t".contains(c);
    if !text.contains(is_odd) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if is_odd(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Prints a text and a newline to standard output. Nobody reading is no error.
pub fn print(text: &str) -> Result<u8, Failure> {
    use std::io::Write;
    match writeln!(std::io::stdout().lock(), "{}", plain(text)) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::run(format_args!("standard output: {error}")))
        }
        _ => Ok(0),
    }
}

fn write_dumps(dir: &Path, dumps: &[Dump]) -> Result<(), Failure> {
    let create = std::fs::create_dir_all(dir);
    create.map_err(|e| Failure::input(format_args!("cannot create `{}`: {e}", dir.display())))?;
    for dump in dumps {
        write_atomic(&dir.join(dump.name), dump.text.as_bytes()).map_err(Failure::input)?;
    }
    Ok(())
}

/// The step that a run goes on after, and the folder of its checkpoint.
pub type Resumed = (Step, PathBuf);

/// Where a run writes, checked but not yet touched.
pub struct Place {
    output_dir: PathBuf,
    how: Create,
    resume_step: Option<i64>,
}

impl Place {
    /// Refuses a directory that holds a run which is neither resumed nor cleaned, and a checkpoint that is not there.
    pub fn check(output_dir: &Path, clean: bool, ckpt: Option<&TrainerCkpt>) -> Result<Self, Failure> {
        if output_dir.as_os_str().is_empty() {
            return Err(Failure::input("`output_dir` is empty: name a folder, `.` for this one"));
        }
        let resume_step = ckpt.and_then(|c| c.resume_step);
        let how = Create {
            clean,
            never_clean: std::env::var_os("NEVER_CLEAN_OUTPUT_DIR").is_some_and(|v| !v.is_empty()),
            resuming: resume_step.is_some(),
            allow_fresh: ckpt.is_some_and(|c| c.allow_fresh),
            ckpt_dir: ckpt.and_then(|c| c.output_dir.clone()),
        };
        RunDir::check(output_dir, &how, resume_step).map_err(|error| match error {
            StoreError::BadCheckpoint { .. } | StoreError::NoCheckpoint { .. } => input("`ckpt.resume_step`")(error),
            _ => Failure::input(error),
        })?;
        Ok(Place { output_dir: output_dir.to_path_buf(), how, resume_step })
    }

    /// The directory of a run that is to go on, taken into use, and where it goes on; nowhere, if it may start anew and there
    /// is no complete checkpoint. A resumed run changes nothing by taking its directory; a fresh one may clean it, so that
    /// comes after all checks.
    pub fn resume(&self) -> Result<Option<(RunDir, Option<Resumed>)>, Failure> {
        let Some(step) = self.resume_step else { return Ok(None) };
        let dir = self.create()?;
        match dir.checkpoints().resolve(step) {
            Ok((step, path)) => {
                tracing::info!(target: "prl_trainer", "Resuming after step {step} from {}", path.display());
                Ok(Some((dir, Some((step, path)))))
            }
            Err(StoreError::NoCheckpoint { path }) if self.how.allow_fresh => {
                let path = path.display();
                tracing::info!(target: "prl_trainer", "Starting fresh: there is no complete checkpoint in {path}");
                Ok(Some((dir, None)))
            }
            Err(error) => Err(input("`ckpt.resume_step`")(error)),
        }
    }

    /// Where the run starts: takes the directory (unless `early` has it), sets aside what lies beyond the step it resumes from
    /// and the records that belong to that, and writes the log files and the effective configuration there.
    pub fn begin(
        &self,
        early: Option<RunDir>,
        resumed: Option<(Step, Marks)>,
        logs: &Logs,
        dumps: &[Dump],
    ) -> Result<RunDir, Failure> {
        let fresh = early.is_some() && resumed.is_none();
        let dir = match early {
            Some(dir) => dir,
            None => self.create()?,
        };
        if fresh {
            dir.set_aside_all().map_err(Failure::run)?;
        }
        if let Some((step, marks)) = resumed {
            dir.set_aside_after(step, &marks).map_err(Failure::run)?;
        }
        logs.set_dir(&dir.logs()).map_err(Failure::run)?;
        write_dumps(&dir.configs(), dumps)?;
        Ok(dir)
    }

    /// Takes the directory into use.
    fn create(&self) -> Result<RunDir, Failure> {
        RunDir::create(&self.output_dir, &self.how).map_err(Failure::input)
    }
}

/// An environment's log lines go to the file of its worker, not to the console.
pub fn env_sink(split: &'static str, env: &str) -> LogSink {
    let env = env.to_owned();
    Arc::new(move |line: LogLine| {
        let logfile = env_worker_log(split, &env, line.worker);
        let rollout = line.rollout.as_deref().map(|r| format!("[{r}] ")).unwrap_or_default();
        let fields: String = line.fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        let text = format!("{rollout}{}{fields}", line.message);
        use prl_environment::LogLevel as L;
        match line.level {
            L::Trace | L::Debug => tracing::debug!(target: "prl_environment", logfile = logfile.as_str(), "{text}"),
            L::Info => tracing::info!(target: "prl_environment", logfile = logfile.as_str(), "{text}"),
            L::Warn => tracing::warn!(target: "prl_environment", logfile = logfile.as_str(), "{text}"),
            L::Error => tracing::error!(target: "prl_environment", logfile = logfile.as_str(), "{text}"),
        }
    })
}

/// What an environment is, into its own log file.
pub fn env_server(split: &str, pool: &Pool) {
    let (info, logfile) = (pool.info(), env_server_log(split, pool.name()));
    tracing::info!(
        target: "prl_environment", logfile = logfile.as_str(),
        "{} {}: {}", info.name, info.version, info.description
    );
    if let Some(text) = environments::outside(pool) {
        tracing::warn!(target: "prl_environment", logfile = logfile.as_str(), "{text}");
    }
}

/// Says at the start of a run which environments the sandbox does not hold, each once.
pub fn outside<'a>(pools: impl Iterator<Item = &'a Pool>) {
    for text in pools.filter_map(environments::outside).collect::<BTreeSet<_>>() {
        tracing::warn!(target: "prl_orchestrator", "{text}");
    }
}

/// The same on standard error, for commands without a log.
pub fn warn_outside(pool: &Pool) {
    if let Some(text) = environments::outside(pool) {
        // Nobody reading standard error is no error.
        let _ = writeln!(std::io::stderr().lock(), "warning: {}", plain(&text));
    }
}

/// `metrics.jsonl`, and W&B's offline file where the configuration asks for it.
pub fn monitor<C: Serialize>(
    dir: &RunDir,
    wandb: Option<&WandbConfig>,
    loaded: &Loaded<C>,
) -> Result<Monitor, Failure> {
    let mut monitor = Monitor::new(Jsonl::open(&dir.metrics()).map_err(Failure::run)?);
    if let Some(wandb) = wandb {
        let config = match serde_json::to_value(&loaded.config) {
            Ok(Value::Object(map)) => map,
            Ok(_) => serde_json::Map::new(),
            Err(error) => return Err(Failure::run(error)),
        };
        let options = WandbOptions {
            project: wandb.project.clone(),
            entity: wandb.entity.clone(),
            name: wandb.name.clone(),
            group: wandb.group.clone(),
            tags: wandb.tags.clone().unwrap_or_default(),
            id: None,
            config,
        };
        let sink = Wandb::create(&dir.wandb(), &options).map_err(Failure::run)?;
        tracing::info!(target: "prl_orchestrator", "W&B: this run is recorded on disk; {}", sink.sync_hint());
        monitor.add(sink).map_err(Failure::run)?;
    }
    Ok(monitor)
}

/// Says so where a resumed run has no step to take.
pub fn nothing_left(resumed: Step, max_steps: Option<u64>) {
    if let Some(max_steps) = max_steps.filter(|max| *max <= resumed) {
        tracing::warn!(
            target: "prl_trainer",
            "There is nothing to do: the checkpoint is of step {resumed}, and `max_steps` is {max_steps}"
        );
    }
}

/// Says so where a run leaves nothing that could be used, or has no end.
pub fn nothing_saved(ckpt: Option<&TrainerCkpt>, max_steps: Option<u64>) {
    let endless =
        if max_steps.is_none() { "`max_steps` is not set: the run goes on until it is stopped. " } else { "" };
    let hint = match (ckpt, max_steps) {
        (None, Some(_)) => {
            "Nothing of this run is saved: --ckpt saves its last step, --ckpt.interval N every Nth as well"
        }
        (None, None) => "Nothing of it is saved: --ckpt.interval N saves every Nth step",
        (Some(TrainerCkpt { interval: None, .. }), None) => {
            "It has no last step to be saved, and `ckpt.interval` is not set: nothing is saved"
        }
        (Some(_), None) => "",
        (Some(_), Some(_)) => return,
    };
    tracing::warn!(target: "prl_trainer", "{endless}{hint}");
}

/// How a run ended, for exit code and closing words.
pub struct End<'a> {
    /// The run directory.
    pub dir: &'a RunDir,
    /// What was asked for in checkpoints.
    pub ckpt: Option<&'a TrainerCkpt>,
    /// Why the newest checkpoint that was due could not be written.
    pub unsaved: Option<String>,
    /// Why `metrics.jsonl` lacks something.
    pub unrecorded: Option<String>,
    /// The log file, below `logs/`, of the part that failed, if one did.
    pub log: String,
    /// `RL`, `SFT` or `Fake-data`.
    pub what: &'a str,
}

impl End<'_> {
    /// The exit code of a run that stopped or not, after a step.
    pub fn code(&self, stopped: &Result<(bool, Step), Failure>, stop: &Stop) -> u8 {
        match stopped {
            Ok((true, _)) => stop.exit_code().unwrap_or(130),
            Ok((false, _)) => u8::from(self.unsaved.is_some() || self.unrecorded.is_some()),
            Err(failure) => failure.code,
        }
    }

    /// Says it.
    pub fn report(self, stopped: Result<(bool, Step), Failure>, code: u8) -> Result<u8, Failure> {
        let (stopped, step) = stopped.map_err(|failure| self.told(failure))?;
        let unsaved =
            self.unsaved.as_ref().map(|e| format!("the checkpoint that was due last could not be written: {e}"));
        let unrecorded = self.unrecorded.as_ref().map(|e| format!("metrics.jsonl is not complete: {e}"));
        let lost: Vec<String> = unsaved.into_iter().chain(unrecorded).collect();
        if !lost.is_empty() {
            let text = lost.join("; ");
            if !stopped {
                return Err(self.told(Failure::run(text)));
            }
            tracing::error!(target: "prl_trainer", "{text}");
        }
        // The field sends the line to the log file of the part that runs the loop.
        let role = if self.what == "RL" { "orchestrator" } else { "trainer" };
        if stopped {
            let again = self.how_to_go_on();
            tracing::warn!(role, "Stopped after step {step}. {again}");
        } else {
            let unsaved = if self.ckpt.is_none() { "; nothing is saved, --ckpt would save the last step" } else { "" };
            tracing::info!(role, success = true, "{} training finished after step {step}{unsaved}", self.what);
        }
        Ok(code)
    }

    /// A failure that is also the last word in the log of the part that failed, and says where that is.
    fn told(&self, failure: Failure) -> Failure {
        tracing::error!(logfile = self.log.as_str(), "{}", failure.text);
        let log = self.dir.logs().join(&self.log);
        Failure { text: format!("{}; see {}", failure.text, log.display()), ..failure }
    }

    /// What to type after a stop.
    fn how_to_go_on(&self) -> String {
        let written = match (&self.unrecorded, self.what) {
            (Some(_), _) => "Not all metrics are written",
            (None, "RL") => "Metrics and rollouts are written",
            (None, _) => "Metrics are written",
        };
        match self.dir.checkpoints().latest() {
            Ok(Some((step, _))) => format!(
                "{written}. Go on from the checkpoint of step {step} by running the same command (without \
                 --clean-output-dir) with --ckpt.resume-step {step}"
            ),
            _ => {
                let hint = match self.ckpt {
                    None => "; add --ckpt to save at the end, or --ckpt.interval to save on the way".to_string(),
                    Some(TrainerCkpt { interval: None, .. }) => "; set --ckpt.interval to save on the way".to_string(),
                    Some(TrainerCkpt { interval: Some(n), .. }) => {
                        format!("; the first checkpoint is due after step {n} (`ckpt.interval`)")
                    }
                };
                format!(
                    "{written}; there is no checkpoint. Run the same command with --clean-output-dir to start again{hint}"
                )
            }
        }
    }
}

/// Which implementation computes.
pub fn kernels(kernels: Kernels) -> &'static str {
    match kernels {
        Kernels::Fast => "fast",
        Kernels::Reference => "reference",
    }
}

/// A model in a few words.
pub fn shape(config: &ModelConfig) -> String {
    format!(
        "{} with {} layers of width {}, vocabulary {}",
        config.family, config.layers, config.hidden_size, config.vocab_size
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_nothing_but_text() {
        assert_eq!(plain("a\tb\nü"), "a\tb\nü");
        assert_eq!(plain("\u{1b}[31mred\r\u{9b}0m\u{7f}"), "\\u001b[31mred\\u000d\\u009b0m\\u007f");
    }
}
