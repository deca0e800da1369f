//! Chat with models behind OpenAI-compatible servers. Owns the translation of messages; must not know what a model is asked
//! for.

use super::Client;
use super::model::RemoteModel;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::{Llm, LlmRequest, LlmResponse, ServiceError};
use prl_types::{Message, Role, ToolCall, ToolDef};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A model by role, with the room for requests under way.
pub type Roles = BTreeMap<String, (RemoteModel, Arc<Semaphore>)>;

/// The models of an environment.
pub struct ChatModels {
    client: Client,
    roles: Roles,
}

impl ChatModels {
    /// Models by role.
    pub fn new(client: Client, roles: Roles) -> Self {
        ChatModels { client, roles }
    }
}

impl Llm for ChatModels {
    fn roles(&self) -> Vec<String> {
        self.roles.keys().cloned().collect()
    }

    fn generate(&self, request: LlmRequest) -> BoxFuture<'static, Result<LlmResponse, ServiceError>> {
        let (client, role) = (self.client.clone(), self.roles.get(&request.role).cloned());
        async move {
            let Some((model, room)) = role else {
                return Err(ServiceError::Denied(format!("no model has the role `{}`", request.role)));
            };
            let _place = room.acquire_owned().await;
            model.generate(&client, &request).await
        }
        .boxed()
    }
}

impl RemoteModel {
    /// Asks the model for a message.
    ///
    /// # Errors
    /// As [`RemoteModel::post`].
    pub async fn generate(&self, client: &Client, request: &LlmRequest) -> Result<LlmResponse, ServiceError> {
        self.complete(client, request).await.map(|(answer, _)| answer)
    }

    /// Like [`RemoteModel::generate`], with the server's `finish_reason`, if it gives one.
    ///
    /// # Errors
    /// As there.
    pub async fn complete(
        &self,
        client: &Client,
        request: &LlmRequest,
    ) -> Result<(LlmResponse, Option<String>), ServiceError> {
        let answer = self.post(client, "chat/completions", &self.body(request)).await?;
        let finish = answer["choices"][0]["finish_reason"].as_str().map(str::to_owned);
        match response_from(&answer) {
            Some(response) => Ok((response, finish)),
            None => Err(self.unusable("the answer is no chat completion")),
        }
    }

    fn body(&self, request: &LlmRequest) -> Value {
        let mut body = request.options.clone();
        body.insert("model".into(), json!(self.model));
        body.insert("messages".into(), request.messages.iter().map(message_to).collect());
        if !request.tools.is_empty() {
            body.insert("tools".into(), request.tools.iter().map(tool_to).collect());
        }
        body.extend(request.max_tokens.map(|tokens| ("max_tokens".to_owned(), json!(tokens))));
        body.extend(request.temperature.map(|temperature| ("temperature".to_owned(), json!(temperature))));
        Value::Object(body)
    }
}

/// A message in OpenAI's form.
pub fn message_to(message: &Message) -> Value {
    let mut out = Map::new();
    out.insert("role".into(), json!(message.role.as_str()));
    out.insert("content".into(), json!(message.content));
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            json!({ "id": call.id, "type": "function",
                    "function": { "name": call.name, "arguments": call.arguments } })
        });
        out.insert("tool_calls".into(), calls.collect());
    }
    out.extend(message.tool_call_id.iter().map(|id| ("tool_call_id".to_owned(), json!(id))));
    out.extend(message.name.iter().map(|name| ("name".to_owned(), json!(name))));
    Value::Object(out)
}

/// A tool in OpenAI's form.
pub fn tool_to(tool: &ToolDef) -> Value {
    json!({ "type": "function", "function": {
        "name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict,
    } })
}

fn response_from(body: &Value) -> Option<LlmResponse> {
    let said = body["choices"].get(0)?.get("message")?;
    let mut message = Message::text(Role::Assistant, said["content"].as_str().unwrap_or_default());
    let reasoning = said["reasoning_content"].as_str().or(said["reasoning"].as_str());
    message.reasoning = reasoning.map(str::to_owned);
    for call in said["tool_calls"].as_array().into_iter().flatten() {
        message.tool_calls.push(ToolCall {
            id: call["id"].as_str().unwrap_or_default().to_owned(),
            name: call["function"]["name"].as_str()?.to_owned(),
            arguments: call["function"]["arguments"].as_str().unwrap_or_default().to_owned(),
        });
    }
    let tokens = |name: &str| body["usage"][name].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    Some(LlmResponse {
        message,
        prompt_tokens: tokens("prompt_tokens"),
        completion_tokens: tokens("completion_tokens"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    /// Answers each connection with the next of `answers`; gives the requests.
    fn server(answers: Vec<(u16, &'static str)>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        let serve = move || {
            let serve = |(status, body): (u16, &str)| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut seen = Vec::new();
                let mut chunk = [0; 4096];
                loop {
                    let n = stream.read(&mut chunk).unwrap();
                    seen.extend(&chunk[..n]);
                    let text = String::from_utf8_lossy(&seen);
                    let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head.lines().find_map(|line| {
                        line.to_ascii_lowercase().strip_prefix("content-length: ").map(|n| n.parse::<usize>().unwrap())
                    });
                    if rest.len() >= length.unwrap_or(0) {
                        break;
                    }
                }
                let head =
                    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                stream.write_all((head + body).as_bytes()).unwrap();
                String::from_utf8(seen).unwrap()
            };
            answers.into_iter().map(serve).collect()
        };
        (url, std::thread::spawn(serve))
    }

    fn ask(url: String, retries: u32) -> Result<LlmResponse, ServiceError> {
        let model = RemoteModel {
            base_url: url,
            model: "m".into(),
            api_key: Some("secret".into()),
            timeout: Duration::from_secs(10),
            max_retries: retries,
        };
        let roles = [("judge".to_owned(), (model, Arc::new(Semaphore::new(1))))].into();
        let models = ChatModels::new(Client::new(), roles);
        assert_eq!(models.roles(), ["judge"]);
        let request = LlmRequest {
            role: "judge".into(),
            messages: vec![Message::text(Role::User, "hello")],
            tools: Vec::new(),
            max_tokens: Some(5),
            temperature: Some(0.0),
            options: [("seed".to_owned(), json!(7))].into_iter().collect(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(models.generate(request))
    }

    const GOOD: &str = r#"{"choices": [{"message": {"role": "assistant", "content": "hi", "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2}}"#;

    #[test]
    fn a_model_is_asked_and_asked_again() {
        let (url, server) = server(vec![(503, "busy"), (200, GOOD)]);
        let answer = ask(url, 1).unwrap();
        assert_eq!((answer.message.content.as_str(), answer.message.reasoning.as_deref()), ("hi", Some("hm")));
        assert_eq!((answer.message.tool_calls[0].name.as_str(), answer.completion_tokens), ("f", 2));
        let requests = server.join().unwrap();
        assert!(requests[1].starts_with("POST /v1/chat/completions HTTP/1.1"), "{}", requests[1]);
        assert!(requests[1].to_ascii_lowercase().contains("authorization: bearer secret"));
        let body: Value = serde_json::from_str(requests[1].split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(
            body,
            json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 5,
                    "temperature": 0.0, "seed": 7 })
        );
    }

    #[test]
    fn a_refusal_is_told_and_not_tried_again() {
        let (url, server) = server(vec![(400, r#"{"error": {"message": "no such\nmodel"}}"#)]);
        let error = ask(url.clone(), 3).unwrap_err();
        assert_eq!(error, ServiceError::Invalid(format!("model `m` at `{url}`: status 400: no such model")));
        server.join().unwrap();
        assert!(matches!(ask("http://127.0.0.1:9/v1".into(), 0), Err(ServiceError::Upstream(_))));
    }
}
