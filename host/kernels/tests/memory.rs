//! The head never holds anything like [tokens × vocab], and training an adapter nothing like the gradients of what is frozen.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{Family, Model, Rng, dims};
use prl_kernels::{
    AdapterLayer, AdapterView, Additions, Grads, LowRank, Projection, backward_with, forward_with, head_backward,
    head_forward_backward, head_stats,
};

/// Counts the bytes that are allocated and their peak.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: defers to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What is allocated counts for the test that holds it.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes above what was live before.
fn peak(f: impl FnOnce()) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    f();
    PEAK.load(Relaxed) - before
}

#[test]
fn head_memory_is_bounded() {
    let _alone = ALONE.lock().unwrap();
    let (tokens, vocab) = (4096, 24_000);
    let model = Model::random(dims(Family::Llama, 0, 8, 1, 1, 2, 3, vocab, true), 1);
    let w = model.view();
    let mut rng = Rng(2);
    let (hidden, labels) = (rng.fill(tokens * 8, 1.0), rng.ids(tokens, vocab));
    let ones = vec![1.0; tokens];
    let mut grads = Grads::zeros(&model.dims);
    let whole = tokens * vocab * 4;
    let mut stats = None;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("a thread pool");
    let used = peak(|| stats = Some(pool.install(|| head_stats(&w, &hidden, &labels, &ones, 1024))));
    assert!(used < whole / 100, "head_stats used {used} bytes, the full logits would be {whole}");
    let stats = stats.expect("just set");
    let used = peak(|| {
        pool.install(|| head_backward(&w, &hidden, &labels, &ones, &stats, &ones, Some(&ones), 1024, &mut grads));
    });
    assert!(used < whole / 12, "head_backward used {used} bytes, the full logits would be {whole}");
}

/// 16,384 tokens and a vocabulary of 151,936: the logits would be 9.3 GiB. About a minute on two cores.
#[test]
#[ignore = "computes for about a minute"]
fn the_loss_of_a_long_row_fits() {
    const GIB: usize = 1 << 30;
    let (tokens, vocab, width) = (16_384, 151_936, 32);
    let model = Model::random(dims(Family::Llama, 0, width, 1, 1, width, 3, vocab, true), 1);
    let w = model.view();
    let mut rng = Rng(2);
    let (hidden, labels) = (rng.fill(tokens * width, 1.0), rng.ids(tokens, vocab));
    let ones = vec![1.0; tokens];
    let mut grads = Grads::zeros(&model.dims);
    let mut logprobs = Vec::new();
    let used = peak(|| {
        let stats = head_stats(&w, &hidden, &labels, &ones, 1024);
        head_backward(&w, &hidden, &labels, &ones, &stats, &ones, Some(&ones), 1024, &mut grads);
        logprobs = stats.logprob;
    });
    assert!(used < GIB / 4, "two passes used {used} bytes");
    let mut at_once = Vec::new();
    let used = peak(|| at_once = head_forward_backward(&w, &hidden, &labels, &ones, &ones, 1024, &mut grads).0);
    assert!(used < GIB / 4, "one pass used {used} bytes");
    assert!(at_once == logprobs);
}

#[test]
fn what_is_frozen_has_no_gradient() {
    let _alone = ALONE.lock().unwrap();
    let model = Model::random(dims(Family::Llama, 2, 256, 4, 2, 64, 1024, 8000, false), 3);
    let (w, d) = (model.view(), &model.dims);
    let mut rng = Rng(4);
    let mut layers = vec![AdapterLayer::default(); d.layers];
    for layer in &mut layers {
        for which in Projection::ALL {
            let [out, input] = which.shape(d);
            *layer.slot(which) = Some(LowRank { a: rng.fill(2 * input, 0.1), b: rng.fill(2 * out, 0.1), rank: 2 });
        }
    }
    let (ids, ones) = (rng.ids(64, d.vocab), vec![1.0; 64]);
    let additions = Additions::new(AdapterView::new(&layers, d).unwrap(), 1.0, None).unwrap();
    let step = || {
        let mut grads = Grads::of(d, |_| false, &layers);
        let acts = forward_with(&w, &additions, &ids, &[64]);
        let hidden = acts.hidden().to_vec();
        let stats = head_stats(&w, &hidden, &ids, &ones, 64);
        let dhidden = head_backward(&w, &hidden, &ids, &ones, &stats, &ones, None, 64, &mut grads);
        backward_with(&w, &additions, acts, &dhidden, &mut grads);
        assert!(grads.norm() > 0.0);
    };
    // Of the weights 24 MB, 16 of which are embedding and head; what is held are activations, packed matrices and some logits.
    let weights = d.parameters() * 4;
    let used = peak(step);
    assert!(used < weights / 2, "{used} bytes for a model of {weights}");
}
