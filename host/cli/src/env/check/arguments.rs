//! Whether an environment's arguments are described, and bad ones refused with a message. Owns which values are tried.

use super::Found;
use crate::env::example;
use crate::env::open::Opened;
use prl_environment::{Failure, GuestErrorCode, Isolation, StartError};
use serde_json::{Map, Value, json};

/// Values that are tried at most.
const MOST: usize = 200;

/// Tries the arguments of the command line, each default, each edge of what is allowed, and wrong values.
pub async fn check(opened: &Opened) -> Found {
    let schema = &opened.file.info().args_schema;
    let start = |args: Value| opened.start_with(args, Isolation::Rollout, 1);
    start(opened.args.clone()).await.map_err(|error| format!("with {}: {error}", opened.args))?;
    if schema["additionalProperties"] != json!(false) {
        return Err("the schema takes unknown keys, so that a misspelled argument goes unseen; \
             set `additionalProperties` to false"
            .into());
    }
    let given = opened.args.as_object().cloned().unwrap_or_default();
    let with = |name: &str, value: &Value| {
        let mut args: Map<String, Value> = given.clone();
        args.insert(name.into(), value.clone());
        Value::Object(args)
    };
    if start(with("no_such_argument", &json!(1))).await.is_ok() {
        return Err("an unknown argument is not refused".into());
    }
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let (mut allowed, mut refused) = (0, 1);
    for (name, schema) in properties {
        if let Some(default) = schema.get("default") {
            let args = with(name, default);
            start(args.clone()).await.map_err(|error| format!("the default of `{name}` is refused: {error}"))?;
            allowed += 1;
        }
        for edge in example::edges(schema).iter().take(MOST) {
            // It may not go with the others; that is a message, too.
            match start(with(name, edge)).await {
                Err(error) if !says_why(&error) => return Err(format!("with {name} = {edge}: {error}")),
                _ => allowed += 1,
            }
        }
        for wrong in example::wrong_values(schema) {
            match start(with(name, &wrong)).await {
                Ok(_) => return Err(format!("{name} = {wrong} is not refused")),
                Err(error) if !says_why(&error) => return Err(format!("with {name} = {wrong}: {error}")),
                Err(_) => refused += 1,
            }
        }
    }
    Ok(format!("{} of them: {allowed} right values tried, {refused} wrong ones refused", properties.len()))
}

/// Refused with a message rather than a crash.
fn says_why(error: &StartError) -> bool {
    match error {
        StartError::Args { .. } | StartError::Weights { .. } | StartError::Role { .. } => true,
        StartError::Env(error) => {
            matches!(&error.failure, Failure::Guest { code: GuestErrorCode::InvalidConfig, message, .. } if !message.is_empty())
        }
    }
}
