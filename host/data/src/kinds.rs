//! What a file is, before anything is read from it. Owns the kinds that hold no rows, and what their owner can do; must not know
//! the kinds that do.

use crate::{DataError, wrong};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

const PACKED: &str = "it is packed: unpack it first";
const TABLE: &str = "tables of text are not read: write it as JSON lines or Parquet, with pandas by \
                     `to_json(\"train.jsonl\", orient=\"records\", lines=True)`";
const ARROW: &str = "Arrow's files are not read, nor folders of `save_to_disk`: write it as Parquet, with `datasets` by \
                     `load_from_disk(…).to_parquet(\"train.parquet\")`";
const PARQUET: &str = "it is Parquet: name it `.parquet`";
const UTF_16: &str = "it is text in UTF-16: write it as UTF-8";
/// The files of other kinds by their first bytes.
const BEGINNINGS: [(&[u8], &str); 10] = [
    (b"\x1f\x8b", PACKED),
    (b"\x28\xb5\x2f\xfd", PACKED),
    (b"PK\x03\x04", PACKED),
    (b"\xfd7zXZ\0", PACKED),
    (b"BZh", PACKED),
    (b"ARROW1", ARROW),
    (b"\xff\xff\xff\xff", ARROW),
    (b"PAR1", PARQUET),
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
];
/// What some programs put before text in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// EMFILE and ENFILE.
const TOO_MANY_FILES: [i32; 2] = [24, 23];

/// Why a file of this name holds no rows that can be read.
pub(crate) fn foreign(name: &str) -> Option<&'static str> {
    match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
        "csv" | "tsv" => Some(TABLE),
        "gz" | "zst" | "xz" | "bz2" | "zip" | "tar" | "tgz" | "7z" => Some(PACKED),
        "arrow" | "feather" => Some(ARROW),
        _ => None,
    }
}

/// Opens a file that has an end.
///
/// # Errors
/// A kind of file without rows, told by its name; a pipe or a device; a file that cannot be read.
pub(crate) fn open(path: &Path) -> Result<File, DataError> {
    let told = |error: io::Error| wrong(path, reason(&error));
    if let Some(reason) = path.to_str().and_then(foreign) {
        return Err(wrong(path, reason));
    }
    // Whoever opens a pipe waits for its other end.
    if !std::fs::metadata(path).map_err(told)?.is_file() {
        return Err(wrong(path, "it is a pipe, a device or a folder: data is read from files, so write it to one"));
    }
    File::open(path).map_err(told)
}

/// Where the text of a file begins.
///
/// # Errors
/// It is no text, by its first bytes; it cannot be read.
pub(crate) fn start(path: &Path, file: &mut File) -> Result<u64, DataError> {
    let mut first = Vec::new();
    file.take(8).read_to_end(&mut first).map_err(|e| wrong(path, reason(&e)))?;
    if let Some((_, reason)) = BEGINNINGS.iter().find(|(beginning, _)| first.starts_with(beginning)) {
        return Err(wrong(path, reason));
    }
    Ok(if first.starts_with(MARK) { MARK.len() as u64 } else { 0 })
}

/// An error of the system, with what to do where it says little.
pub(crate) fn reason(error: &io::Error) -> String {
    match is_too_many_files(error) {
        true => format!("{error}: `ulimit -n` says how many there may be, and raises it"),
        false => error.to_string(),
    }
}

/// Whether the process, or all together, have as many files open as they may.
pub fn is_too_many_files(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}
