//! Recycling of the large buffers that every training step needs again.
//!
//! Owns a free list shared by the process, so that a step does not pay for fresh pages. Must not know what buffers hold.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers below this many elements are left to the allocator.
const POOLED_MIN: usize = 1 << 15;

/// Lengths count elements. What is free and live together stays within 5/4 of the most that was ever live.
struct Pool {
    /// Oldest first.
    free: Vec<Vec<f32>>,
    free_len: usize,
    live_len: usize,
    peak_len: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { free: Vec::new(), free_len: 0, live_len: 0, peak_len: 0 });

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// The smallest free buffer that fits and is not more than twice too large.
    fn take(&mut self, len: usize) -> Option<Vec<f32>> {
        let fits = |b: &Vec<f32>| b.len() >= len && b.len() / 2 <= len;
        let best = (0..self.free.len()).filter(|i| fits(&self.free[*i])).min_by_key(|i| self.free[*i].len())?;
        let found = self.free.remove(best);
        self.free_len -= found.len();
        Some(found)
    }

    /// Counts `len` elements as live and picks the free buffers to let go of.
    fn admit(&mut self, len: usize) -> Vec<Vec<f32>> {
        self.live_len += len;
        self.peak_len = self.peak_len.max(self.live_len);
        let (mut gone, mut free_len) = (0, self.free_len);
        while gone < self.free.len() && self.live_len + free_len > self.peak_len + self.peak_len / 4 {
            free_len -= self.free[gone].len();
            gone += 1;
        }
        self.free_len = free_len;
        self.free.drain(..gone).collect()
    }
}

/// A buffer that returns to the free list when dropped.
#[derive(Default)]
pub(crate) struct Buffer {
    data: Vec<f32>,
    len: usize,
}

impl Buffer {
    /// `len` elements of unspecified value: the caller writes each before reading it.
    pub fn any(len: usize) -> Self {
        if len < POOLED_MIN {
            return Self { data: vec![0.0; len], len };
        }
        let mut pool = pool();
        let found = pool.take(len);
        let outdated = pool.admit(found.as_ref().map_or(len, Vec::len));
        drop(pool);
        drop(outdated);
        Self { data: found.unwrap_or_else(|| vec![0.0; len]), len }
    }

    /// `len` zeros.
    pub fn zeros(len: usize) -> Self {
        let mut buffer = Self::any(len);
        buffer.fill(0.0);
        buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        if data.len() >= POOLED_MIN {
            let mut pool = pool();
            pool.live_len -= data.len();
            pool.free_len += data.len();
            pool.free.push(data);
        }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.data[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_old_sizes_go() {
        let n = POOLED_MIN * 8;
        let first = Buffer::any(n);
        let address = first.as_ptr();
        drop(first);
        let again = Buffer::zeros(n - 5);
        assert_eq!((again.as_ptr(), again.len()), (address, n - 5));
        assert!(again.iter().all(|x| *x == 0.0));
        drop(again);
        for size in 1..40 {
            drop(Buffer::any(n + size * POOLED_MIN * 20));
        }
        let pool = pool();
        assert!(pool.free_len + pool.live_len <= pool.peak_len + pool.peak_len / 4);
        assert_eq!(pool.free_len, pool.free.iter().map(Vec::len).sum::<usize>());
    }
}
