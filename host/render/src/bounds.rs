//! How much a rendering may cost: the work and the text of one conversation. Owns these bounds and what is said where one is
//! passed; must not know what is rendered.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::fmt::{self, Write};
use std::io;

/// The longest text of one conversation in bytes: some four million tokens, which are longer than any model's context. The
/// tokenizer's own structures take hundreds of bytes for each of them.
pub(crate) const MAX_TEXT: usize = 16 << 20;

/// The work of one rendering in the template engine's fuel: one for an operation and one for every 64 bytes that are made, so that
/// it bounds the memory of a template, too.
pub(crate) const FUEL: u64 = 16 << 20;

/// How deep lists and objects may be in each other where they are written.
pub(crate) const MAX_DEPTH: usize = 512;

/// Why a text is refused.
pub(crate) fn too_long() -> String {
    format!("the text has more than {} MiB, which is longer than any model's context", MAX_TEXT >> 20)
}

/// The engine's error for a text that is too long: one of its bounds like the others.
pub(crate) fn exceeded() -> Error {
    Error::new(ErrorKind::OutOfFuel, too_long())
}

/// What is said of an error that is a bound passed; `None` for others.
pub(crate) fn reason(error: &Error) -> Option<String> {
    let work = || {
        format!(
            "stopped after {FUEL} operations, which is more than any conversation needs; look for a loop without end"
        )
    };
    (error.kind() == ErrorKind::OutOfFuel).then(|| error.detail().map_or_else(work, str::to_owned))
}

/// A value as the engine prints it, up to the bound.
pub(crate) fn printed(value: &Value) -> Result<String, Error> {
    // Printing a list goes through all of it, and lists can be longer than memory. Each item is a character and a comma at least.
    let mut left = MAX_TEXT / 2;
    if !fits(value, &mut left) {
        return Err(exceeded());
    }
    let mut out = Bounded::default();
    // Nothing but the bound makes writing fail.
    write!(out, "{value}").map_err(|_| exceeded())?;
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
    /// Whether there was more than it takes.
    pub full: bool,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > MAX_TEXT {
            self.full = true;
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
