//! What this crate computes on a GPU, in files that `tests/gpu` compares with PyTorch's.
//!
//!     gpu_peer grads MODEL_DIR BATCH.json OUT.safetensors cpu|cuda|cuda-f32 [recompute]
//!     gpu_peer sft MODEL_DIR ROWS.jsonl OUT.json STEPS ROWS LR cuda|cuda-f32
//!
//! `tests/gpu/torch_grads.py` and `torch_sft.py` say what the files hold.

use prl_model::{
    AdamWNumbers, Arithmetic, Bits, Decoder, Device, Gpu, GpuOptions, Kernels, Learner, Packed, Recompute, Stepper,
};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::error::Error;
use std::path::Path;

type Fallible<T> = Result<T, Box<dyn Error>>;

fn floats(value: &Value) -> Option<Vec<f32>> {
    value.as_array()?.iter().map(|x| x.as_f64().map(|x| x as f32)).collect()
}

fn integers(value: &Value) -> Option<Vec<usize>> {
    value.as_array()?.iter().map(|x| x.as_u64().map(|x| x as usize)).collect()
}

fn packed(value: &Value) -> Fallible<Packed> {
    let ids = integers(&value["ids"]).ok_or("no `ids`")?;
    let doc_lens = integers(&value["doc_lens"]).ok_or("no `doc_lens`")?;
    let temperatures = floats(&value["temperatures"]).unwrap_or_else(|| vec![1.0; ids.len()]);
    Ok(Packed { ids: ids.into_iter().map(|id| id as u32).collect(), doc_lens, temperatures })
}

fn learner(model: &str, on: &str, recompute: bool) -> Fallible<Learner> {
    let decoder = Decoder::load_hf(Path::new(model), &Device::Cpu.open()?)?;
    let recompute = Recompute { every: usize::from(recompute), all: true, ..Recompute::NOTHING };
    let on_gpu = |arithmetic| {
        let options = GpuOptions { arithmetic, recompute, head_chunk: 1024, tokens: 0 };
        Learner::on_gpu(decoder.clone(), &Gpu::open(0, None, Bits::default())?, &options)
    };
    Ok(match on {
        "cpu" => Learner::new(decoder, Kernels::Fast, 256)?,
        "cuda" => on_gpu(Arithmetic::Bf16)?,
        "cuda-f32" => on_gpu(Arithmetic::F32)?,
        other => return Err(format!("`{other}` is not cpu, cuda or cuda-f32").into()),
    })
}

fn grads(model: &str, batch: &str, out: &str, on: &str, recompute: bool) -> Fallible<()> {
    let batch: Value = serde_json::from_slice(&std::fs::read(batch)?)?;
    let dlogprob = floats(&batch["dlogprob"]).ok_or("no `dlogprob`")?;
    let dentropy = floats(&batch["dentropy"]);
    let mut learner = learner(model, on, recompute)?;
    let stats = learner.forward(&packed(&batch)?)?;
    learner.backward(&dlogprob, dentropy.as_deref())?;
    let mut named = vec![
        ("logprobs".to_owned(), vec![stats.logprobs.len()], stats.logprobs),
        ("entropy".to_owned(), vec![stats.entropy.len()], stats.entropy),
    ];
    let infos = prl_model::names::parameters(learner.config());
    named.extend(infos.into_iter().zip(learner.gradients()?).map(|(info, values)| (info.name, info.shape, values)));
    let views = named
        .iter()
        .map(|(name, shape, values)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values))?;
            Ok((name.as_str(), view))
        })
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    Ok(safetensors::serialize_to_file(views, None, Path::new(out))?)
}

fn sft(model: &str, rows: &str, out: &str, [steps, per_step]: [usize; 2], lr: f64, on: &str) -> Fallible<()> {
    let lines = std::fs::read_to_string(rows)?;
    let rows: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let mut learner = learner(model, on, false)?;
    let numbers = AdamWNumbers { lr, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01, max_norm: Some(1.0) };
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let batches = (0..per_step)
            .map(|i| {
                let row = &rows[(step * per_step + i) % rows.len()];
                let batch = packed(row)?;
                let mask: Vec<bool> = row["mask"]
                    .as_array()
                    .ok_or("no `mask`")?
                    .iter()
                    .map(|m| m.as_bool().unwrap_or(m.as_u64() == Some(1)))
                    .collect();
                let mut targets = mask;
                let mut start = 0;
                for len in &batch.doc_lens {
                    targets[start] = false;
                    start += len;
                }
                Ok((batch, targets))
            })
            .collect::<Fallible<Vec<_>>>()?;
        let count = batches.iter().flat_map(|(_, t)| t).filter(|t| **t).count();
        let mut nll = 0.0;
        for (batch, targets) in &batches {
            let dlogprob: Vec<f32> = targets.iter().map(|t| if *t { -1.0 / count as f32 } else { 0.0 }).collect();
            let logprobs = learner.forward_backward(batch, &dlogprob)?;
            nll -= logprobs.iter().zip(targets).filter(|(_, t)| **t).map(|(lp, _)| f64::from(*lp)).sum::<f64>();
        }
        let Stepper::Fused(fused) = learner.stepper() else { return Err("a GPU is needed".into()) };
        norms.push(fused.step(&numbers)?.grad_norm);
        losses.push(nll / count as f64);
    }
    std::fs::write(out, json!({"losses": losses, "grad_norms": norms}).to_string())?;
    Ok(())
}

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["grads", model, batch, out, on, more @ ..] => grads(model, batch, out, on, more.contains(&"recompute")),
        ["sft", model, rows, out, steps, per_step, lr, on] => {
            sft(model, rows, out, [steps.parse()?, per_step.parse()?], lr.parse()?, on)
        }
        _ => Err(
            "usage: gpu_peer grads MODEL_DIR BATCH OUT cpu|cuda|cuda-f32 [recompute], or gpu_peer sft MODEL_DIR ROWS \
                  OUT STEPS ROWS LR cuda|cuda-f32"
                .into(),
        ),
    }
}
