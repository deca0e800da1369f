//! What a call of a custom loss costs: the plug-in's own time, and the border's around it.
//!
//! ```sh
//! cargo run --release -p prl-algorithm --example loss_border -- plugins/gspo/target/release/libgspo.so
//! cargo run --release -p prl-algorithm --example loss_border -- libmy.so '{"key": 1}' 131072
//! ```

use prl_algorithm::Plugin;
use prl_types::LossBatch;
use std::path::Path;
use std::time::Instant;

/// Calls measured.
const CALLS: usize = 200;
/// Tokens of one sample.
const SAMPLE: usize = 2048;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let file = words.next().ok_or("usage: loss_border PLUGIN.so [CONFIG.json] [TOKENS]")?;
    let config = serde_json::from_str(&words.next().unwrap_or_else(|| "{}".into()))?;
    let tokens: usize = words.next().map_or(Ok(131_072), |word| word.parse())?;
    let mut algorithm = Plugin::load(Path::new(&file))?.create_loss(&config, 0)?;

    let samples = tokens.div_ceil(SAMPLE);
    let starts: Vec<u64> = (0..=samples).map(|i| (i * SAMPLE).min(tokens) as u64).collect();
    let list = |of: &dyn Fn(usize) -> f32| (0..tokens).map(of).collect::<Vec<f32>>();
    let sampled = |t: usize| t % SAMPLE >= SAMPLE / 8;
    let wave = |t: usize| (t as f32 * 0.7).sin();
    let sampling = list(&|t| if sampled(t) { -1.0 + 0.5 * wave(t) } else { 0.0 });
    let batch = LossBatch {
        step: 1,
        part: 0,
        normalizer: tokens as f64,
        starts: &starts,
        temperatures: &vec![1.0; samples],
        oldest: &vec![0; samples],
        newest: &vec![0; samples],
        token_ids: &vec![7; tokens],
        mask: &(0..tokens).map(|t| sampled(t).into()).collect::<Vec<u8>>(),
        trainer_logprobs: &list(&|t| sampling[t] + 0.001 * wave(t + 1)),
        sampling_logprobs: &sampling,
        ref_logprobs: None,
        advantages: &list(&|t| if sampled(t) { wave(t / SAMPLE) } else { 0.0 }),
        weights: &list(&|t| f32::from(u8::from(sampled(t)))),
        entropy: &list(&|_| 1.0),
    };

    let (mut inside, mut around) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let started = Instant::now();
        let seconds = algorithm.loss(&batch)?.seconds;
        inside.push(seconds);
        around.push(started.elapsed().as_secs_f64() - seconds);
    }
    println!("{} | {tokens} tokens in {samples} samples | {CALLS} calls", algorithm.name());
    for (what, mut seconds) in [("plug-in", inside), ("border", around)] {
        seconds.sort_by(f64::total_cmp);
        let ms = |part: usize| 1e3 * seconds[CALLS * part / 100];
        println!("{what:8} median {:.3} ms   fastest {:.3} ms   9 of 10 within {:.3} ms", ms(50), ms(0), ms(90));
    }
    Ok(())
}
