//! How much a rendering may cost: the work and the text of one conversation. Owns these bounds and what is said where one is
//! passed; must not know what is rendered.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::fmt::{self, Write};
use std::io;

/// The longest text of one conversation in bytes: some four million tokens, which are longer than any model's context. The
/// tokenizer's own structures take up to 200 bytes for each of them.
pub(crate) const MAX_TEXT: usize = 16 << 20;

/// The work of one rendering in the template engine's fuel: one for an operation and one for every 64 bytes that are made, so that
/// it bounds the memory of a template, too. A conversation of 3,000 messages takes less than a hundredth of it.
pub(crate) const FUEL: u64 = 16 << 20;

/// How deep lists and objects may be in each other where they are written.
pub(crate) const MAX_DEPTH: usize = 512;

/// Why a template was stopped.
pub(crate) fn out_of_fuel() -> String {
    format!("stopped after {FUEL} operations, which is more than any conversation needs; look for a loop without end")
}

/// Why a text is refused.
pub(crate) fn too_long() -> String {
    format!("the text has more than {} MiB, which is longer than any model's context", MAX_TEXT >> 20)
}

/// A value as the engine prints it, up to the bound.
pub(crate) fn printed(value: &Value) -> Result<String, Error> {
    let refuse = || Error::new(ErrorKind::InvalidOperation, too_long());
    // Printing a list goes through all of it, and lists can be longer than memory.
    let mut left = MAX_TEXT;
    if !fits(value, &mut left) {
        return Err(refuse());
    }
    let mut out = Bounded::default();
    // Nothing but the bound makes writing fail.
    write!(out, "{value}").map_err(|_| refuse())?;
    Ok(out.text)
}

/// Whether a value and all in it are no more things than are `left`.
fn fits(value: &Value, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter().map_or(true, |mut items| items.all(|item| fits(&item, left)))
        }
        ValueKind::Map => value
            .try_iter()
            .map_or(true, |mut keys| keys.all(|key| value.get_item(&key).map_or(true, |item| fits(&item, left)))),
        _ => true,
    }
}

/// Takes text up to the bound.
#[derive(Default)]
pub(crate) struct Bounded {
    pub text: String,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > MAX_TEXT {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

impl io::Write for &mut Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.write_str(text).map_err(|_| io::Error::other(too_long()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
