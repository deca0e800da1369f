//! The rows of files: JSON lines and lists in JSON, and which of them a file has. Owns these formats; must not know which files
//! are wanted.

use crate::records::records;
use crate::{DataError, kinds, wrong};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;
use std::cell::Cell;
use std::fmt::{self, Formatter};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Values of a list that are read ahead.
const AHEAD: usize = 16;
/// Longest row in JSON, bytes. What is longer is no row, or no text.
const MAX_ROW: u64 = 32 << 20;

/// What a file is whose first line is a bracket.
const OVER_LINES: &str =
    "it is one JSON value over several lines: write a row a line, or a list of rows into a `.json` file";

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `file:line`, or `file: row N` where there are no lines; counted from 1.
    pub place: String,
    /// What it holds, or why that cannot be said.
    pub value: Result<Value, String>,
}

pub(crate) type Rows = Box<dyn Iterator<Item = Result<Row, DataError>>>;

/// The rows of all files, one after the other: `.jsonl` and `.ndjson` have one JSON value a line, `.json` has a list of them
/// or the same, `.parquet` a record each, whose structs and lists become objects and arrays; of these only `columns` are read,
/// and what is null in a struct is absent. A file of another ending is JSON lines. A few rows are in memory at a time.
///
/// # Errors
/// A file that cannot be read or is of another kind, or has a row in JSON of more than 32 MiB: of the first one now, of others
/// from the iterator.
pub fn rows(
    files: Vec<PathBuf>,
    columns: &'static [&'static str],
) -> Result<impl Iterator<Item = Result<Row, DataError>>, DataError> {
    let mut files = files.into_iter();
    // The first file's errors are told before anything else happens.
    let first = files.next().map(|file| open(file, columns)).transpose()?;
    let rest = files.flat_map(|file| match open(file, columns) {
        Ok(rows) => rows,
        Err(error) => Box::new(std::iter::once(Err(error))),
    });
    Ok(first.into_iter().flatten().chain(rest))
}

fn open(path: PathBuf, columns: &[&str]) -> Result<Rows, DataError> {
    let mut file = kinds::open(&path)?;
    let ending = path.extension().and_then(|ending| ending.to_str());
    if ending == Some("parquet") {
        return records(path, file, columns);
    }
    let start = SeekFrom::Start(kinds::start(&path, &mut file)?);
    let mut text = BufReader::new(file);
    let begun = text.seek(start).and_then(|_| Ok(ending == Some("json") && begins_a_list(&mut text)?));
    match begun.and_then(|is_list| text.seek(start).map(|_| is_list)) {
        Ok(true) => list(path, text.into_inner()),
        Ok(false) => Ok(Box::new(lines(path, text))),
        Err(error) => Err(wrong(&path, error)),
    }
}

fn begins_a_list(file: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = file.fill_buf()?;
        match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(first) => return Ok(*first == b'['),
            None if bytes.is_empty() => return Ok(false),
            None => {
                let blank = bytes.len();
                file.consume(blank);
            }
        }
    }
}

fn lines(path: PathBuf, file: BufReader<File>) -> impl Iterator<Item = Result<Row, DataError>> {
    let mut file = Some(file);
    let (mut number, mut line, mut first) = (0, Vec::new(), true);
    std::iter::from_fn(move || {
        loop {
            line.clear();
            number += 1;
            match file.as_mut()?.take(MAX_ROW + 1).read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) if line.len() as u64 > MAX_ROW => {
                    file = None;
                    return Some(Err(wrong(&path, format!("line {number} has {}", too_long()))));
                }
                Ok(_) => {}
                Err(error) => {
                    file = None;
                    return Some(Err(wrong(&path, error)));
                }
            }
            let text = line.trim_ascii();
            if first && matches!(text, b"{" | b"[") {
                file = None;
                return Some(Err(wrong(&path, OVER_LINES)));
            }
            first &= text.is_empty();
            if !text.is_empty() {
                let place = format!("{}:{number}", path.display());
                return Some(Ok(Row { place, value: serde_json::from_slice(&line).map_err(|e| e.to_string()) }));
            }
        }
    })
}

fn too_long() -> String {
    format!("more than {} MiB: is it a file of another kind?", MAX_ROW >> 20)
}

/// The parser hands values out of its own recursion, so it has a thread to itself. It ends when nobody takes them.
fn list(path: PathBuf, file: File) -> Result<Rows, DataError> {
    let (sender, values) = sync_channel(AHEAD);
    let parse = move || {
        let read = Cell::new(0);
        let file = BufReader::new(OfOneValue { file, read: &read });
        let mut parser = serde_json::Deserializer::from_reader(file);
        let items = Items { sender: &sender, read: &read };
        let ended = (&mut parser).deserialize_seq(items).and_then(|()| parser.end());
        if let Err(error) = ended {
            // Nobody may be there to hear it.
            let _ = sender.send(Err(error.to_string()));
        }
    };
    std::thread::Builder::new().name("json".into()).spawn(parse).map_err(|e| wrong(&path, e))?;
    Ok(Box::new(values.into_iter().enumerate().map(move |(at, value)| match value {
        Ok(value) => Ok(Row { place: format!("{}: row {}", path.display(), at + 1), value: Ok(value) }),
        Err(error) => Err(wrong(&path, format!("it is no list in JSON: {error}"))),
    })))
}

/// A file in which no value is too long. Counts what was read since the last value, to the size of a buffer.
struct OfOneValue<'a> {
    file: File,
    read: &'a Cell<u64>,
}

impl Read for OfOneValue<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.read.get() > MAX_ROW {
            return Err(io::Error::other(format!("a value has {}", too_long())));
        }
        let got = self.file.read(bytes)?;
        self.read.set(self.read.get() + got as u64);
        Ok(got)
    }
}

/// Sends each value of a list.
struct Items<'a> {
    sender: &'a SyncSender<Result<Value, String>>,
    read: &'a Cell<u64>,
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(value) = items.next_element()? {
            self.sender.send(Ok(value)).map_err(A::Error::custom)?;
            self.read.set(0);
        }
        Ok(())
    }
}
