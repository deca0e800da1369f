//! Attention of new tokens over caches of keys and values.
//!
//! Owns the shapes. Must not know how errors are measured.

use prl_kernels::cuda::{CacheLayout, CacheRows, Context, CudaError, CudaSlice, Element, PAGE, Span};

use crate::bench::{GUARD, MARK, Random, Table, empty, error, f64s, read};
use crate::reference;

use super::{Done, Only};

const LAYERS: usize = 3;
/// The one that is written.
const LAYER: usize = 1;

/// Caches of sequences, keys and values of all their tokens side by side, and each token's place.
pub struct Caches<T> {
    /// Of each sequence.
    pages: Vec<Vec<CudaSlice<T>>>,
    _lists: Vec<CudaSlice<u64>>,
    tables: CudaSlice<u64>,
    capacities: CudaSlice<i32>,
    lens: Vec<usize>,
    room: Vec<usize>,
    pub k: Vec<T>,
    pub v: Vec<T>,
}

pub fn caches<T: Element>(c: &Context, r: &mut Random, t: &mut Table, only: Only<'_>) -> Done {
    let cases: [(&[usize], usize, usize); 7] = [
        (&[1], 2, 1),
        (&[1, 5, 64, 129], 4, 4),
        (&[600, 17, 512, 513], 16, 8),
        (&[33, 1100], 7, 1),
        (&[200, 90], 32, 2), // sixteen heads share one
        (&[1500, 3, 700], 14, 2),
        (&[9000], 4, 2),
    ];
    for dim in only.dims() {
        for (lens, heads, kv_heads) in cases.into_iter().take(if only.small { 4 } else { 7 }) {
            case::<T>(c, r, t, lens, CacheLayout { heads, kv_heads, dim })?;
        }
    }
    Ok(())
}

impl<T: Element> Caches<T> {
    /// Stores every token at once, in mixed order, with a row beside whose place is outside.
    pub fn fill(c: &Context, r: &mut Random, lens: &[usize], layout: CacheLayout) -> Result<Self, CudaError> {
        let narrow = layout.kv_heads * layout.dim;
        let tokens: usize = lens.iter().sum();
        let (k, v) = (r.values::<T>(tokens * narrow, 1.0), r.values::<T>(tokens * narrow, 1.0));
        let counts: Vec<usize> = lens.iter().map(|l| (l + r.below(3)).div_ceil(PAGE)).collect();
        let room: Vec<usize> = counts.iter().map(|n| n * PAGE).collect();
        let page = || empty::<T>(c, LAYERS * 2 * PAGE * narrow);
        let pages: Vec<Vec<CudaSlice<T>>> =
            counts.iter().map(|n| (0..*n).map(|_| page()).collect()).collect::<Result<_, _>>()?;
        let lists = counts.iter().map(|n| c.alloc::<u64>(*n)).collect::<Result<Vec<_>, _>>()?;
        let starts: Vec<u64> = lists.iter().map(|list| c.address_of(list)).collect();
        let mut pairs = Vec::new();
        for (start, pages) in starts.iter().zip(&pages) {
            pairs.extend(pages.iter().enumerate().flat_map(|(i, page)| [start + 8 * i as u64, c.address_of(page)]));
        }
        let pairs = c.upload(&pairs)?;
        // SAFETY: the tables live here, and nothing else uses them now.
        unsafe { c.cache_pages::<T>(layout.dim, &pairs)? };
        let tables = c.upload(&starts)?;
        let capacities = c.upload(&room.iter().map(|n| *n as i32).collect::<Vec<_>>())?;
        let mut places: Vec<(usize, usize)> =
            lens.iter().enumerate().flat_map(|(s, len)| (0..*len).map(move |p| (s, p))).collect();
        let mut order: Vec<usize> = (0..tokens).collect();
        (0..tokens).for_each(|i| order.swap(i, i + r.below(tokens - i)));
        // Keys in rows of their own, values inside wider rows; the first row is one of those left out.
        let gap = 8;
        let (mut rows_k, mut rows_v) = (vec![T::from_f32(9.0); narrow], vec![T::from_f32(9.0); narrow + gap]);
        for i in &order {
            rows_k.extend_from_slice(&k[i * narrow..][..narrow]);
            rows_v.extend_from_slice(&v[i * narrow..][..narrow]);
            rows_v.extend([T::from_f32(9.0); 8]);
        }
        places = std::iter::once((0, room[0])).chain(order.iter().map(|i| places[*i])).collect();
        let seq = c.upload(&places.iter().map(|p| p.0 as i32).collect::<Vec<_>>())?;
        let position = c.upload(&places.iter().map(|p| p.1 as i32).collect::<Vec<_>>())?;
        let (rows_k, rows_v) = (c.upload(&rows_k)?, c.upload(&rows_v)?);
        let at = CacheRows { tables: &tables, capacities: &capacities, seq: &seq, position: &position };
        // SAFETY: the pages live here, were made for LAYERS layers, and nothing else uses them now.
        unsafe { c.cache_store(LAYER, layout, places.len(), (&rows_k, narrow), (&rows_v, narrow + gap), at)? };
        Ok(Self { pages, _lists: lists, tables, capacities, lens: lens.to_vec(), room, k, v })
    }

    /// Whether the blocks hold exactly the keys and values, and nothing anywhere else.
    fn intact(&self, c: &Context, narrow: usize) -> Result<bool, CudaError> {
        let mut first = 0;
        for (pages, len) in self.pages.iter().zip(&self.lens) {
            for (number, page) in pages.iter().enumerate() {
                let all = f64s(&c.download(page)?);
                let (all, guard) = all.split_at(all.len() - GUARD);
                let rows = len.saturating_sub(number * PAGE).min(PAGE);
                let start = (first + number * PAGE) * narrow;
                for (i, part) in all.chunks(PAGE * narrow).enumerate() {
                    let used = if i / 2 == LAYER { rows * narrow } else { 0 };
                    let want = if i % 2 == 0 { &self.k } else { &self.v };
                    let right = used == 0 || part[..used] == f64s(&want[start..][..used]);
                    let rest = part[used..].iter().all(|x| x.is_nan());
                    if !right || !rest || guard.iter().any(|g| *g != f64::from(MARK)) {
                        return Ok(false);
                    }
                }
            }
            first += len;
        }
        Ok(true)
    }

    /// The results of consecutive tokens, with these queries, row by row of all spans.
    pub fn attend_together(
        &self,
        c: &Context,
        layout: CacheLayout,
        spans: &[Span],
        q: &[T],
        scale: f32,
    ) -> Result<Vec<f64>, CudaError> {
        let wide = layout.heads * layout.dim;
        let (none, tiles) = (c.upload(&[0i32])?, c.query_tiles(spans, layout.heads)?);
        let at = CacheRows { tables: &self.tables, capacities: &self.capacities, seq: &none, position: &none };
        let (mut out, q) = (empty::<T>(c, q.len())?, c.upload(q)?);
        // SAFETY: as above.
        unsafe { c.cache_tiles(LAYER, layout, &tiles, (&q, wide), at, scale, &mut out)? };
        read(c, &out)
    }

    /// The results of rows `(sequence, position)` with these queries.
    pub fn attend(
        &self,
        c: &Context,
        layout: CacheLayout,
        rows: &[(i32, i32)],
        q: &[T],
        scale: f32,
    ) -> Result<Vec<f64>, CudaError> {
        let wide = layout.heads * layout.dim;
        let longest = rows.iter().map(|r| (r.1 + 1).clamp(0, 10_000) as usize).max().unwrap_or(0);
        let seq = c.upload(&rows.iter().map(|r| r.0).collect::<Vec<_>>())?;
        let position = c.upload(&rows.iter().map(|r| r.1).collect::<Vec<_>>())?;
        let at = CacheRows { tables: &self.tables, capacities: &self.capacities, seq: &seq, position: &position };
        let scratch_len = c.cache_attention_scratch::<T>(layout, rows.len(), longest);
        let (mut out, mut scratch) = (empty::<T>(c, rows.len() * wide)?, empty::<f32>(c, scratch_len)?);
        let q = c.upload(q)?;
        // SAFETY: as above.
        unsafe {
            c.cache_attention(LAYER, layout, rows.len(), (&q, wide), at, longest, scale, &mut out, &mut scratch)?;
        }
        let inside =
            read(c, &scratch)?.len() == scratch_len && c.download(&scratch)?[scratch_len..].iter().all(|x| *x == MARK);
        let out = read(c, &out)?;
        Ok(if inside { out } else { vec![f64::NAN; out.len()] })
    }
}

fn case<T: Element>(c: &Context, r: &mut Random, t: &mut Table, lens: &[usize], layout: CacheLayout) -> Done {
    let CacheLayout { heads, kv_heads, dim } = layout;
    let shape = format!("{lens:?} x{heads}/{kv_heads}x{dim}");
    let (wide, narrow) = (heads * dim, kv_heads * dim);
    let caches = Caches::<T>::fill(c, r, lens, layout)?;
    t.holds("cache store", &shape, caches.intact(c, narrow)?);
    let mut rows: Vec<(i32, i32)> = Vec::new();
    for (s, len) in lens.iter().enumerate() {
        rows.extend([0, len / 2, len - 1, r.below(*len)].map(|p| (s as i32, p as i32)));
    }
    let q = r.values::<T>(rows.len() * wide, 1.5);
    let scale = 1.0 / (dim as f32).sqrt();
    let got = caches.attend(c, layout, &rows, &q, scale)?;
    let (q64, k64, v64) = (f64s(&q), f64s(&caches.k), f64s(&caches.v));
    let mut want = Vec::new();
    for (i, (s, p)) in rows.iter().enumerate() {
        let first: usize = lens[..*s as usize].iter().sum();
        let [k, v] = [&k64, &v64].map(|x| &x[first * narrow..(first + *p as usize + 1) * narrow]);
        for h in 0..heads {
            let q = &q64[i * wide + h * dim..][..dim];
            want.extend(reference::attend(q, k, v, [kv_heads, h / (heads / kv_heads)], f64::from(scale)));
        }
    }
    t.of::<T>(&format!("decode{dim}"), &shape, error(got.iter().copied(), &want), 3e-3);

    // A row alone gives the same bits.
    for i in [0, rows.len() / 2, rows.len() - 1] {
        let alone = caches.attend(c, layout, &rows[i..i + 1], &q[i * wide..][..wide], scale)?;
        t.holds("decode: row alone", &shape, alone == got[i * wide..][..wide]);
    }
    // Rows without a place become NaN, the others stay.
    let mut bad = rows.clone();
    bad[0] = (lens.len() as i32, 0);
    bad[1] = (0, caches.room[0] as i32);
    bad[2] = (-1, 5);
    if bad.len() > 5 {
        bad[3] = (0, -1);
        bad[4] = (0, i32::MAX - 1);
    }
    let odd = caches.attend(c, layout, &bad, &q, scale)?;
    let right = odd
        .chunks(wide)
        .zip(got.chunks(wide))
        .zip(bad.iter().zip(&rows))
        .all(|((odd, got), (bad, row))| if bad == row { odd == got } else { odd.iter().all(|x| x.is_nan()) });
    t.holds("decode: no place", &shape, right);
    t.holds("decode: caches as before", &shape, caches.intact(c, narrow)?);
    if size_of::<T>() == 2 {
        together(c, r, t, &caches, (layout, &shape, scale))?;
    }
    Ok(())
}

/// The last tokens of every sequence, together, and a span that leaves its cache.
fn together<T: Element>(
    c: &Context,
    r: &mut Random,
    t: &mut Table,
    caches: &Caches<T>,
    (layout, shape, scale): (CacheLayout, &str, f32),
) -> Done {
    let CacheLayout { heads, kv_heads, dim } = layout;
    let (wide, narrow) = (heads * dim, kv_heads * dim);
    let (mut spans, mut row) = (Vec::new(), 0);
    for (seq, len) in caches.lens.iter().enumerate() {
        let rows = 1 + r.below((*len).min(300));
        spans.push(Span { row, rows, position: len - rows, seq });
        row += rows;
    }
    let q = r.values::<T>(row * wide, 1.5);
    let got = caches.attend_together(c, layout, &spans, &q, scale)?;
    let (q64, k64, v64) = (f64s(&q), f64s(&caches.k), f64s(&caches.v));
    let mut want = Vec::new();
    for span in &spans {
        let first: usize = caches.lens[..span.seq].iter().sum();
        for i in 0..span.rows {
            let [k, v] = [&k64, &v64].map(|x| &x[first * narrow..(first + span.position + i + 1) * narrow]);
            for h in 0..heads {
                let q = &q64[(span.row + i) * wide + h * dim..][..dim];
                want.extend(reference::attend(q, k, v, [kv_heads, h / (heads / kv_heads)], f64::from(scale)));
            }
        }
    }
    t.of::<T>(&format!("decode{dim} together"), shape, error(got.iter().copied(), &want), 3e-3);
    spans[0].position = caches.room[0];
    let odd = caches.attend_together(c, layout, &spans, &q, scale)?;
    let border = spans[0].rows * wide;
    let right = odd[..border].iter().all(|x| x.is_nan()) && odd[border..] == got[border..];
    t.holds("decode together: no place", shape, right);
    Ok(())
}
