//! Sampling speed of the engine: `decode MODEL_FOLDER BATCH PROMPT_TOKENS NEW_TOKENS [REPEATS]` prints the tokens a second of
//! each repeat, the prompts' time included. To be held against a peer by `tests/integration/decode_speed.py`.

use futures::executor::block_on;
use futures::future::try_join_all;
use prl_inference::{Engine, EngineConfig, Request, SamplingParams};
use prl_model::{Decoder, Device, Kernels};
use prl_types::{PolicyVersion, TokenId};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, numbers @ ..] = words.as_slice() else { return Err("which model?".into()) };
    let numbers = numbers.iter().map(|word| word.parse()).collect::<Result<Vec<usize>, _>>()?;
    let [batch, prompt, new, repeats @ ..] = numbers.as_slice() else { return Err("how much?".into()) };
    let decoder = Decoder::load_hf(Path::new(folder), &Device::Cpu.open()?)?;
    let vocab = decoder.config().vocab_size;
    let config = EngineConfig { kept_prefixes: 0, ..EngineConfig::new(*batch, prompt + new) };
    let engine = Engine::start(decoder.snapshot(Kernels::Fast)?, PolicyVersion(0), config)?;
    let handle = engine.handle();
    for repeat in 0..repeats.first().copied().unwrap_or(1) {
        let started = Instant::now();
        let requests = (0..*batch).map(|i| {
            let ids: Vec<TokenId> =
                (0..*prompt).map(|t| ((repeat * 131 + i * 7919 + t * 104729) % vocab) as u32).collect();
            let sampling = SamplingParams { temperature: 0.0, max_tokens: Some(*new), ..SamplingParams::default() };
            handle.generate(Request::new(ids, sampling, i as u64))
        });
        let sampled = block_on(try_join_all(requests))?;
        let tokens: usize = sampled.iter().map(|s| s.ids().len()).sum();
        println!("{:.2}", tokens as f64 / started.elapsed().as_secs_f64());
    }
    Ok(())
}
