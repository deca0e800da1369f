//! `POST /tokenize` and `POST /detokenize`. Owns their bodies, which are vLLM's.

use crate::app::App;
use crate::asked::Asked;
use crate::chat::{Conversation, HARMLESS};
use crate::completions::encode;
use crate::error::ApiError;
use axum::Json;
use axum::extract::State;
use prl_render::Renderer;
use prl_types::TokenId;
use serde_json::{Value, json};
use std::sync::Arc;

/// Ids of a text, or of messages.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Asked { mut fields, .. }: Asked,
) -> Result<Json<Value>, ApiError> {
    app.model(&mut fields)?;
    let strings = fields.flag("return_token_strs", false)?;
    let ids = match fields.string("prompt")? {
        Some(text) => {
            let special = fields.flag("add_special_tokens", true)?;
            fields.finish(HARMLESS)?;
            app.work(text.len(), move |renderer: &Renderer| encode(renderer, &text, special)).await?
        }
        None => {
            let conversation = Conversation::read(&mut fields)?;
            fields.finish(HARMLESS)?;
            conversation.prompt(&app).await?.ids
        }
    };
    let tokenizer = app.renderer.tokenizer();
    let strings: Option<Vec<String>> =
        strings.then(|| ids.iter().map(|id| tokenizer.id_to_token(*id).unwrap_or_default()).collect());
    Ok(Json(json!({
        "count": ids.len(), "max_model_len": app.engine.max_model_len(), "tokens": ids, "token_strs": strings,
    })))
}

/// The text of ids, special tokens included.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Asked { mut fields, .. }: Asked,
) -> Result<Json<Value>, ApiError> {
    app.model(&mut fields)?;
    let ids: Vec<TokenId> = fields.required("tokens", "a list of token ids")?;
    fields.finish(HARMLESS)?;
    let vocab = app.engine.vocab_size();
    if let Some(at) = ids.iter().position(|id| *id as usize >= vocab) {
        let message = format!("`tokens[{at}]` is {}, outside the model's vocabulary of {vocab}", ids[at]);
        return Err(ApiError::field("tokens", message));
    }
    let text = app.work(ids.len() * 4, move |renderer: &Renderer| {
        renderer.decode(&ids).map_err(|e| ApiError::field("tokens", e.to_string()))
    });
    Ok(Json(json!({"prompt": text.await?})))
}
