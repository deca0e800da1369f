//! Times of the operations at the shapes of a 0.6B decoder on 16,384 tokens.
//!
//! Owns the shapes and what each must move or compute at least. Must not know how time is taken.

use prl_kernels::cuda::{
    AdamStep, Attention, AttentionGrads, CacheLayout, CacheRows, Context, CudaError, CudaSlice, Element, HeadLayout,
    HeadRows, HeadShape, Matrix, NormGrads, Onto, PAGE, bf16,
};

use crate::bench::{Random, time};

type Done = Result<(), CudaError>;

/// Random bf16 of any length: a block of them, repeated on the GPU.
fn halves(c: &Context, r: &mut Random, n: usize) -> Result<CudaSlice<bf16>, CudaError> {
    values(c, r, n)
}

fn values<T: Element>(c: &Context, r: &mut Random, n: usize) -> Result<CudaSlice<T>, CudaError> {
    let block = c.upload(&r.values((1 << 20).min(n), 1.0))?;
    repeat(c, &block, n)
}

fn floats(c: &Context, r: &mut Random, n: usize, scale: f32) -> Result<CudaSlice<f32>, CudaError> {
    let block = c.upload(&r.floats((1 << 20).min(n), scale))?;
    repeat(c, &block, n)
}

fn repeat<T: prl_kernels::cuda::Plain>(c: &Context, block: &CudaSlice<T>, n: usize) -> Result<CudaSlice<T>, CudaError> {
    let mut out = c.alloc(n)?;
    let mut at = 0;
    while at < n {
        let len = block.len().min(n - at);
        c.copy(&block.slice(..len), &mut out.slice_mut(at..at + len))?;
        at += len;
    }
    Ok(out)
}

fn moved(what: &str, shape: &str, ms: f64, bytes: f64) {
    println!("TIME {what:22} {shape:28} {ms:9.4} ms {:8.0} GB/s", bytes / ms / 1e6);
}

fn computed(what: &str, shape: &str, ms: f64, flops: f64) {
    println!("TIME {what:22} {shape:28} {ms:9.4} ms {:8.0} TF/s", flops / ms / 1e9);
}

/// Times everything, or one topic.
pub fn all(c: &Context, r: &mut Random, topic: Option<&str>) -> Done {
    let topics: [(&str, fn(&Context, &mut Random) -> Done); 6] = [
        ("attention", attentions),
        ("decode", caches),
        ("products", products),
        ("rows", rows),
        ("steps", head),
        ("steps", step),
    ];
    topics.into_iter().filter(|t| topic.is_none_or(|name| name == t.0)).try_for_each(|t| t.1(c, r))
}

fn attentions(c: &Context, r: &mut Random) -> Done {
    for (name, docs) in [
        ("8 x 2048", vec![2048; 8]),
        ("4 x 4096", vec![4096; 4]),
        ("1 x 16384", vec![16384]),
        ("64 x 256", vec![256; 64]),
    ] {
        attention::<bf16>(c, r, "attention", name, &docs)?;
    }
    attention::<f32>(c, r, "attention f32", "8 x 2048", &[2048; 8])
}

fn attention<T: Element>(c: &Context, r: &mut Random, what: &str, name: &str, docs: &[usize]) -> Done {
    let (heads, kv_heads, dim) = (16, 8, 128);
    let n: usize = docs.iter().sum();
    let (wide, narrow) = (heads * dim, kv_heads * dim);
    let (q, k, v, dout) = (
        values::<T>(c, r, n * wide)?,
        values::<T>(c, r, n * narrow)?,
        values::<T>(c, r, n * narrow)?,
        values::<T>(c, r, n * wide)?,
    );
    let (mut out, mut lse, mut delta) = (c.alloc(n * wide)?, c.alloc(n * heads)?, c.alloc(n * heads)?);
    let (mut dq, mut dk, mut dv) = (c.alloc(n * wide)?, c.alloc(n * narrow)?, c.alloc(n * narrow)?);
    let tiles = c.tiles(docs)?;
    let layout = HeadLayout { heads, kv_heads, dim, q_stride: wide, k_stride: narrow, v_stride: narrow };
    let mut sums = c.alloc(c.attention_backward_scratch::<T>(layout, n).max(1))?;
    let x = Attention { q: &q, k: &k, v: &v, layout, scale: 1.0 / (dim as f32).sqrt() };
    // Half of the full square, as is usual for causal attention: two products forward, five backward.
    let flops: f64 = docs.iter().map(|l| 2.0 * (l * l * wide) as f64).sum();
    let f = time(c, 10, || c.attention(&tiles, x, &mut out, wide, &mut lse))?;
    computed(what, name, f, flops);
    let b = time(c, 5, || {
        let grads = AttentionGrads { dq: &mut dq, dk: &mut dk, dv: &mut dv, strides: [wide, narrow, narrow] };
        c.attention_backward(&tiles, x, (&out, &dout, wide), &lse, (&mut delta, Some(&mut sums)), grads)
    })?;
    computed(&format!("{what} backward"), name, b, 2.5 * flops);
    computed(&format!("{what} both"), name, f + b, 3.5 * flops);
    let (_, parts) = c.trace(|| {
        let grads = AttentionGrads { dq: &mut dq, dk: &mut dk, dv: &mut dv, strides: [wide, narrow, narrow] };
        c.attention_backward(&tiles, x, (&out, &dout, wide), &lse, (&mut delta, Some(&mut sums)), grads)
    })?;
    parts.iter().for_each(|p| println!("     {:28} {:9.4} ms", p.name, p.ms));
    Ok(())
}

/// One layer's attention over caches; layers take turns, so that no cache is in the GPU's own from the run before.
fn caches(c: &Context, r: &mut Random) -> Done {
    let layout = CacheLayout { heads: 16, kv_heads: 8, dim: 128 };
    let (wide, narrow) = (16 * 128, 8 * 128);
    let noise = halves(c, r, 1 << 20)?;
    for (rows, context) in [
        (1, 300),
        (1, 1024),
        (1, 8192),
        (32, 300),
        (32, 1024),
        (32, 8192),
        (128, 300),
        (128, 1024),
        (256, 300),
        (256, 1024),
        (512, 300),
        (64, 8192),
    ] {
        let entry = 2 * narrow;
        let layers = (1usize << 30).div_ceil(rows * context * entry).clamp(2, 28);
        let pages = context.div_ceil(PAGE);
        let page = layers * PAGE * entry;
        let blocks = (0..rows).map(|_| repeat(c, &noise, pages * page)).collect::<Result<Vec<_>, _>>()?;
        let places = |b| (0..pages).map(move |i| b + (2 * i * page) as u64);
        let lists = blocks.iter().map(|b| c.upload(&places(c.address_of(b)).collect::<Vec<_>>()));
        let lists = lists.collect::<Result<Vec<_>, _>>()?;
        let tables = c.upload(&lists.iter().map(|list| c.address_of(list)).collect::<Vec<_>>())?;
        let (capacities, seq) =
            (c.upload(&vec![(pages * PAGE) as i32; rows])?, c.upload(&(0..rows as i32).collect::<Vec<_>>())?);
        let position = c.upload(&vec![context as i32 - 1; rows])?;
        let at = CacheRows { tables: &tables, capacities: &capacities, seq: &seq, position: &position };
        let (q, k) = (halves(c, r, rows * wide)?, halves(c, r, rows * narrow)?);
        let mut out = c.alloc::<bf16>(rows * wide)?;
        let mut scratch = c.alloc(c.cache_attention_scratch::<bf16>(layout, rows, context))?;
        let scale = 1.0 / (layout.dim as f32).sqrt();
        let mut layer = 0;
        let shape = format!("{rows} rows x {context}");
        let ms = time(c, 2 * layers, || {
            layer = (layer + 1) % layers;
            // SAFETY: the blocks live here, were made for `layers` layers, and nothing else uses them.
            unsafe { c.cache_attention(layer, layout, rows, (&q, wide), at, context, scale, &mut out, &mut scratch) }
        })?;
        moved("decode", &shape, ms, (rows * context * entry * 2) as f64);
        if context == 300 {
            // SAFETY: as above.
            let ms = time(c, 20, || unsafe { c.cache_store(0, layout, rows, (&k, narrow), (&k, narrow), at) })?;
            moved("decode: store", &shape, ms, (rows * narrow * 8) as f64);
        }
    }
    Ok(())
}

fn products(c: &Context, r: &mut Random) -> Done {
    let n = 16384;
    for (name, m, k, w, kind) in [
        ("8192^3", 8192, 8192, 8192, 'f'),
        ("qkv", n, 1024, 4096, 'f'),
        ("qkv dX", n, 4096, 1024, 'x'),
        ("qkv dW", 4096, n, 1024, 'w'),
        ("gate up", n, 1024, 6144, 'f'),
        ("gate up dX", n, 6144, 1024, 'x'),
        ("gate up dW", 6144, n, 1024, 'w'),
        ("down", n, 3072, 1024, 'f'),
        ("head 2048", 2048, 1024, 151_936, 'h'),
        ("head dX 2048", 2048, 151_936, 1024, 'x'),
        ("head dW 2048", 151_936, 2048, 1024, 'w'),
    ] {
        let (a, b) = (halves(c, r, m * k)?, halves(c, r, k * w)?);
        let flops = 2.0 * (m * k * w) as f64;
        let shape = [m, w, k];
        let ms = match kind {
            'f' => {
                let mut y = c.alloc::<bf16>(m * w)?;
                time(c, 10, || c.gemm(shape, Matrix::new(&a, k), Matrix::t(&b, k), &mut y, w, Onto::Nothing))?
            }
            'x' => {
                let mut y = c.alloc::<bf16>(m * w)?;
                time(c, 10, || c.gemm(shape, Matrix::new(&a, k), Matrix::new(&b, w), &mut y, w, Onto::Nothing))?
            }
            'h' => {
                let mut y = c.alloc::<f32>(m * w)?;
                time(c, 10, || c.gemm(shape, Matrix::new(&a, k), Matrix::t(&b, k), &mut y, w, Onto::Nothing))?
            }
            _ => {
                let mut y = floats(c, r, m * w, 1.0)?;
                time(c, 10, || c.gemm(shape, Matrix::t(&a, m), Matrix::new(&b, w), &mut y, w, Onto::Itself))?
            }
        };
        computed("gemm", name, ms, flops);
    }
    Ok(())
}

fn rows(c: &Context, r: &mut Random) -> Done {
    let (n, h) = (16384, 1024);
    let (x, add, dy, through) =
        (halves(c, r, n * h)?, halves(c, r, n * h)?, halves(c, r, n * h)?, halves(c, r, n * h)?);
    let (w, mut dw) = (floats(c, r, h, 1.0)?, c.zeros(h)?);
    let (mut sum, mut y, mut dx) = (c.alloc(n * h)?, c.alloc(n * h)?, c.alloc(n * h)?);
    let (mut rstd, mut scratch) = (c.alloc(n)?, c.alloc(c.norm_scratch(h))?);
    let unit = (n * h * 2) as f64;
    let ms = time(c, 20, || c.rms_norm([n, h], 1e-6, &x, None, &w, &mut y, &mut rstd))?;
    moved("rms_norm", "16384 x 1024", ms, 2.0 * unit);
    let ms = time(c, 20, || c.rms_norm([n, h], 1e-6, &x, Some((&add, &mut sum)), &w, &mut y, &mut rstd))?;
    moved("rms_norm + residual", "16384 x 1024", ms, 4.0 * unit);
    let ms = time(c, 20, || {
        let grads = NormGrads { dw: &mut dw, scratch: &mut scratch };
        c.rms_norm_backward([n, h], (&x, &rstd), &w, &dy, Some(&through), &mut dx, None, grads)
    })?;
    moved("rms_norm backward", "16384 x 1024 + residual", ms, 4.0 * unit);
    let ms = time(c, 20, || {
        let grads = NormGrads { dw: &mut dw, scratch: &mut scratch };
        c.rms_norm_backward([n, h], (&x, &rstd), &w, &dy, Some(&through), &mut dx, Some(&mut y), grads)
    })?;
    moved("the same, y again", "16384 x 1024 + residual", ms, 5.0 * unit);

    let s = HeadShape { heads: 16, kv_heads: 8, dim: 128, eps: 1e-6 };
    let (wide, narrow) = (2048, 1024);
    let qkv = halves(c, r, n * (wide + 2 * narrow))?;
    let (dq, dk) = (halves(c, r, n * wide)?, halves(c, r, n * narrow)?);
    let (mut q, mut k, mut dqkv) = (c.alloc(n * wide)?, c.alloc(n * narrow)?, c.alloc(n * (wide + 2 * narrow))?);
    let positions = c.upload(&(0..n as i32).map(|i| i % 2048).collect::<Vec<_>>())?;
    let table = c.rope_table(&(0..64).map(|i| 1e6f32.powf(-(i as f32) / 64.0)).collect::<Vec<_>>(), 1.0, 2048)?;
    let (wq, wk) = (floats(c, r, 128, 1.0)?, floats(c, r, 128, 1.0)?);
    let (mut gq, mut gk) = (c.zeros(128)?, c.zeros(128)?);
    let unit = (n * (wide + narrow) * 2) as f64;
    let ms = time(c, 20, || c.rope(s, &qkv, Some([&wq, &wk]), &table, &positions, (&mut q, &mut k)))?;
    moved("qk norm + rope", "16384 x (16+8) x 128", ms, 2.0 * unit);
    let ms = time(c, 20, || {
        let back = Some(([&wq as _, &wk as _], [&mut gq as _, &mut gk as _], &mut scratch as _));
        c.rope_backward(s, &qkv, back, &table, &positions, (&dq, &dk), &mut dqkv)
    })?;
    moved("qk norm + rope backward", "16384 x (16+8) x 128", ms, 3.0 * unit);

    let f = 3072;
    let (gu, dh) = (halves(c, r, n * 2 * f)?, halves(c, r, n * f)?);
    let (mut h_, mut dgu) = (c.alloc(n * f)?, c.alloc(n * 2 * f)?);
    let unit = (n * f * 2) as f64;
    let ms = time(c, 20, || c.swiglu([n, f], &gu, &mut h_))?;
    moved("swiglu", "16384 x 3072", ms, 3.0 * unit);
    let ms = time(c, 20, || c.swiglu_backward([n, f], &gu, &dh, &mut dgu, Some(&mut h_)))?;
    moved("swiglu backward", "16384 x 3072", ms, 6.0 * unit);

    let vocab = 151_936;
    let (emb, mut grad) = (halves(c, r, vocab * h)?, c.zeros(vocab * h)?);
    let ids: Vec<u32> = (0..n).map(|_| r.below(vocab) as u32).collect();
    let dev = c.upload(&ids.iter().map(|i| *i as i32).collect::<Vec<_>>())?;
    let order = c.embed_order(&ids, vocab)?;
    let ms = time(c, 20, || c.embed(h, &emb, &dev, &mut y))?;
    moved("embed", "16384 x 1024", ms, 2.0 * (n * h * 2) as f64);
    let ms = time(c, 20, || c.embed_backward(h, &order, &dy, &mut grad))?;
    moved("embed backward", "16384 x 1024", ms, (n * h * 10) as f64);
    Ok(())
}

fn head(c: &Context, r: &mut Random) -> Done {
    let (rows, vocab) = (2048, 151_936);
    let logits = floats(c, r, rows * vocab, 2.0)?;
    let labels = c.upload(&(0..rows).map(|_| r.below(vocab) as i32).collect::<Vec<_>>())?;
    let (temps, dl) = (c.upload(&vec![1.0f32; rows])?, floats(c, r, rows, 1.0)?);
    let (mut lp, mut en, mut lz) = (c.alloc(rows)?, c.alloc(rows)?, c.alloc(rows)?);
    let mut grad = c.alloc::<bf16>(rows * vocab)?;
    let of = HeadRows { labels: &labels, inv_temp: &temps };
    let n = (rows * vocab) as f64;
    let ms = time(c, 10, || c.head_stats([rows, vocab], &logits, of, [&mut lp, &mut en, &mut lz]))?;
    moved("head softmax", "2048 x 151936 f32", ms, 4.0 * n);
    let ms = time(c, 10, || c.head_gradient([rows, vocab], &logits, of, [&lz, &en], &dl, None, &mut grad))?;
    moved("head gradient", "2048 x 151936 f32", ms, 6.0 * n);
    Ok(())
}

fn step(c: &Context, r: &mut Random) -> Done {
    let n = 596_049_920;
    let g = floats(c, r, n, 1.0)?;
    let (mut p, mut m, mut v) = (floats(c, r, n, 1.0)?, c.zeros(n)?, c.zeros(n)?);
    let mut copy = c.alloc::<bf16>(n)?;
    let (mut scratch, mut clipped) = (c.alloc::<f64>(c.grad_norm_scratch(1))?, c.alloc(2)?);
    let mut zeros = c.alloc(1)?;
    let ms = time(c, 3, || c.grad_norm(&[&g], 1.0, &mut scratch, &mut clipped, &mut zeros))?;
    moved("grad norm", "596M", ms, 4.0 * n as f64);
    let s = AdamStep { lr: 1e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.01, step: 1 };
    let ms = time(c, 3, || c.adamw(s, [&mut p, &mut m, &mut v], &g, &mut copy, &clipped))?;
    moved("adamw", "596M", ms, 30.0 * n as f64);
    Ok(())
}
