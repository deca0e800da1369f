//! JSON and numbers as Python prints them, because chat templates were written against Python's `json.dumps`. Owns the
//! `tojson` filter; knows nothing of chat.

use crate::arguments::digits;
use crate::bounds;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

/// A float as Python's `repr` writes it.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        if let Some((mantissa, exponent)) = text.split_once('e') {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
            return format!("{mantissa}e{sign}{digits:0>2}");
        }
        return text;
    }
    let text = value.to_string();
    if text.contains('.') { text } else { format!("{text}.0") }
}

/// The `tojson` filter: `json.dumps(value, ensure_ascii=False)` with `indent`, `separators` and `sort_keys`.
pub(crate) fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair")),
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let style = Style {
        indent,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        sort_keys: sort_keys.unwrap_or(false),
        item,
        key,
        most: bounds::MAX_TEXT,
    };
    let mut out = String::new();
    style.write(&value, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

/// `json.dumps(value, ensure_ascii=False)`.
pub(crate) fn dumps(value: &Json) -> String {
    dump(&Value::from(Serde(value)))
}

/// `json.dumps(value, ensure_ascii=False)` of what was JSON.
pub(crate) fn dump(value: &Value) -> String {
    Style::json(None, ", ").of(value)
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
pub(crate) fn dumps_indented(value: &Json, indent: usize) -> String {
    Style::json(Some(indent), ",").of(&Value::from(Serde(value)))
}

struct Style {
    indent: Option<usize>,
    ensure_ascii: bool,
    sort_keys: bool,
    item: String,
    key: String,
    /// Bytes beyond which nothing more is written.
    most: usize,
}

impl Style {
    fn json(indent: Option<usize>, item: &str) -> Self {
        let (item, key) = (item.to_owned(), ": ".to_owned());
        Style { indent, ensure_ascii: false, sort_keys: false, item, key, most: usize::MAX }
    }

    fn of(&self, value: &Value) -> String {
        let mut out = String::new();
        // What is JSON already has nothing in it that is not JSON.
        let written = self.write(value, 0, &mut out);
        debug_assert!(written.is_ok(), "{value}");
        out
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > bounds::MAX_DEPTH {
            let reason = format!("tojson: lists and objects are more than {} deep in each other", bounds::MAX_DEPTH);
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
        if out.len() > self.most {
            return Err(bounds::exceeded());
        }
        if let Some(digits) = digits(value) {
            out.push_str(digits);
            return Ok(());
        }
        match value.kind() {
            ValueKind::Undefined => {
                return Err(Error::new(ErrorKind::InvalidOperation, "an undefined value is not JSON serializable"));
            }
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (n, key) in keys.iter().enumerate() {
                    self.separate(n, depth + 1, out);
                    self.string(&key.to_string(), out);
                    out.push_str(&self.key);
                    self.write(&value.get_item(key)?, depth + 1, out)?;
                }
                self.close(keys.len(), depth, '}', out);
            }
            _ => {
                out.push('[');
                let mut count = 0;
                for item in value.try_iter()? {
                    self.separate(count, depth + 1, out);
                    self.write(&item, depth + 1, out)?;
                    count += 1;
                }
                self.close(count, depth, ']', out);
            }
        }
        Ok(())
    }

    fn separate(&self, n: usize, depth: usize, out: &mut String) {
        if n > 0 {
            out.push_str(&self.item);
        }
        self.newline(depth, out);
    }

    fn close(&self, count: usize, depth: usize, bracket: char, out: &mut String) {
        if count > 0 {
            self.newline(depth, out);
        }
        out.push(bracket);
    }

    fn newline(&self, depth: usize, out: &mut String) {
        if let Some(width) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ensure_ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_pythons() {
        for (value, text) in [
            (0.5, "0.5"),
            (3.0, "3.0"),
            (-0.0, "-0.0"),
            (1e-7, "1e-07"),
            (1.5e-5, "1.5e-05"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
        ] {
            assert_eq!(float(value), text);
        }
    }
}
