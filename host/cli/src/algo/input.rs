//! Recorded numbers as files: one JSON object, a JSON list of them, or JSON lines; results in the same form. Owns the forms
//! and the line that says what is wrong with one; must not know what is in an object.

use crate::failure::Failure;
use crate::logging;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest input, bytes.
const MOST: u64 = 1 << 30;

/// How many there are, and how they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    One,
    List,
    Lines,
}

/// What a file holds.
pub struct Inputs<T> {
    form: Form,
    /// With the words that name each in messages.
    pub items: Vec<(String, T)>,
}

/// Reads a file, or standard input for `-`.
///
/// # Errors
/// It cannot be read, is no JSON, or holds something else than such objects.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Inputs<T>, Failure> {
    let shown = path.display();
    let bad = |reason: &dyn std::fmt::Display| Failure::input(format_args!("`--input {shown}`: {reason}"));
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().lock().take(MOST + 1).read_to_string(&mut text),
        _ => File::open(path).and_then(|file| file.take(MOST + 1).read_to_string(&mut text)),
    };
    if read.map_err(|error| bad(&error))? as u64 > MOST {
        return Err(bad(&format_args!("it is longer than {} MiB; give its lines in several files", MOST >> 20)));
    }
    let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>().collect::<Result<Vec<_>, _>>();
    let mut values = values.map_err(|error| bad(&format_args!("it is no JSON: {error}")))?;
    let form = match values.as_slice() {
        [] => return Err(bad(&"it is empty")),
        [Value::Array(_)] => Form::List,
        [_] => Form::One,
        _ => Form::Lines,
    };
    if let Some(Value::Array(list)) = values.first_mut().filter(|_| form == Form::List) {
        values = std::mem::take(list);
    }
    let item = |(i, value): (usize, Value)| {
        let name = match form {
            Form::One => format!("`{shown}`"),
            Form::List => format!("item {i} of `{shown}`"),
            Form::Lines => format!("object {} of `{shown}`", i + 1),
        };
        match serde_path_to_error::deserialize(&value) {
            Ok(item) => Ok((name, item)),
            Err(error) if error.path().to_string() == "." => {
                Err(Failure::input(format_args!("{name}: {}", error.inner())))
            }
            Err(error) => Err(Failure::input(format_args!("{name}: {}: {}", error.path(), error.inner()))),
        }
    };
    Ok(Inputs { form, items: values.into_iter().enumerate().map(item).collect::<Result<_, _>>()? })
}

impl<T> Inputs<T> {
    /// Prints one result for each of them, in the form in which they came.
    ///
    /// # Errors
    /// Nobody is there to read.
    pub fn print(&self, results: &[Value]) -> Result<u8, Failure> {
        let lines = || results.iter().map(Value::to_string).collect::<Vec<_>>();
        let text = match (self.form, results) {
            (Form::One, [result]) => pretty(result, 0),
            (Form::List, _) => format!("[\n{}\n]", lines().join(",\n")),
            _ => lines().join("\n"),
        };
        logging::print(&text)
    }
}

/// Objects line by line, lists of numbers on one.
fn pretty(value: &Value, depth: usize) -> String {
    let (inner, outer) = ("  ".repeat(depth + 1), "  ".repeat(depth));
    match value {
        Value::Object(map) if !map.is_empty() => {
            let lines: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{inner}{}: {}", Value::from(key.as_str()), pretty(value, depth + 1)))
                .collect();
            format!("{{\n{}\n{outer}}}", lines.join(",\n"))
        }
        Value::Array(list) if list.iter().any(|item| item.is_object() || item.is_array()) => {
            let lines: Vec<String> = list.iter().map(|item| format!("{inner}{}", pretty(item, depth + 1))).collect();
            format!("[\n{}\n{outer}]", lines.join(",\n"))
        }
        other => other.to_string(),
    }
}

/// One entry for each of `want` things.
///
/// # Errors
/// There is another number of them.
pub fn check_len(name: &str, got: usize, want: usize, of: &str) -> Result<(), String> {
    match got == want {
        true => Ok(()),
        false => Err(format!("`{name}` has {got} entries for {want} {of}")),
    }
}

/// Parts of these lengths cover all tokens.
///
/// # Errors
/// They do not cover `want` tokens.
pub fn check_cover(name: &str, lengths: &[usize], want: usize) -> Result<(), String> {
    match lengths.iter().try_fold(0usize, |sum, len| sum.checked_add(*len)) {
        Some(covered) if covered == want => Ok(()),
        Some(covered) => Err(format!("`{name}` adds up to {covered} of {want} tokens")),
        None => Err(format!("`{name}` adds up to more than {want} tokens")),
    }
}

/// Numbers as the columns of plug-ins and trainer hold them.
///
/// # Errors
/// One is not finite in f32.
pub fn f32s(name: &str, values: &[f64]) -> Result<Vec<f32>, String> {
    let single: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    match single.iter().position(|v| !v.is_finite()) {
        Some(at) => Err(format!("`{name}` has {} at {at}, which is too large", values[at])),
        None => Ok(single),
    }
}

/// f32 values as the numbers they are.
pub fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// A flag, written as 0, 1, true or false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag(pub bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(flag) => Ok(Flag(flag)),
            Value::Number(number) if number.as_f64() == Some(0.0) => Ok(Flag(false)),
            Value::Number(number) if number.as_f64() == Some(1.0) => Ok(Flag(true)),
            other => Err(serde::de::Error::custom(format!("{other} is none of 0, 1, true and false"))),
        }
    }
}
