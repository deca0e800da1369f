//! Arguments of environments and of tools: a struct, its JSON Schema and its checks from one declaration. Owns the
//! macro [`args!`](crate::args) and what it expands to; must not know what the arguments are for.

use crate::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Arguments with a schema. Declare them with [`args!`](crate::args).
pub trait Args: Sized + 'static {
    /// Their JSON Schema: an object.
    fn schema() -> Value;

    /// Reads and checks a JSON object.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidConfig`](crate::ErrorCode::InvalidConfig) that names the key.
    fn parse(json: &str) -> Result<Self>;
}

/// For environments without arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoArgs;

impl Args for NoArgs {
    fn schema() -> Value {
        object(Map::new(), &[])
    }

    fn parse(json: &str) -> Result<Self> {
        checked::read(json, &[]).map(|_| NoArgs)
    }
}

/// A type that an argument may have.
pub trait ArgType: Serialize + DeserializeOwned {
    /// Its JSON Schema.
    fn schema() -> Map<String, Value>;
}

fn simple(kind: &str) -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), json!(kind))])
}

macro_rules! unsigned {
    ($($ty:ty)*) => {
        $(impl ArgType for $ty {
            fn schema() -> Map<String, Value> {
                let mut schema = simple("integer");
                schema.insert("minimum".into(), json!(0));
                schema
            }
        })*
    };
}

unsigned!(u32 u64 usize);

macro_rules! simple {
    ($($ty:ty => $kind:literal),*) => {
        $(impl ArgType for $ty {
            fn schema() -> Map<String, Value> {
                simple($kind)
            }
        })*
    };
}

simple!(i32 => "integer", i64 => "integer", f64 => "number", bool => "boolean", String => "string");

impl<T: ArgType> ArgType for Vec<T> {
    fn schema() -> Map<String, Value> {
        let mut schema = simple("array");
        schema.insert("items".into(), T::schema().into());
        schema
    }
}

impl<T: ArgType> ArgType for Option<T> {
    fn schema() -> Map<String, Value> {
        let mut schema = T::schema();
        if let Some(kind) = schema.get_mut("type") {
            *kind = json!([kind.take(), "null"]);
        }
        schema
    }
}

/// What an argument must keep to.
#[doc(hidden)]
pub enum Bound {
    Min(f64),
    Max(f64),
    OneOf(Vec<Value>),
}

impl Bound {
    pub fn min(limit: impl Into<f64>) -> Self {
        Bound::Min(limit.into())
    }

    pub fn max(limit: impl Into<f64>) -> Self {
        Bound::Max(limit.into())
    }

    pub fn one_of<T: Serialize>(words: impl IntoIterator<Item = T>) -> Self {
        Bound::OneOf(words.into_iter().map(|word| json!(word)).collect())
    }

    /// How `value` breaks it.
    fn broken(&self, value: &Value) -> Option<String> {
        match self {
            Bound::Min(limit) => value.as_f64().filter(|v| v < limit).map(|_| format!("it must be at least {limit}")),
            Bound::Max(limit) => value.as_f64().filter(|v| v > limit).map(|_| format!("it must be at most {limit}")),
            Bound::OneOf(words) => (!words.contains(value)).then(|| {
                let words: Vec<String> = words.iter().map(Value::to_string).collect();
                format!("it must be one of {}", words.join(", "))
            }),
        }
    }
}

/// A number as its schema would have it: whole ones without a point.
fn number(limit: f64) -> Value {
    if limit.fract() == 0.0 && limit.abs() < 1e15 { json!(limit as i64) } else { json!(limit) }
}

/// One key of a declaration.
#[doc(hidden)]
pub struct Key {
    pub name: &'static str,
    pub doc: &'static str,
    pub schema: Map<String, Value>,
    pub default: Option<Value>,
    pub bounds: Vec<Bound>,
}

fn object(properties: Map<String, Value>, required: &[&str]) -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required })
}

#[doc(hidden)]
pub mod checked {
    //! What the macro [`args!`](crate::args) calls.

    pub use super::{Bound, Key};
    use super::{Map, Value, json, number, object};
    use crate::{ArgType, Error, Result};

    pub fn schema(keys: Vec<Key>) -> Value {
        let required: Vec<&str> = keys.iter().filter(|key| key.default.is_none()).map(|key| key.name).collect();
        let properties = keys.iter().map(|key| {
            let mut schema = key.schema.clone();
            schema.insert("description".into(), json!(key.doc.trim()));
            for bound in &key.bounds {
                match bound {
                    Bound::Min(limit) => schema.insert("minimum".into(), number(*limit)),
                    Bound::Max(limit) => schema.insert("maximum".into(), number(*limit)),
                    Bound::OneOf(words) => schema.insert("enum".into(), json!(words)),
                };
            }
            if let Some(default) = &key.default {
                schema.insert("default".into(), default.clone());
            }
            (key.name.to_owned(), Value::Object(schema))
        });
        object(properties.collect(), &required)
    }

    /// The object in `json`, with defaults filled in.
    pub fn read(json: &str, keys: &[Key]) -> Result<Map<String, Value>> {
        let bad = |message: String| Err(Error::invalid_config(message));
        let mut given = match serde_json::from_str::<Value>(json) {
            Ok(Value::Object(given)) => given,
            Ok(_) => return bad("the arguments are not a JSON object".into()),
            Err(error) => return bad(format!("the arguments are not a JSON object: {error}")),
        };
        if let Some(name) = given.keys().find(|name| !keys.iter().any(|key| key.name == name.as_str())) {
            let known: Vec<String> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
            let known =
                if known.is_empty() { "there are none".into() } else { format!("there are {}", known.join(", ")) };
            return bad(format!("unknown argument `{name}`; {known}"));
        }
        for key in keys {
            match (given.get(key.name), &key.default) {
                (Some(value), _) => {
                    if let Some(broken) = key.bounds.iter().find_map(|bound| bound.broken(value)) {
                        return bad(format!("`{}` is {value}; {broken}", key.name));
                    }
                }
                (None, Some(default)) => {
                    given.insert(key.name.to_owned(), default.clone());
                }
                (None, None) => return bad(format!("`{}` is missing", key.name)),
            }
        }
        Ok(given)
    }

    pub fn take<T: ArgType>(given: &mut Map<String, Value>, name: &str) -> Result<T> {
        let value = given.remove(name).unwrap_or_default();
        serde_json::from_value(value).map_err(|error| Error::invalid_config(format!("`{name}`: {error}")))
    }
}

/// Declares a struct of arguments: `name: type = default => [bounds];` for each, its doc comment becoming the schema's
/// description. Without a default the argument is required. Types are those of [`ArgType`], bounds `min(n)`, `max(n)`
/// and `one_of([...])`.
///
/// ```
/// use prl_env::Args as _;
///
/// prl_env::args! {
///     /// What the run may set.
///     pub struct Args {
///         /// How many.
///         count: u32 = 3 => [min(1), max(9)];
///         /// Of what.
///         kind: String => [one_of(["apples", "pears"])];
///     }
/// }
///
/// let args = Args::parse(r#"{"kind": "pears"}"#).unwrap();
/// assert_eq!((args.count, args.kind.as_str()), (3, "pears"));
/// let error = Args::parse(r#"{"kind": "pears", "count": 10}"#).unwrap_err();
/// assert_eq!(error.message, "`count` is 10; it must be at most 9");
/// ```
#[macro_export]
macro_rules! args {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident : $ty:ty $(= $default:expr)? $(=> [$($bound:ident($limit:expr)),+])? ;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $( $(#[doc = $doc])+ $vis $key: $ty, )*
        }

        impl $name {
            fn keys() -> Vec<$crate::checked::Key> {
                vec![$(
                    {
                        #[allow(unused_mut, unused_assignments)]
                        let mut default: Option<$crate::serde_json::Value> = None;
                        $( let value: $ty = $default; default = Some($crate::serde_json::json!(value)); )?
                        $crate::checked::Key {
                            name: stringify!($key),
                            doc: concat!($($doc),+),
                            schema: <$ty as $crate::ArgType>::schema(),
                            default,
                            bounds: vec![$($($crate::checked::Bound::$bound($limit)),+)?],
                        }
                    },
                )*]
            }
        }

        impl $crate::Args for $name {
            fn schema() -> $crate::serde_json::Value {
                $crate::checked::schema(Self::keys())
            }

            fn parse(json: &str) -> $crate::Result<Self> {
                #[allow(unused_mut, unused_variables)]
                let mut given = $crate::checked::read(json, &Self::keys())?;
                Ok($name { $( $key: $crate::checked::take(&mut given, stringify!($key))?, )* })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::args! {
        /// For the tests.
        pub struct Sample {
            /// A count.
            count: u32 = 3 => [min(1), max(9)];
            /// A share.
            share: f64 = 0.5;
            /// A word,
            /// or another.
            word: String => [one_of(["a", "b"])];
            /// Perhaps.
            maybe: Option<i64> = None;
            /// Many.
            list: Vec<String> = Vec::new();
        }
    }

    #[test]
    fn schema_and_checks_come_from_one_place() {
        let schema = Sample::schema();
        assert_eq!(schema["required"], json!(["word"]));
        assert_eq!(
            schema["properties"]["count"],
            json!({ "type": "integer", "minimum": 1, "maximum": 9, "default": 3, "description": "A count." })
        );
        assert_eq!(schema["properties"]["maybe"]["type"], json!(["integer", "null"]));
        assert_eq!(schema["properties"]["word"]["description"], "A word, or another.");
        let parsed = Sample::parse(r#"{"word": "b", "maybe": 4, "list": ["x"]}"#).unwrap();
        assert_eq!(parsed, Sample { count: 3, share: 0.5, word: "b".into(), maybe: Some(4), list: vec!["x".into()] });
        for (json, words) in [
            ("[]", "the arguments are not a JSON object"),
            ("{", "the arguments are not a JSON object: EOF while parsing an object at line 1 column 1"),
            ("{}", "`word` is missing"),
            (r#"{"word": "c"}"#, r#"`word` is "c"; it must be one of "a", "b""#),
            (r#"{"word": "a", "count": 0}"#, "`count` is 0; it must be at least 1"),
            (
                r#"{"word": "a", "counts": 0}"#,
                "unknown argument `counts`; there are `count`, `share`, `word`, `maybe`, `list`",
            ),
            (r#"{"word": "a", "share": "x"}"#, "`share`: invalid type: string \"x\", expected f64"),
        ] {
            let error = Sample::parse(json).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (crate::ErrorCode::InvalidConfig, words), "{json}");
        }
        assert!(NoArgs::parse("{}").is_ok());
        assert_eq!(NoArgs::parse(r#"{"x": 1}"#).unwrap_err().message, "unknown argument `x`; there are none");
    }
}
