//! Splitting work over the current rayon pool when tasks write disjoint parts of one buffer.
//!
//! Owns the pointer wrapper and the range loop. Must not know what the buffers mean.

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

/// A buffer that tasks write in disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    data: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: it only hands out pointers; whoever dereferences them promises disjoint access.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Borrows the slice for as long as the wrapper lives.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { data: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// Wraps a pointer whose extent the caller knows.
    pub fn of(data: *mut T) -> Self {
        Self { data, len: usize::MAX, lifetime: PhantomData }
    }

    /// Elements behind the pointer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Pointer to element `index`.
    pub fn at(&self, index: usize) -> *mut T {
        debug_assert!(index <= self.len);
        self.data.wrapping_add(index)
    }

    /// A part of the buffer.
    ///
    /// # Safety
    /// No other task may touch `range` while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the buffer; disjointness by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }
}

/// Calls `each` on consecutive ranges of `step` covering `0..n`, in parallel if asked and worth it.
pub(crate) fn for_ranges(parallel: bool, n: usize, step: usize, each: impl Fn(Range<usize>) + Sync) {
    let step = step.max(1);
    let count = n.div_ceil(step);
    let range = |i: usize| i * step..((i + 1) * step).min(n);
    if parallel && count > 1 {
        (0..count).into_par_iter().with_max_len(1).for_each(|i| each(range(i)));
    } else {
        (0..count).for_each(|i| each(range(i)));
    }
}
