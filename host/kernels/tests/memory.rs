//! The head never holds anything like [tokens × vocab].

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{Family, Model, Rng, dims};
use prl_kernels::{Grads, head_backward, head_forward_backward, head_stats};

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

/// Bytes above what was live before.
fn peak(f: impl FnOnce()) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    f();
    PEAK.load(Relaxed) - before
}

#[test]
fn head_memory_is_bounded() {
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
