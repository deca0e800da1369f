//! Renders conversations in many ways, for comparison with other renderers: `render JOB.json OUT.json`.
//!
//! The job names a model folder, a file of conversations as `prl sft` reads it, and renderers: a template, variables, and a
//! `renderer.name`. What comes out has an entry per renderer: the format it chose, and for each conversation, with tools
//! and without, its texts and ids, closed and open, and the loss mask; or why there is none.

use prl_render::{
    COLUMNS, Choice, Conversation, FormatName, LossMask, RenderError, Renderer, RendererOptions, read_conversation,
};
use prl_types::ToolDef;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::error::Error;
use std::path::PathBuf;

#[derive(Deserialize)]
struct Job {
    folder: PathBuf,
    conversations: PathBuf,
    renderers: Vec<Asked>,
}

#[derive(Deserialize)]
struct Asked {
    /// A template's path.
    template: String,
    /// As `renderer.name`.
    name: String,
    #[serde(default)]
    variables: Map<String, Value>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let [job, out] = std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "usage: render JOB OUT")?;
    let job: Job = serde_json::from_str(&std::fs::read_to_string(job)?)?;
    let mut conversations = Vec::new();
    for row in prl_data::rows(vec![job.conversations], &COLUMNS)? {
        let row = row?;
        let read = row.value.and_then(|value| read_conversation(&value));
        conversations.push(read.map_err(|reason| format!("{}: {reason}", row.place))?);
    }
    let mut all = Vec::new();
    for asked in job.renderers {
        all.push(match renderer(&job.folder, &asked)? {
            Ok(renderer) => {
                let rendered = conversations.iter().map(|conversation| rendered(&renderer, conversation));
                let format = renderer.format().map(FormatName::as_str);
                json!({"format": format, "conversations": rendered.collect::<Value>()})
            }
            Err(error) => json!({"error": error.to_string()}),
        });
    }
    Ok(std::fs::write(out, Value::from(all).to_string())?)
}

fn renderer(folder: &std::path::Path, asked: &Asked) -> Result<Result<Renderer, RenderError>, Box<dyn Error>> {
    let choice = match asked.name.as_str() {
        "auto" => Choice::Auto,
        "default" => Choice::Template,
        other => {
            let format = FormatName::ALL.into_iter().find(|format| format.as_str() == other);
            Choice::Format(format.ok_or_else(|| format!("no renderer `{other}`"))?)
        }
    };
    let mut variables = asked.variables.clone();
    let thinking = variables.remove("enable_thinking").and_then(|thinking| thinking.as_bool());
    let chat_template = Some(asked.template.clone());
    let options = RendererOptions { chat_template, variables, choice, thinking, ..Default::default() };
    Ok(Renderer::load(folder, options))
}

/// Without tools, then with them.
fn rendered(renderer: &Renderer, conversation: &Conversation) -> Value {
    let Conversation { messages, tools } = conversation;
    let of = |tools: &[ToolDef]| {
        let shown = |generate| match renderer.render_text(messages, tools, generate) {
            Ok(text) => {
                json!({"text": text, "ids": renderer.render_ids(messages, tools, generate).ok().map(|r| r.ids)})
            }
            Err(error) => json!({"error": error.to_string()}),
        };
        let sample = match renderer.training_sample(messages, tools, LossMask::default()) {
            Ok(sample) => json!({"ids": sample.ids, "mask": sample.mask}),
            Err(error) => json!({"error": error.to_string()}),
        };
        json!({"closed": shown(false), "open": shown(true), "sample": sample})
    };
    json!([of(&[]), of(tools)])
}
