//! Columns as they cross the border. Owns the check that a column has the type and length `prl.h` promises; must not know
//! what any column means.

use crate::Error;
use prl_abi::ids::{axis, col, dtype};
use prl_abi::{Column, Str};
use std::ops::Range;

/// Part `row` of an axis, by its list of starts.
pub(crate) fn part(starts: &[u64], row: usize) -> Range<usize> {
    starts[row] as usize..starts[row + 1] as usize
}

/// A sample's part of a column that says NaN where there is nothing.
pub(crate) fn known(values: &[f32]) -> Option<&[f32]> {
    values.first().is_none_or(|v| !v.is_nan()).then_some(values)
}

/// The host promises UTF-8; should it break that promise the text is cut before the first bad byte.
pub(crate) fn text<'a>(raw: Str) -> &'a str {
    // SAFETY: strings reach this function only from columns, whose contents follow `prl.h` for `'a`.
    let bytes: &'a [u8] = unsafe { raw.bytes() }.unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default(),
    }
}

/// Element types by their id.
pub(crate) trait Element {
    const DTYPE: u32;
}
impl Element for u8 {
    const DTYPE: u32 = dtype::U8;
}
impl Element for u32 {
    const DTYPE: u32 = dtype::U32;
}
impl Element for u64 {
    const DTYPE: u32 = dtype::U64;
}
impl Element for f32 {
    const DTYPE: u32 = dtype::F32;
}
impl Element for f64 {
    const DTYPE: u32 = dtype::F64;
}
impl Element for Str {
    const DTYPE: u32 = dtype::STR;
}

/// All columns that came with a group or a batch.
pub(crate) struct Columns<'a> {
    columns: &'a [Column],
}

impl<'a> Columns<'a> {
    /// # Safety
    /// `columns` points at `n` columns that follow `prl.h` and stay unchanged for `'a`.
    pub unsafe fn from_raw(columns: *const Column, n: u32) -> Result<Self, Error> {
        // SAFETY: by the contract of this function.
        let columns = unsafe { prl_abi::view(columns, n as usize) }.ok_or("the columns are null")?;
        Ok(Columns { columns })
    }

    /// A column that the host must pass, with `len` elements.
    pub fn get<T: Element>(&self, id: u32, len: usize) -> Result<&'a [T], Error> {
        self.optional(id, len)?.ok_or_else(|| format!("the host gave no column {}", name(id)).into())
    }

    /// A column that may be absent.
    pub fn optional<T: Element>(&self, id: u32, len: usize) -> Result<Option<&'a [T]>, Error> {
        let Some(column) = self.columns.iter().find(|c| c.id == id) else { return Ok(None) };
        let name = name(id);
        if column.dtype != T::DTYPE || column.len != len || column.width != 1 || column.axis < axis::GROUP {
            return Err(format!(
                "column {name} has type {}, width {} and {} elements where type {}, width 1 and {len} were expected",
                column.dtype,
                column.width,
                column.len,
                T::DTYPE
            )
            .into());
        }
        // SAFETY: id, type and length are as `prl.h` says, and the pointer follows it by the contract of `from_raw`.
        let values = unsafe { prl_abi::view(column.ptr.cast(), len) };
        values.map(Some).ok_or_else(|| format!("column {name} is null").into())
    }
}

fn name(id: u32) -> &'static str {
    col::ALL.iter().find(|(_, i)| *i == id).map_or("?", |(name, _)| name)
}
