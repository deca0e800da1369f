//! What everything around model and trainer costs a rollout: drives `prl_orchestrator::run` with a real environment in its
//! sandbox, the real renderer, a real plug-in and the rollout log, beside a model that answers at once and a trainer that
//! packs the batch and no more. Owns the measurement; `ports` has what is plugged in. Needs Linux's /proc. Not part of the
//! product.
//!
//! usage: overhead [rollouts=100000] [seconds=60] [deterministic=false] [batch=128] [group=16] [limit=64]
//!
//! Ends after so many rollouts or seconds behind the warm-up, whichever is first. Exits with 1 where resident memory grows by
//! more than `limit` bytes a rollout (by least squares over all steps behind the warm-up), and with 2 for bad arguments.

mod ports;

// The product's own adapters, which are in its binary.
#[path = "../../../host/cli/src/ports/env.rs"]
mod env;
#[path = "../../../host/cli/src/ports/renderer.rs"]
mod renderer;

use env::PoolEnv;
use ports::{Answers, Log, Packer, Plugged};
use prl_environment::{Isolation, LoadConfig, Pool, PoolConfig, Sandbox, SandboxConfig, Services};
use prl_orchestrator::{Deps, Sampling, Settings, TrainDeps, TrainEnv};
use prl_render::RendererOptions;
use renderer::ModelRenderer;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tokio::sync::watch;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Threads of the runtime, the rollouts' environments included.
const CORES: usize = 2;
/// Tokens of a rollout and of its turn, as in examples/reverse_text.
const SEQ_LEN: usize = 128;
const MAX_TOKENS: usize = 40;
/// The share of `rollouts` and `seconds` that warms up before anything is counted.
const WARM_UP: f64 = 0.2;
/// Words that the tokenizer keeps for each thread: no fewer.
const CACHED_WORDS: usize = 10_000;
/// Parts of the measurement, of which the fastest is told beside the whole.
const PARTS: usize = 10;

/// What is asked for.
#[derive(Clone, Copy)]
struct Options {
    rollouts: u64,
    seconds: f64,
    deterministic: bool,
    batch: usize,
    group: u32,
    /// Bytes a rollout.
    limit: f64,
}

impl Options {
    fn read(words: impl Iterator<Item = String>) -> Outcome<Self> {
        let known = ["rollouts", "seconds", "deterministic", "batch", "group", "limit"];
        let mut given = BTreeMap::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is no NAME=VALUE"))?;
            if !known.contains(&name) {
                return Err(format!("there is no `{name}`; there are {}", known.join(", ")).into());
            }
            given.insert(name.to_owned(), value.to_owned());
        }
        fn get<T: std::str::FromStr>(given: &BTreeMap<String, String>, name: &str, default: T) -> Outcome<T> {
            let Some(value) = given.get(name) else { return Ok(default) };
            value.parse().map_err(|_| format!("{name}={value}: not a value of this kind").into())
        }
        let options = Options {
            rollouts: get(&given, "rollouts", 100_000)?,
            seconds: get(&given, "seconds", 60.0)?,
            deterministic: get(&given, "deterministic", false)?,
            batch: get(&given, "batch", 128)?,
            group: get(&given, "group", 16)?,
            limit: get(&given, "limit", 64.0)?,
        };
        match options.rollouts > 0 && options.seconds > 0.0 && options.seconds < 1e6 && options.group > 1 {
            true => Ok(options),
            false => Err("rollouts and seconds must be above 0, group above 1".into()),
        }
    }
}

/// Where the run stood when a step was done.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Rollouts so far.
    rollouts: u64,
    /// Seconds since the start.
    at: f64,
    /// Processor seconds of all threads so far.
    cpu: f64,
    /// Bytes.
    resident: f64,
}

impl Sample {
    /// Now, with so many `rollouts` done.
    ///
    /// # Errors
    /// /proc does not say.
    pub fn take(rollouts: u64, started: Instant) -> Result<Self, String> {
        let read = |file: &str| std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"));
        let (status, stat) = (read("/proc/self/status")?, read("/proc/self/stat")?);
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
        let resident =
            resident.and_then(|kib| kib.trim().parse::<f64>().ok()).ok_or("/proc/self/status has no VmRSS")?;
        // utime and stime are the 12th and 13th word behind the program's name, in hundredths of a second.
        let words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: f64 = words.skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
        let at = started.elapsed().as_secs_f64();
        Ok(Sample { rollouts, at, cpu: ticks / 100.0, resident: resident * 1024.0 })
    }
}

/// When the run is to end, and what was seen of it.
pub struct Meter {
    options: Options,
    started: Instant,
    samples: Vec<Sample>,
    /// The first of `samples` behind the warm-up.
    warm: Option<usize>,
    stop: watch::Sender<bool>,
}

impl Meter {
    /// Notes a step's end.
    ///
    /// # Errors
    /// /proc does not say.
    pub fn note(&mut self, rollouts: u64) -> Result<(), String> {
        let sample = Sample::take(rollouts, self.started)?;
        self.samples.push(sample);
        let Options { rollouts, seconds, .. } = self.options;
        match self.warm {
            None if sample.rollouts as f64 >= WARM_UP * rollouts as f64 || sample.at >= WARM_UP * seconds => {
                self.warm = Some(self.samples.len() - 1);
            }
            Some(from) => {
                let first = self.samples[from];
                if sample.rollouts - first.rollouts >= rollouts || sample.at - first.at >= seconds {
                    self.stop.send_replace(true);
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Says what was measured; whether memory stayed within its limit.
    pub fn tell(&self) -> Outcome<bool> {
        let measured = &self.samples[self.warm.unwrap_or(0)..];
        let (Some(first), Some(last)) = (measured.first(), measured.last()) else {
            return Err("no step was done".into());
        };
        if measured.len() <= PARTS {
            return Err(format!("only {} steps were done behind the warm-up; ask for more", measured.len()).into());
        }
        let rate = |from: &Sample, to: &Sample| (to.rollouts - from.rollouts) as f64 / (to.at - from.at);
        let part = measured.len() / PARTS;
        let best = measured.windows(part + 1).map(|w| rate(&w[0], &w[part])).fold(0.0, f64::max);
        let rollouts = last.rollouts - first.rollouts;
        let grows = slope(measured);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().take(1).collect::<String>();
        println!(
            "{rollouts} rollouts in {:.1} s behind {} of warm-up, load {load}",
            last.at - first.at,
            first.rollouts
        );
        println!("rollouts/s: {:.0}, {best:.0} in the best tenth", rate(first, last));
        println!("processor time: {:.1} us a rollout", (last.cpu - first.cpu) / rollouts as f64 * 1e6);
        println!(
            "resident memory: {:.1} MiB, then {:.1} MiB; grows by {grows:.1} bytes a rollout ({:.0} allowed)",
            first.resident / f64::from(1 << 20),
            last.resident / f64::from(1 << 20),
            self.options.limit
        );
        Ok(grows <= self.options.limit)
    }
}

/// Bytes a rollout, by least squares.
fn slope(samples: &[Sample]) -> f64 {
    let n = samples.len() as f64;
    let mean = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|s| s.rollouts as f64), mean(|s| s.resident));
    let over =
        |of: &dyn Fn(f64, f64) -> f64| samples.iter().map(|s| of(s.rollouts as f64 - x, s.resident - y)).sum::<f64>();
    over(&|dx, dy| dx * dy) / over(&|dx, _| dx * dx).max(f64::MIN_POSITIVE)
}

fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("overhead: {error}");
            return ExitCode::from(2);
        }
    };
    match measure(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("overhead: memory grows with every rollout");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("overhead: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: Options) -> Outcome<bool> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(CORES).enable_all().build()?;
    let root = prl_tests::root();
    let renderer =
        Arc::new(prl_render::Renderer::load(&root.join("examples/reverse_text/model"), RendererOptions::default())?);
    let vocab_size = renderer.tokenizer().vocab_size();
    runtime.block_on(fill_caches(&renderer))?;
    let logs = tempfile::tempdir()?;
    let (stop, stopped) = watch::channel(false);
    let meter = Meter { options, started: Instant::now(), samples: Vec::new(), warm: None, stop };
    let log = Arc::new(Log::new(logs.path(), meter));
    let pool = runtime.block_on(pool(&root.join("envs/reverse-text.wasm"), options.batch))?;
    let env = TrainDeps {
        env: Arc::new(PoolEnv(pool)),
        algorithm: Arc::new(Plugged::grpo()?),
        source: None,
        reference: None,
    };
    let deps = Deps {
        policy: Arc::new(Answers::new(&renderer)?),
        renderer: Arc::new(ModelRenderer::new(renderer, &Default::default())),
        trainer: Arc::new(Packer),
        observer: log.clone(),
        train: vec![env],
        eval: Vec::new(),
        stop: stopped,
    };
    let outcome =
        runtime.block_on(async { tokio::spawn(prl_orchestrator::run(settings(options, vocab_size), deps)).await });
    outcome??;
    log.tell()
}

/// Has every thread's cache of the tokenizer full, which is bounded by words and would be the one thing that grows for long.
async fn fill_caches(renderer: &Arc<prl_render::Renderer>) -> Outcome<()> {
    let together = Arc::new(Barrier::new(CORES));
    let fill = |_| {
        let (renderer, together) = (renderer.clone(), together.clone());
        tokio::spawn(async move {
            // Holds one thread each.
            together.wait();
            (0..CACHED_WORDS).try_for_each(|n| renderer.tokenizer().encode(&format!("word {n}")).map(drop))
        })
    };
    for filled in (0..CORES).map(fill).collect::<Vec<_>>() {
        filled.await??;
    }
    Ok(())
}

fn settings(options: Options, vocab_size: usize) -> Settings {
    let sampling = Sampling { max_completion_tokens: Some(MAX_TOKENS), ..Sampling::default() };
    let env = TrainEnv {
        name: "reverse-text".into(),
        split: "train".into(),
        ratio: 1.0,
        group_size: options.group,
        sampling,
        max_turns: None,
        timeout: None,
        curriculum: Default::default(),
    };
    Settings {
        batch_size: options.batch,
        seq_len: SEQ_LEN,
        deterministic: options.deterministic,
        vocab_size,
        status_interval: Some(Duration::from_secs(10)),
        train: vec![env],
        ..Settings::default()
    }
}

async fn pool(path: &Path, max_rollouts: usize) -> Outcome<Pool> {
    let sandbox = Sandbox::new(&SandboxConfig { cache_dir: None, threads: CORES })?;
    let file = sandbox.load(path, &LoadConfig::default()).await?;
    let config = PoolConfig {
        name: "reverse-text".into(),
        args: serde_json::json!({}),
        weights: BTreeMap::new(),
        workers: 1,
        max_rollouts,
        isolation: Isolation::Rollout,
        services: Services::default(),
        log: Arc::new(|line| eprintln!("{:?} {}", line.level, line.message)),
    };
    Ok(Pool::start(&file, config).await?)
}
