//! How Qwen3.5 offers tools and writes calls: `<function=name>` with a `<parameter=key>` for each argument. Knows nothing of
//! the turns that these stand in.

use super::Own;
use crate::arguments::each_argument;
use crate::pyjson;
use crate::template::tool_json;
use minijinja::Value;
use minijinja::value::ValueKind;
use prl_types::{Message, Role, ToolCall, ToolDef};

/// How arguments that are neither text nor list nor object are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Literals {
    /// `True`, `None`: Qwen3.5.
    Python,
    /// `true`, `null`: Qwen3.6.
    Json,
}

/// How tools are offered, around their definitions.
const TOOLS: (&str, &str) = (
    "# Tools\n\nYou have access to the following functions:\n\n<tools>",
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n\
     <function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n\
     <parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n\
     </parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: \
     an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n- Required parameters \
     MUST be specified\n- You may provide optional reasoning for your function call in natural language BEFORE the \
     function call, but NOT after\n- If there is no function call available, answer the question like normal with your \
     current knowledge and do not tell the user about function calls\n</IMPORTANT>",
);

/// The tools, as they stand in front of a system message.
pub(super) fn offered(tools: &[ToolDef]) -> String {
    let one = |tool: &ToolDef| format!("\n{}", pyjson::dumps(&tool_json(tool)));
    format!("{}{}{}", TOOLS.0, tools.iter().map(one).collect::<String>(), TOOLS.1)
}

/// A call. Arguments that are no JSON object stand in the function as they are.
pub(super) fn call(call: &ToolCall, literals: Literals) -> String {
    let one = |key: &str, value: &Value| format!("<parameter={key}>\n{}\n</parameter>\n", written(value, literals));
    let body = each_argument(call, one);
    format!("<tool_call>\n<function={}>\n{body}</function>\n</tool_call>", call.name)
}

fn written(value: &Value, literals: Literals) -> String {
    match (value.kind(), literals) {
        (ValueKind::String, _) | (ValueKind::None | ValueKind::Bool, Literals::Python) => value.to_string(),
        _ => pyjson::dump(value),
    }
}

/// What the model's template writes.
pub(super) fn literals(own: Own) -> Literals {
    let arguments = "{\"a\": true}".to_owned();
    let call = ToolCall { id: "call00000".into(), name: "wkvname".into(), arguments };
    let answer = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") };
    let text = own(&[Message::text(Role::User, "x"), answer], &[], false);
    if text.is_some_and(|text| text.contains("\ntrue\n")) { Literals::Json } else { Literals::Python }
}
