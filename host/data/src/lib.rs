//! Rows of training data in files: JSON lines, lists in JSON, Parquet, and folders of these.
//!
//! Owns the formats, the order of files and the place that a row is named by. Must not know what a row means.

use parquet::errors::ParquetError;
use parquet::file::reader::SerializedFileReader;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Rows that are no good above this share of all stop the reading: the data is then not what its user thinks it is.
const MAX_BAD_SHARE: f64 = 0.1;
/// Endings of files with rows.
const ENDINGS: [&str; 4] = ["jsonl", "ndjson", "json", "parquet"];

/// Data that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} as training data: {reason}", path.display())]
pub struct DataError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

fn wrong(path: &Path, reason: impl ToString) -> DataError {
    DataError { path: path.to_path_buf(), reason: reason.to_string() }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `file:line`, or `file: row N` where there are no lines; counted from 1.
    pub place: String,
    /// What it holds, or why that cannot be said.
    pub value: Result<Value, String>,
}

type Rows = Box<dyn Iterator<Item = Result<Row, DataError>>>;

/// The rows of a file, or of all files of a folder in the order of their names: `.jsonl` and `.ndjson` have one JSON value a
/// line, `.json` has a list of them, `.parquet` a record each, whose structs and lists become objects and arrays and whose
/// absent values are `null`. A file of another ending is JSON lines. Lines and records are read one after the other; a list in
/// JSON is read whole.
///
/// # Errors
/// A path that cannot be read, a folder without such files; later, from the iterator, a file that breaks off.
pub fn rows(path: &Path) -> Result<impl Iterator<Item = Result<Row, DataError>>, DataError> {
    let mut files = files(path)?.into_iter();
    // The first file's errors are told before anything else happens.
    let first = files.next().map(open).transpose()?;
    let rest = files.flat_map(|file| match open(file) {
        Ok(rows) => rows,
        Err(error) => Box::new(std::iter::once(Err(error))),
    });
    Ok(first.into_iter().flatten().chain(rest))
}

fn files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| wrong(path, e))? {
        let file = entry.map_err(|e| wrong(path, e))?.path();
        if file.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known)) {
            files.push(file);
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(wrong(path, format!("the folder has no file that ends in .{}", ENDINGS.join(", .")))),
        false => Ok(files),
    }
}

fn open(path: PathBuf) -> Result<Rows, DataError> {
    let file = File::open(&path).map_err(|e| wrong(&path, e))?;
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("parquet") => parquet(path, file),
        Some("json") => list(&path, file),
        _ => Ok(Box::new(lines(path, file))),
    }
}

fn lines(path: PathBuf, file: File) -> impl Iterator<Item = Result<Row, DataError>> {
    let mut file = Some(BufReader::new(file));
    let (mut number, mut line) = (0, Vec::new());
    std::iter::from_fn(move || {
        loop {
            line.clear();
            match file.as_mut()?.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => {
                    file = None;
                    return Some(Err(wrong(&path, error)));
                }
            }
            number += 1;
            if !line.trim_ascii().is_empty() {
                let place = format!("{}:{number}", path.display());
                return Some(Ok(Row { place, value: serde_json::from_slice(&line).map_err(|e| e.to_string()) }));
            }
        }
    })
}

fn list(path: &Path, mut file: File) -> Result<Rows, DataError> {
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|e| wrong(path, e))?;
    let values: Vec<Value> = serde_json::from_str(&text)
        .map_err(|e| wrong(path, format!("it is no list in JSON: {e}; name a file of JSON lines .jsonl")))?;
    let path = path.display().to_string();
    let row = move |(at, value)| Ok(Row { place: format!("{path}: row {}", at + 1), value: Ok(value) });
    Ok(Box::new(values.into_iter().enumerate().map(row)))
}

fn parquet(path: PathBuf, file: File) -> Result<Rows, DataError> {
    let told = |path: &Path, error: ParquetError| wrong(path, format!("it is no whole Parquet file: {error}"));
    let reader = SerializedFileReader::new(file).map_err(|e| told(&path, e))?;
    let mut records = Some(reader.into_iter().enumerate());
    Ok(Box::new(std::iter::from_fn(move || match records.as_mut()?.next()? {
        (at, Ok(record)) => {
            let place = format!("{}: row {}", path.display(), at + 1);
            Some(Ok(Row { place, value: Ok(record.to_json_value()) }))
        }
        (_, Err(error)) => {
            records = None;
            Some(Err(told(&path, error)))
        }
    })))
}

/// Whether data with so many `good` rows, and these that are `skipped` (place and reason), can be what its user thinks it is.
///
/// # Errors
/// No good row, or more than a tenth of bad ones.
pub fn check_share(path: &Path, good: usize, skipped: &[(String, String)]) -> Result<(), DataError> {
    let bad = skipped.len();
    match skipped.first() {
        Some((place, reason)) if bad as f64 > MAX_BAD_SHARE * (good + bad) as f64 => {
            Err(wrong(path, format!("{bad} of {} rows are unusable; the first is {place}: {reason}", good + bad)))
        }
        _ if good == 0 => Err(wrong(path, "there are no rows")),
        _ => Ok(()),
    }
}
