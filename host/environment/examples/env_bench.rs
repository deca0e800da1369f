//! Measures what an environment costs: loading, a fresh instance per rollout, `step` calls, live instances. Needs
//! Linux's /proc. Not part of the product.
//!
//! usage: env_bench FILE.wasm [fresh=2000] [steps=200000] [live=10000] [say=TEXT] [threads=1]
//!
//! Rollouts must go on for as long as TEXT is said (`envs/probe.wasm` does); with `steps=0` any environment will do.

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use prl_environment::{
    Completion, Finish, Grant, Isolation, Kv, Limits, Llm, LlmRequest, LlmResponse, LoadConfig, Pool, PoolConfig,
    RolloutContext, Sandbox, SandboxConfig, ServiceError, Services, Session,
};
use prl_types::{Message, Role, Task};
use serde_json::json;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Rollouts that step side by side.
const SIDE_BY_SIDE: usize = 64;

struct Silent;

impl Llm for Silent {
    fn roles(&self) -> Vec<String> {
        vec!["judge".into()]
    }

    fn generate(&self, _: LlmRequest) -> BoxFuture<'static, Result<LlmResponse, ServiceError>> {
        async { Err(ServiceError::Upstream("there is no model here".into())) }.boxed()
    }
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: env_bench FILE.wasm [fresh=N] [steps=N] [live=N] [say=TEXT] [threads=N]";
    let path = PathBuf::from(args.next().ok_or(usage)?);
    let mut options: BTreeMap<String, String> =
        [("fresh", "2000"), ("steps", "200000"), ("live", "10000"), ("say", "echo more"), ("threads", "1")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    for option in args {
        let (name, value) = option.split_once('=').ok_or(usage)?;
        *options.get_mut(name).ok_or(usage)? = value.to_owned();
    }
    let number = |name: &str| options[name].parse::<usize>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let pool = load(&path, number("threads")?, number("live")?.max(SIDE_BY_SIDE)).await?;
        let split = pool.info().splits[0].name.clone();
        let task = pool.task(&split, 0, 0).await?;
        fresh(&pool, &task, number("fresh")?).await?;
        if number("steps")? > 0 {
            steps(&pool, &task, number("steps")?, &options["say"]).await?;
        }
        live(&pool, &task, number("live")?, &options["say"]).await
    })
}

async fn load(path: &Path, threads: usize, max_rollouts: usize) -> Outcome<Pool> {
    let cache = tempfile::tempdir()?;
    let sandbox = || Sandbox::new(&SandboxConfig { cache_dir: Some(cache.path().join("wasm")), threads });
    let config = LoadConfig { limits: Limits::default(), grants: Grant::ALL.to_vec() };
    let before = Instant::now();
    sandbox()?.load(path, &config).await?;
    let compiled = before.elapsed();
    let sandbox = sandbox()?;
    let before = Instant::now();
    let file = sandbox.load(path, &config).await?;
    println!("{}: {} bytes", path.display(), file.bytes());
    println!("load: compiled {:.0} ms, from the cache {:.1} ms", ms(compiled), ms(before.elapsed()));
    let config = PoolConfig {
        name: "bench".into(),
        args: json!({}),
        weights: BTreeMap::new(),
        workers: 1,
        max_rollouts,
        isolation: Isolation::Rollout,
        services: Services { llm: Some(Arc::new(Silent)), kv: Some(Kv::new(1 << 20)), ..Services::default() },
        log: Arc::new(|_| ()),
    };
    Ok(Pool::start(&file, config).await?)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

async fn open(pool: &Pool, task: &Task, n: usize) -> Outcome<Session> {
    let id = format!("{n}.0");
    let context = RolloutContext { id, seed: n as u64, member: 0, group_size: 1, step: 0, eval: false };
    Ok(pool.open(task, context).await?)
}

fn said(text: &str) -> Completion {
    Completion {
        message: Message::text(Role::Assistant, text),
        finish: Finish::Stop,
        tokens: 1,
        context_left: None,
        turns_left: None,
    }
}

/// Instance, `configure` and `open`, then `start` and the end of it.
async fn fresh(pool: &Pool, task: &Task, count: usize) -> Outcome<()> {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for n in 0..count {
        let before = Instant::now();
        let mut session = open(pool, task, n).await?;
        times[0].push(before.elapsed());
        let before = Instant::now();
        session.start().await?;
        times[1].push(before.elapsed());
        let before = Instant::now();
        drop(session);
        times[2].push(before.elapsed());
    }
    for (what, times) in ["fresh instance to the end of `open`", "`start`", "end"].iter().zip(&mut times) {
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        let (best, median, p99) = (at(0.0), at(0.5), at(0.99));
        println!("{what}, {count} one after another: best {best:.1} us, median {median:.1} us, p99 {p99:.1} us");
    }
    Ok(())
}

/// `step` calls of rollouts side by side, with what a core gets done.
async fn steps(pool: &Pool, task: &Task, count: usize, text: &str) -> Outcome<()> {
    let each = count / SIDE_BY_SIDE;
    let mut sessions = Vec::new();
    for n in 0..SIDE_BY_SIDE {
        let mut session = open(pool, task, n).await?;
        session.start().await?;
        sessions.push(session);
    }
    let (before, cpu) = (Instant::now(), cpu_seconds()?);
    let all = sessions.iter_mut().map(|session| async move {
        for _ in 0..each {
            session.step(said(text)).await?;
        }
        Ok::<_, prl_environment::EnvError>(())
    });
    for done in join_all(all).await {
        done?;
    }
    let (wall, cpu) = (before.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let total = (each * SIDE_BY_SIDE) as f64;
    println!(
        "step: {:.0} calls/s in wall clock, {:.0} calls/s of a core ({:.2} us of it a call)",
        total / wall,
        total / cpu,
        cpu / total * 1e6
    );
    let mut times = Vec::new();
    for _ in 0..each.min(5000) {
        let before = Instant::now();
        sessions[0].step(said(text)).await?;
        times.push(before.elapsed());
    }
    times.sort_unstable();
    println!("step, one after another: median {:.1} us", times[times.len() / 2].as_secs_f64() * 1e6);
    Ok(())
}

/// Started rollouts that stay alive.
async fn live(pool: &Pool, task: &Task, count: usize, text: &str) -> Outcome<()> {
    let (memory, mappings, address) = (status("smaps_rollup", "Pss:")?, maps()?, status("status", "VmSize:")?);
    let mut sessions = Vec::new();
    for n in 0..count {
        let opened = async {
            let mut session = open(pool, task, n).await?;
            session.start().await?;
            session.step(said(text)).await?;
            Outcome::Ok(session)
        };
        match opened.await {
            Ok(session) => sessions.push(session),
            Err(error) => {
                println!("live: the end at {n}: {error}");
                break;
            }
        }
    }
    let n = sessions.len().max(1) as u64;
    let (memory, mappings) = (status("smaps_rollup", "Pss:")? - memory, maps()? - mappings);
    let address = status("status", "VmSize:")? - address;
    println!(
        "live: {} instances in {:.0} MiB ({:.1} KiB each), {:.1} mappings and {:.1} MiB of addresses each",
        sessions.len(),
        memory as f64 / 1024.0,
        memory as f64 / n as f64,
        mappings as f64 / n as f64,
        address as f64 / n as f64 / 1024.0
    );
    Ok(())
}

/// KiB.
fn status(file: &str, name: &str) -> Outcome<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/{file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line in /proc")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

fn maps() -> Outcome<u64> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count() as u64)
}

/// Of all threads, user and system.
fn cpu_seconds() -> Outcome<f64> {
    let mut total = 0.0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let nanoseconds: f64 = text.split(' ').next().ok_or("no time in schedstat")?.parse()?;
        total += nanoseconds / 1e9;
    }
    Ok(total)
}
