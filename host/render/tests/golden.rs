//! Templates render as Python's `transformers` renders them; goldens.json is written by goldens.py.

mod common;

use prl_render::{Choice, Renderer, RendererOptions};
use prl_types::{Message, ToolDef};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Cases {
    tools: Vec<ToolDef>,
    conversations: BTreeMap<String, Vec<Message>>,
}

#[derive(Deserialize)]
struct Golden {
    template: String,
    conversation: String,
    tools: bool,
    generate: bool,
    variables: Map<String, Value>,
    text: Option<String>,
}

#[test]
fn renders_as_transformers_does() {
    let cases: Cases = serde_json::from_str(include_str!("cases.json")).unwrap();
    let goldens: Vec<Golden> = serde_json::from_str(include_str!("goldens.json")).unwrap();
    assert!(goldens.len() > 150);
    let mut renderers = BTreeMap::new();
    for golden in &goldens {
        let key = (golden.template.clone(), Value::from(golden.variables.clone()).to_string());
        let renderer = renderers.entry(key).or_insert_with(|| {
            let dir = common::model_dir(&golden.template);
            let variables = golden.variables.clone();
            let options = RendererOptions { variables, choice: Choice::Template, ..Default::default() };
            Renderer::load(dir.path(), options).unwrap()
        });
        let messages = &cases.conversations[&golden.conversation];
        let tools: &[ToolDef] = if golden.tools { &cases.tools } else { &[] };
        let got = renderer.render_text(messages, tools, golden.generate);
        let place = format!("{} {} tools={}", golden.template, golden.conversation, golden.tools);
        match (&got, &golden.text) {
            (Ok(got), Some(want)) => assert_eq!(got, want, "{place}"),
            (Err(_), None) => {}
            _ => panic!("{place}: got {got:?}, want {:?}", golden.text),
        }
    }
}
