//! The decoder on a GPU: checked against the CPU's kernels, and timed at the shape of Qwen3-0.6B with random weights.
//!
//! Arguments, in any order: `test` (every variant of heads, bf16 and f32, exact and not); `exact` (what is timed computes the same
//! bits however it is cut); `train=BxT` (B documents of T tokens a step;
//! `:sft` behind it computes both passes at once, `:ac` recomputes every layer, `:trace` lists where the time goes, in this
//! order); `decode=BxT` (B sequences behind T cached tokens, each step waited for, and steps begun one ahead; `:filters` draws
//! under top-k, top-p and min-p, `:lora` has one of eight adapters of rank 16 for each sequence); `prefill=BxT` (B new sequences of T tokens; `:N` behind it has them come in N parts); `updates=N` (so many new weights while another
//! thread decodes, and what is left of memory); `tiny` (two narrow layers instead of the whole model); `cache=FOLDER` (compiled
//! kernels).

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use prl_kernels::cuda::decoder::{
    Answer, Draw, Item, Keep, Recompute, Sampling, StepNumbers, Targets, Training, TrainingOptions, Want, Workspace,
    self_test,
};
use prl_kernels::cuda::{AdamStep, Context, CudaError, bf16};
use prl_kernels::{AdapterLayer, Dims, Grads, LowRank, Rope};
use rayon::prelude::*;

type Done = Result<(), CudaError>;

fn dims(tiny: bool) -> Dims {
    let shape = Dims {
        layers: 28,
        hidden: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        ffn: 3072,
        vocab: 151_936,
        norm_eps: 1e-6,
        qk_norm: true,
        qkv_bias: false,
        tied: true,
    };
    if tiny { Dims { layers: 2, vocab: 4096, ..shape } } else { shape }
}

fn rope(dims: &Dims) -> Rope {
    let half = dims.head_dim / 2;
    let inv_freq = (0..half).map(|i| 1e6f32.powf(-(i as f32) / half as f32)).collect();
    Rope { inv_freq, attention_factor: 1.0 }
}

/// Near enough to a normal distribution of deviation 0.02: what the numbers are hardly matters for times.
fn random_weights(dims: &Dims) -> Grads {
    let mut weights = Grads::zeros(dims);
    for (name, values) in weights.iter_mut() {
        let norm = name.contains("norm");
        values.par_iter_mut().enumerate().for_each(|(i, x)| {
            let z = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let unit = (z >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            *x = if norm { 1.0 } else { 0.035 * unit };
        });
    }
    weights
}

fn test(cache: Option<&Path>) -> Result<bool, CudaError> {
    let open = |exact: bool| Context::new(0, cache).map(|c| Arc::new(if exact { c.exact() } else { c }));
    let (plain, exact) = ([open(false)?, open(false)?], [open(true)?, open(true)?]);
    Ok(variants("", &plain)? & variants(" exact", &exact)? & agreement("", &plain)? & agreement(" exact", &exact)?)
}

/// Tokens sampled in company and their log-probabilities, as sampled, and as training sees them; and whether a sequence that
/// is sampled by itself behind a prompt in parts has the same. In exact contexts all agree.
fn agreement(kind: &str, [c, other]: &[Arc<Context>; 2]) -> Result<bool, CudaError> {
    const STEPS: usize = 70;
    let d = dims(true);
    let options = TrainingOptions { recompute: Recompute::NOTHING, head_chunk: 64, tokens: 0 };
    let mut training = Training::<bf16>::new(c.clone(), &d, rope(&d), options, &random_weights(&d).slices())?;
    let sampling = Sampling::new(other.clone(), training.weights()?, Workspace::default())?;
    let prompts: Vec<Vec<u32>> = [150, 3, 64, 777, 201]
        .into_iter()
        .enumerate()
        .map(|(s, len)| (0..len).map(|i| ((i * 31 + s * 1013 + 7) % d.vocab) as u32).collect())
        .collect();
    let uniform = |s: usize, step: usize| ((s * 7919 + step * 104_729) % 9973) as f64 / 9973.0;
    let sample = |which: &[usize], parts: usize| -> Result<Vec<Vec<(u32, f32)>>, CudaError> {
        let meter = prl_kernels::Meter::default();
        let mut caches: Caches = which.iter().map(|_| sampling.new_cache(&meter)).collect();
        let mut out = vec![Vec::new(); which.len()];
        for part in 0..parts {
            let cut = |s: usize| {
                let at = |part: usize| prompts[s].len() * part / parts;
                &prompts[s][at(part)..at(part + 1)]
            };
            let want = |s| if part + 1 == parts { Want::Token(Draw::plain(1.0, uniform(s, 0))) } else { Want::Nothing };
            let items = caches.iter_mut().zip(which);
            let items =
                items.map(|(cache, s)| Item { cache, ids: cut(*s), follows: None, want: want(*s), adapter: None });
            let mut items: Vec<_> = items.filter(|item| !item.ids.is_empty()).collect();
            for (i, answer) in sampling.extend(&mut items)?.into_iter().enumerate() {
                if let Answer::Token(id, logprob) = answer {
                    out[i].push((id, logprob));
                }
            }
        }
        for step in 1..STEPS {
            let last: Vec<[u32; 1]> = out.iter().map(|o: &Vec<(u32, f32)>| [o.last().map_or(0, |x| x.0)]).collect();
            let items = caches.iter_mut().zip(which).zip(&last).map(|((cache, s), ids)| {
                let want = Want::Token(Draw::plain(1.0, uniform(*s, step)));
                Item { cache, ids, follows: None, want, adapter: None }
            });
            let answers = sampling.extend(&mut items.collect::<Vec<_>>())?;
            for (out, answer) in out.iter_mut().zip(answers) {
                if let Answer::Token(id, logprob) = answer {
                    out.push((id, logprob));
                }
            }
        }
        Ok(out)
    };
    let all: Vec<usize> = (0..prompts.len()).collect();
    let together = sample(&all, 1)?;
    let (mut alone_same, mut alone_off) = (0, 0.0f32);
    for s in [0, 3] {
        let alone = sample(&[s], 3)?;
        let pairs: Vec<_> = alone[0].iter().zip(&together[s]).take_while(|(a, b)| a.0 == b.0).collect();
        alone_same += usize::from(pairs.len() == STEPS);
        alone_off = pairs.iter().map(|(a, b)| (a.1 - b.1).abs()).fold(alone_off, f32::max);
    }
    let (mut ids, mut lens, mut targets) = (Vec::new(), Vec::new(), Targets::default());
    let mut sampled = Vec::new();
    for (prompt, drawn) in prompts.iter().zip(&together) {
        for (i, (id, logprob)) in drawn.iter().enumerate() {
            targets.rows.push((ids.len() + prompt.len() + i) as i32 - 1);
            targets.labels.push(*id as i32);
            targets.inv_temp.push(1.0);
            sampled.push(*logprob);
        }
        ids.extend_from_slice(prompt);
        ids.extend(drawn.iter().map(|(id, _)| *id));
        lens.push(prompt.len() + drawn.len());
    }
    let stats = training.forward(&ids, &lens, targets)?;
    let off: Vec<f64> = stats.logprob.iter().zip(&sampled).map(|(a, b)| f64::from(a - b)).collect();
    let (most, mean) = (
        off.iter().map(|x| x.abs()).fold(0.0, f64::max),
        off.iter().map(|x| x.abs()).sum::<f64>() / off.len().max(1) as f64,
    );
    let kl = off.iter().map(|x| x.exp() - x - 1.0).sum::<f64>() / off.len().max(1) as f64;
    let right = kind.is_empty() || (most < 1e-4 && alone_same == 2 && alone_off == 0.0);
    println!(
        "AGREEMENT{kind}: sampled log-probabilities are within {most:.2e} of training's (mean {mean:.2e}, kl {kl:.2e}) over {} \
         tokens; alone {alone_same} of 2 sequences are the same, log-probabilities within {alone_off:.2e} {}",
        off.len(),
        if right { "ok" } else { "FAILED" }
    );
    Ok(right)
}

fn variants(kind: &str, [c, other]: &[Arc<Context>; 2]) -> Result<bool, CudaError> {
    let base = dims(true);
    let mut right = true;
    for (name, d) in [
        ("qwen3 16/8 x 128", base.clone()),
        ("qwen3 4/4 x 64", Dims { heads: 4, kv_heads: 4, head_dim: 64, ..base.clone() }),
        (
            "qwen2 6/2 x 64",
            Dims { heads: 6, kv_heads: 2, head_dim: 64, qk_norm: false, qkv_bias: true, ..base.clone() },
        ),
        ("llama 9/3 x 64", Dims { heads: 9, kv_heads: 3, head_dim: 64, qk_norm: false, ..base.clone() }),
        ("llama 4/2 x 32", Dims { heads: 4, kv_heads: 2, head_dim: 32, qk_norm: false, tied: false, ..base.clone() }),
        ("llama 2/1 x 80", Dims { heads: 2, kv_heads: 1, head_dim: 80, qk_norm: false, ..base }),
    ] {
        for exact in [false, true] {
            let r = if exact { self_test::<f32>(c, other, &d, 7)? } else { self_test::<bf16>(c, other, &d, 7)? };
            println!(
                "SELF-TEST {name:18} {}{kind}: stats {:.2e} gradients {:.2e} sampling {:.2e} step {:.1e} (limit {:.0e}) {}",
                if exact { "f32 " } else { "bf16" },
                r.stats,
                r.gradients,
                r.sampling,
                r.step,
                r.limit,
                if r.passed() { "ok" } else { "FAILED" }
            );
            right &= r.passed();
        }
    }
    Ok(right)
}

fn train(c: &Arc<Context>, dims: &Dims, weights: &Grads, shape: &str) -> Done {
    let (shape, trace) = shape.strip_suffix(":trace").map_or((shape, false), |s| (s, true));
    let (shape, ac) = shape.strip_suffix(":ac").map_or((shape, false), |s| (s, true));
    let (shape, known) = shape.strip_suffix(":sft").map_or((shape, false), |s| (s, true));
    let Some((docs, len)) = pair(shape) else { return Ok(()) };
    let keep = if ac { Keep::NONE } else { Keep::ALL };
    let recompute = Recompute { every: usize::from(ac), keep };
    let options = TrainingOptions { recompute, head_chunk: 1024, tokens: 0 };
    let start = Instant::now();
    let mut t = Training::<bf16>::new(c.clone(), dims, rope(dims), options, &weights.slices())?;
    let n = docs * len;
    let ids: Vec<u32> = (0..n).map(|i| ((i * 7919 + 13) % dims.vocab) as u32).collect();
    let doc_lens = vec![len; docs];
    let targets = Targets {
        rows: (0..n as i32).collect(),
        labels: (0..n).map(|i| ((i * 104_729 + 5) % dims.vocab) as i32).collect(),
        inv_temp: vec![1.0; n],
    };
    let dlogprob = vec![-1.0 / n as f32; n];
    let adam = AdamStep { lr: 1e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.01, step: 0 };
    let mut times = Vec::new();
    let mut loss = 0.0;
    for _ in 0..7 {
        let clock = Instant::now();
        let a = c.event()?;
        let mut b = c.event()?;
        let stats = if known {
            t.forward_backward(&ids, &doc_lens, &targets, &dlogprob)?
        } else {
            let stats = t.forward(&ids, &doc_lens, targets.clone())?;
            b = c.event()?;
            t.backward(&dlogprob, None)?;
            stats
        };
        let e = c.event()?;
        t.step(StepNumbers { adam, max_norm: Some(1.0) })?;
        let f = c.event()?;
        c.synchronize()?;
        loss = -stats.logprob.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
        let wall = clock.elapsed().as_secs_f64() * 1e3;
        times.push((wall, a.until_ms(&b)?, b.until_ms(&e)?, e.until_ms(&f)?));
    }
    if trace {
        let (_, traced) = c.trace(|| {
            t.forward_backward(&ids, &doc_lens, &targets, &dlogprob)?;
            t.step(StepNumbers { adam, max_norm: Some(1.0) })
        })?;
        let all: f64 = traced.iter().map(|t| t.ms).sum();
        println!("TRACE {docs}x{len}: {all:.1} ms in operations");
        for t in traced {
            println!("TRACE {:9.3} ms {:5} times  {}", t.ms, t.count, t.name);
        }
    }
    let first = times[0].0;
    let mut rest = times.split_off(2);
    rest.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (wall, fwd, bwd, opt) = rest[rest.len() / 2];
    let pool = c.pool_bytes()?;
    let (free, total) = c.memory_bytes()?;
    let used = (total - free) as u64 - pool.reserved + pool.reserved_high;
    let gib = |b: u64| b as f64 / (1u64 << 30) as f64;
    let tok = n as f64 / (wall / 1e3);
    let matrices = dims.parameters() as f64;
    let causal = 6.0 * matrices + 6.0 * (dims.layers * len * dims.q_width()) as f64;
    println!(
        "TRAIN {docs}x{len}{}{}: forward {fwd:.1} backward {bwd:.1} step {opt:.1} wall {wall:.1} ms, {tok:.0} tok/s, causal \
         MFU(990) {:.1} %, peak {:.2} GiB in buffers, {:.2} GiB of the device, first step {first:.0} ms, \
         loss {loss:.4}, {:.1} s in all",
        if known { " sft" } else { "" },
        if ac { " ac" } else { "" },
        100.0 * causal * tok / 990e12,
        gib(pool.used_high),
        gib(used),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

type Caches = Vec<prl_kernels::cuda::decoder::Cache<bf16>>;

fn sampling(c: &Arc<Context>, dims: &Dims, weights: &Grads) -> Result<Sampling<bf16>, CudaError> {
    let options = TrainingOptions { recompute: Recompute::NOTHING, head_chunk: 1024, tokens: 0 };
    let made = Training::<bf16>::new(c.clone(), dims, rope(dims), options, &weights.slices())?.weights()?;
    Sampling::new(c.clone(), made, Workspace::default())
}

fn filled(s: &Sampling<bf16>, batch: usize, prompt: &[u32]) -> Result<Caches, CudaError> {
    let meter = prl_kernels::Meter::default();
    let mut caches: Caches = (0..batch).map(|_| s.new_cache(&meter)).collect();
    for chunk in caches.chunks_mut(16) {
        let mut items: Vec<Item<'_, bf16>> = chunk
            .iter_mut()
            .map(|cache| Item { cache, ids: prompt, follows: None, want: Want::Nothing, adapter: None })
            .collect();
        s.extend(&mut items)?;
    }
    Ok(caches)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn decode(c: &Arc<Context>, dims: &Dims, weights: &Grads, shape: &str) -> Done {
    let (shape, trace) = shape.strip_suffix(":trace").map_or((shape, false), |s| (s, true));
    let (shape, filters) = shape.strip_suffix(":filters").map_or((shape, false), |s| (s, true));
    let (shape, lora) = shape.strip_suffix(":lora").map_or((shape, false), |s| (s, true));
    let Some((batch, len)) = pair(shape) else { return Ok(()) };
    let sampling = sampling(c, dims, weights)?;
    let adapters =
        (0..if lora { 8 } else { 0 }).map(|_| sampling.bring(&low_ranks(dims))).collect::<Result<Vec<_>, _>>()?;
    let prompt: Vec<u32> = (0..len).map(|i| ((i * 31 + 7) % dims.vocab) as u32).collect();
    let mut caches = filled(&sampling, batch, &prompt)?;
    let mut ids = vec![[5u32]; batch];
    let plain = Draw::plain(1.0, 0.37);
    let want = Want::Token(if filters { Draw { top_k: 50, top_p: 0.95, min_p: 0.01, ..plain } } else { plain });
    let items = |caches: &mut Caches, ids: &[[u32; 1]], ahead: bool| -> Result<_, CudaError> {
        let follows = |i| ahead.then_some(i);
        let items = caches.iter_mut().zip(ids).enumerate();
        sampling.begin(
            &mut items
                .map(|(i, (cache, ids))| {
                    let adapter = if lora { adapters.get(i % 8) } else { None };
                    Item { cache, ids, follows: follows(i), want, adapter }
                })
                .collect::<Vec<_>>(),
        )
    };
    let mut times = Vec::new();
    for _ in 0..12 {
        let clock = Instant::now();
        let answers = items(&mut caches, &ids, false)?.finish()?;
        times.push(ms(clock));
        for (id, answer) in ids.iter_mut().zip(answers) {
            if let Answer::Token(token, _) = answer {
                id[0] = token;
            }
        }
    }
    let mut underway = items(&mut caches, &ids, false)?;
    let mut ahead = Vec::new();
    for _ in 0..24 {
        let clock = Instant::now();
        let next = items(&mut caches, &ids, true)?;
        std::mem::replace(&mut underway, next).finish()?;
        ahead.push(ms(clock));
    }
    underway.finish()?;
    if trace {
        let (_, traced) = c.trace(|| items(&mut caches, &ids, false)?.finish())?;
        for t in traced {
            println!("TRACE {:9.3} ms {:5} times {:7.2} us  {}", t.ms, t.count, t.ms * 1e3 / t.count as f64, t.name);
        }
    }
    // What must be read from memory: all weights but the embedding's other rows, and keys and values.
    let read = dims.parameters() + batch * (len + 24) * 2 * dims.layers * dims.kv_width();
    let (waited, ahead) = (median(&mut times), median(&mut ahead));
    println!(
        "DECODE {batch} sequences behind {len}{}{}: {waited:.3} ms a step, {ahead:.3} ms begun ahead, {:.0} tok/s, {:.1} % of \
         4.8 TB/s",
        if filters { " filtered" } else { "" },
        if lora { " with adapters" } else { "" },
        batch as f64 / ahead * 1e3,
        100.0 * 2.0 * read as f64 / (ahead * 1e-3) / 4.8e12
    );
    Ok(())
}

/// Additions of rank 16 to every matrix.
fn low_ranks(d: &Dims) -> Vec<AdapterLayer> {
    let pair =
        |out: usize, input: usize| Some(LowRank { a: vec![0.01; 16 * input], b: vec![0.01; out * 16], rank: 16 });
    let (h, q, kv, f) = (d.hidden, d.q_width(), d.kv_width(), d.ffn);
    let layer = |_| AdapterLayer {
        q: pair(q, h),
        k: pair(kv, h),
        v: pair(kv, h),
        o: pair(h, q),
        gate: pair(f, h),
        up: pair(f, h),
        down: pair(h, f),
    };
    (0..d.layers).map(layer).collect()
}

fn prefill(c: &Arc<Context>, dims: &Dims, weights: &Grads, shape: &str) -> Done {
    let (shape, parts) = shape.split_once(':').map_or((shape, 1), |(s, n)| (s, n.parse().unwrap_or(1)));
    let Some((batch, len)) = pair(shape) else { return Ok(()) };
    let sampling = sampling(c, dims, weights)?;
    let prompt: Vec<u32> = (0..len).map(|i| ((i * 31 + 7) % dims.vocab) as u32).collect();
    let (meter, want) = (prl_kernels::Meter::default(), Want::Token(Draw::plain(1.0, 0.37)));
    let mut times = Vec::new();
    for _ in 0..8 {
        let mut caches: Caches = (0..batch).map(|_| sampling.new_cache(&meter)).collect();
        let clock = Instant::now();
        for ids in prompt.chunks(len.div_ceil(parts).max(1)) {
            let items = caches.iter_mut().map(|cache| Item { cache, ids, follows: None, want, adapter: None });
            sampling.extend(&mut items.collect::<Vec<_>>())?;
        }
        times.push(ms(clock));
    }
    let time = median(&mut times);
    println!("PREFILL {batch}x{len} in {parts}: {time:.2} ms, {:.0} tok/s", (batch * len) as f64 / time * 1e3);
    Ok(())
}

/// New weights again and again, handed over between two decode steps of 128 sequences.
fn updates(c: &Arc<Context>, dims: &Dims, weights: &Grads, count: &str) -> Done {
    let Ok(count) = count.parse::<usize>() else { return Ok(()) };
    let sampled = Arc::new(Context::new(0, None)?);
    let options = TrainingOptions { recompute: Recompute::NOTHING, head_chunk: 1024, tokens: 0 };
    let mut training = Training::<bf16>::new(c.clone(), dims, rope(dims), options, &weights.slices())?;
    let work = Workspace::default();
    let mut sampling = Sampling::new(sampled.clone(), training.weights()?, work.clone())?;
    let prompt: Vec<u32> = (0..128).collect();
    let mut caches = filled(&sampling, 128, &prompt)?;
    let want = Want::Token(Draw::plain(1.0, 0.37));
    let step = |sampling: &Sampling<bf16>, caches: &mut Caches| {
        // Not longer and longer.
        caches.iter_mut().for_each(|cache| cache.truncate(128));
        let items = caches.iter_mut().map(|cache| Item { cache, ids: &[5], follows: None, want, adapter: None });
        sampling.begin(&mut items.collect::<Vec<_>>())
    };
    let adam = AdamStep { lr: 1e-6, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.0, step: 0 };
    let (mut handed, mut first, mut used) = (Vec::new(), Vec::new(), Vec::new());
    let mut underway = step(&sampling, &mut caches)?;
    for update in 0..count {
        training.step(StepNumbers { adam, max_norm: None })?;
        c.synchronize()?;
        let clock = Instant::now();
        let new = training.weights()?;
        sampling = Sampling::new(sampled.clone(), new, work.clone())?;
        handed.push(ms(clock));
        underway.finish()?;
        step(&sampling, &mut caches)?.finish()?;
        first.push(ms(clock));
        underway = step(&sampling, &mut caches)?;
        if update % (count / 8).max(1) == 0 || update + 1 == count {
            let (free, total) = c.memory_bytes()?;
            used.push((total - free) >> 20);
        }
    }
    underway.finish()?;
    println!(
        "UPDATES {count}: {:.2} ms until handed over, {:.2} ms until the first step of 128 sequences with them is done; MiB in \
         use at times between {used:?}",
        median(&mut handed),
        median(&mut first)
    );
    Ok(())
}

fn pair(shape: &str) -> Option<(usize, usize)> {
    let (a, b) = shape.split_once('x')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

/// What is timed.
const TIMED: [&str; 4] = ["train", "decode", "prefill", "updates"];

fn run(arguments: &[String]) -> Result<bool, CudaError> {
    let cache = arguments.iter().find_map(|a| a.strip_prefix("cache="));
    let c = Context::new(0, cache.map(Path::new))?;
    let c = Arc::new(if arguments.iter().any(|a| a == "exact") { c.exact() } else { c });
    let mut right = true;
    if arguments.iter().any(|a| a == "test") {
        right = test(cache.map(Path::new))?;
    }
    let timed: Vec<&String> =
        arguments.iter().filter(|a| TIMED.iter().any(|what| a.split('=').next() == Some(what))).collect();
    if !timed.is_empty() {
        let dims = dims(arguments.iter().any(|a| a == "tiny"));
        let weights = random_weights(&dims);
        for argument in timed {
            let (what, shape) = argument.split_once('=').unwrap_or_default();
            let time = match what {
                "train" => train,
                "prefill" => prefill,
                "updates" => updates,
                _ => decode,
            };
            let done = time(&c, &dims, &weights, shape);
            if let Err(e) = done {
                println!("{argument}: {e}");
                right = false;
            }
        }
    }
    Ok(right)
}

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
