//! `prl env bench`: how fast an environment starts and answers, and what an instance holds. Owns what is measured and told;
//! all of it goes through the same pool as a run's rollouts.

use super::drive::Plan;
use super::open::{Opened, Purpose};
use super::{Bench, open};
use crate::environments;
use crate::failure::Failure;
use crate::logging;
use crate::table::table;
use futures::future::join_all;
use prl_environment::{Completion, Finish, Isolation, Pool, RolloutContext, Sandbox, SandboxConfig};
use prl_types::{Message, Role, Task};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Calls of one kind.
#[derive(Serialize)]
struct Calls {
    call: &'static str,
    count: usize,
    median_us: f64,
    p99_us: f64,
    per_second: f64,
}

#[derive(Serialize)]
struct Report {
    environment: String,
    /// The address at which it runs outside the sandbox; digest, bytes and instances are then those of what stands for it.
    unsandboxed: Option<String>,
    sha256: String,
    bytes: u64,
    /// `rollout` or `worker`.
    isolation: String,
    /// Compiling it, seconds.
    compile_s: f64,
    /// Loading it from the cache of compiled code, seconds.
    cached_load_s: f64,
    calls: Vec<Calls>,
    /// Whole rollouts a second on all cores.
    rollouts_per_second: f64,
    cores: usize,
    live: u32,
    /// What `live` instances add to the process, by instance.
    resident_bytes: f64,
    address_bytes: f64,
    mappings: f64,
}

/// Runs the command.
pub fn run(asked: &Bench) -> Result<u8, Failure> {
    if !(asked.seconds.is_finite() && asked.seconds > 0.0 && asked.seconds <= 3600.0) {
        return Err(Failure::input(format_args!(
            "`--seconds` is {}; it must be above 0 and at most 3600",
            asked.seconds
        )));
    }
    let report = open::block_on(measure(asked))?;
    match asked.json {
        true => logging::print(&serde_json::to_string_pretty(&report).map_err(Failure::run)?),
        false => logging::print(render(&report).trim_end()),
    }
}

async fn measure(asked: &Bench) -> Result<Report, Failure> {
    let place = open::place(&asked.asked.env, Path::new("")).map_err(Failure::input)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Without a cache it is compiled.
    let bare = Sandbox::new(&SandboxConfig { cache_dir: None, threads: cores }).map_err(Failure::input)?;
    let compile = Instant::now();
    drop(Opened::load_in(&bare, &place, &asked.asked, Purpose::Look).await?);
    let compile_s = compile.elapsed().as_secs_f64();
    let sandbox = environments::sandbox()?;
    // The first fills the cache.
    drop(Opened::load_in(&sandbox, &place, &asked.asked, Purpose::Look).await?);
    let cached = Instant::now();
    let opened = Opened::load_in(&sandbox, &place, &asked.asked, Purpose::Look).await?;
    let cached_load_s = cached.elapsed().as_secs_f64();
    let isolation = if asked.isolation == "worker" { Isolation::Worker } else { Isolation::Rollout };
    let pool = opened.start(isolation, usize::MAX).await?;
    logging::warn_outside(&pool);
    let split = open::split(&pool, None)?;
    let task = Arc::new(pool.task(&split, 0, 0).await.map_err(Failure::run)?);
    let window = Duration::from_secs_f64(asked.seconds);
    let calls = latencies(&pool, &task, window).await?;
    let rollouts_per_second = throughput(&pool, &task, window, cores).await?;
    let before = Footprint::now();
    let sessions = (0..asked.live).map(|member| pool.open(&task, context(&task, member)));
    let sessions = join_all(sessions).await.into_iter().collect::<Result<Vec<_>, _>>().map_err(Failure::run)?;
    let after = Footprint::now();
    drop(sessions);
    let each = |of: fn(&Footprint) -> f64| (of(&after) - of(&before)) / f64::from(asked.live);
    Ok(Report {
        environment: opened.name(),
        unsandboxed: opened.file.unsandboxed().map(str::to_owned),
        sha256: opened.file.sha256().to_owned(),
        bytes: opened.file.bytes(),
        isolation: asked.isolation.clone(),
        compile_s,
        cached_load_s,
        calls,
        rollouts_per_second,
        cores,
        live: asked.live,
        resident_bytes: each(|f| f.resident),
        address_bytes: each(|f| f.address),
        mappings: each(|f| f.mappings),
    })
}

fn context(task: &Arc<Task>, member: u32) -> RolloutContext {
    let seed = Plan::alone(task.clone(), 0).seed;
    RolloutContext { id: format!("bench.{member}"), seed, member, group_size: 1, step: 0, eval: false }
}

fn said() -> Completion {
    Completion {
        message: Message::text(Role::Assistant, "I do not know."),
        finish: Finish::Stop,
        tokens: 5,
        context_left: None,
        turns_left: Some(100),
    }
}

/// One rollout after another, each call on the clock. A rollout that goes on is stepped up to 16 times.
async fn latencies(pool: &Pool, task: &Arc<Task>, window: Duration) -> Result<Vec<Calls>, Failure> {
    let mut times: [(&'static str, Vec<f64>); 4] =
        [("open", Vec::new()), ("start", Vec::new()), ("step", Vec::new()), ("score", Vec::new())];
    let begin = Instant::now();
    while begin.elapsed() < window {
        let clock = Instant::now();
        let mut session = pool.open(task, context(task, 0)).await.map_err(Failure::run)?;
        times[0].1.push(clock.elapsed().as_secs_f64());
        let clock = Instant::now();
        let mut over = session.start().await.map_err(Failure::run)?.stop.is_some();
        times[1].1.push(clock.elapsed().as_secs_f64());
        for _ in 0..16 {
            if over {
                break;
            }
            let said = said();
            let clock = Instant::now();
            over = session.step(said).await.map_err(Failure::run)?.stop.is_some();
            times[2].1.push(clock.elapsed().as_secs_f64());
        }
        let clock = Instant::now();
        session.score(None).await.map_err(Failure::run)?;
        times[3].1.push(clock.elapsed().as_secs_f64());
    }
    Ok(times.into_iter().filter(|(_, times)| !times.is_empty()).map(|(call, times)| calls(call, times)).collect())
}

fn calls(call: &'static str, mut times: Vec<f64>) -> Calls {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] * 1e6;
    let total: f64 = times.iter().sum();
    Calls { call, count: times.len(), median_us: at(0.5), p99_us: at(0.99), per_second: times.len() as f64 / total }
}

/// Whole rollouts, as many at once as keep all cores busy.
async fn throughput(pool: &Pool, task: &Arc<Task>, window: Duration, cores: usize) -> Result<f64, Failure> {
    let (begin, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let lanes = (0..cores * 4).map(|lane| {
        let (pool, task, done) = (pool.clone(), task.clone(), done.clone());
        tokio::spawn(async move {
            while begin.elapsed() < window {
                let mut session = pool.open(&task, context(&task, lane as u32)).await?;
                if session.start().await?.stop.is_none() {
                    session.step(said()).await?;
                }
                session.score(Some("max_turns")).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), prl_environment::EnvError>(())
        })
    });
    for lane in join_all(lanes).await {
        lane.map_err(Failure::run)?.map_err(Failure::run)?;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64())
}

/// What the process holds now; 0 where the system does not say.
struct Footprint {
    resident: f64,
    address: f64,
    mappings: f64,
}

impl Footprint {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
        };
        let mappings = std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().count() as f64;
        // Pages of a component's image that instances only read are one another's, and counted for each in VmRSS.
        Footprint { resident: bytes("RssAnon") + bytes("VmPTE"), address: bytes("VmSize"), mappings }
    }
}

fn render(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .calls
        .iter()
        .map(|calls| {
            let meaning = match calls.call {
                "open" if report.isolation == "rollout" => "open (a fresh instance, configured)",
                call => call,
            };
            vec![
                meaning.to_owned(),
                calls.count.to_string(),
                format!("{:.1} µs", calls.median_us),
                format!("{:.1} µs", calls.p99_us),
                format!("{:.0}", calls.per_second),
            ]
        })
        .collect();
    let mut text = match &report.unsandboxed {
        Some(url) => format!(
            "{} (outside the sandbox at {url}; the instances are those of what stands for it)\n",
            report.environment
        ),
        None => format!("{} ({} bytes, sha256:{})\n", report.environment, report.bytes, report.sha256),
    };
    text +=
        &format!("  compiled in {:.3} s, loaded from the cache in {:.4} s\n\n", report.compile_s, report.cached_load_s);
    text += &table(&["CALL", "COUNT", "MEDIAN", "P99", "PER SECOND"], &rows);
    text += &format!("\n  {:.0} whole rollouts/s on {} cores\n", report.rollouts_per_second, report.cores);
    text += &format!(
        "  {} live rollouts: {:.0} KiB resident, {:.1} MiB of addresses, {:.1} mappings each\n",
        report.live,
        report.resident_bytes / 1024.0,
        report.address_bytes / f64::from(1 << 20),
        report.mappings
    );
    text
}
