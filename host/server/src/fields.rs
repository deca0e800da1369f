//! Reads the fields of a JSON object one by one. Owns that every field is either understood or told: wrong types and
//! fields that would be silently without effect are errors that name them. Must not know which fields there are.

use crate::error::ApiError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The fields that are still to be read. `null` is as good as absent.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// In front of the names of fields in errors.
    path: String,
}

impl Fields {
    /// Of a whole body.
    pub fn of(body: Value) -> Result<Self, ApiError> {
        Self::within(body, "")
    }

    /// Of an object within one, for example `messages[0]`.
    pub fn within(value: Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(mut map) => {
                map.retain(|_, value| !value.is_null());
                let path = if path.is_empty() { String::new() } else { format!("{path}.") };
                Ok(Fields { map, path })
            }
            other if path.is_empty() => {
                Err(ApiError::bad(format!("the body must be a JSON object, not {}", kind(&other))))
            }
            other => Err(ApiError::field(path, format!("`{path}` must be an object, not {}", kind(&other)))),
        }
    }

    /// A field's full name.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// A field as it is.
    pub fn value(&mut self, field: &str) -> Option<Value> {
        self.map.shift_remove(field)
    }

    /// A field of a type that `want` describes.
    pub fn optional<T: DeserializeOwned>(&mut self, field: &str, want: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let found = kind(&value);
        match serde_json::from_value(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => {
                let name = self.name(field);
                Err(ApiError::field(&name, format!("`{name}` must be {want}; found {found}")))
            }
        }
    }

    pub fn required<T: DeserializeOwned>(&mut self, field: &str, want: &str) -> Result<T, ApiError> {
        let name = self.name(field);
        let value = self.optional(field, want)?;
        value.ok_or_else(|| ApiError::field(&name, format!("`{name}` is missing; it must be {want}")))
    }

    pub fn flag(&mut self, field: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.optional(field, "true or false")?.unwrap_or(default))
    }

    pub fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        self.optional(field, "a string")
    }

    /// Refuses a field unless it has a value that says nothing.
    pub fn neutral(&mut self, field: &str, nothing: &[Value]) -> Result<(), ApiError> {
        let Some(value) = self.value(field) else { return Ok(()) };
        // 0 and 0.0 say the same.
        let same = |one: &Value| *one == value || one.as_f64().is_some_and(|n| value.as_f64() == Some(n));
        if nothing.iter().any(same) {
            return Ok(());
        }
        let name = self.name(field);
        let given = if value.is_object() || value.is_array() { String::new() } else { format!(" = {value}") };
        Err(ApiError::unsupported(&name, &format!("`{name}`{given}")))
    }

    /// Refuses whatever was not read and is not `harmless`.
    pub fn finish(self, harmless: &[&str]) -> Result<(), ApiError> {
        match self.map.keys().find(|field| !harmless.contains(&field.as_str())) {
            Some(field) => {
                let name = self.name(field);
                Err(ApiError::unsupported(&name, &format!("the field `{name}`")))
            }
            None => Ok(()),
        }
    }
}

/// What a value is, in words.
pub(crate) fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}
