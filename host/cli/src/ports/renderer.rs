//! The model's renderer as the orchestrator's.

use prl_orchestrator::{Rendered, Renderer};
use prl_types::{Message, Role, Sampled, TokenId, ToolDef};
use std::sync::Arc;

/// The renderer of a model folder.
pub struct ModelRenderer {
    /// Its renderer.
    pub inner: Arc<prl_render::Renderer>,
    /// Its stop tokens.
    pub stops: Arc<[TokenId]>,
    /// Whether every turn is rendered anew, as the template has it, instead of extending what the model saw.
    pub anew: bool,
}

impl ModelRenderer {
    /// Wraps `inner`, which was made for this configuration.
    pub fn new(inner: Arc<prl_render::Renderer>, config: &prl_config::Renderer) -> Self {
        let stops = inner.stop_token_ids().into();
        ModelRenderer { inner, stops, anew: config.preserve_all_thinking == Some(false) }
    }
}

fn rendered(r: prl_render::Rendered) -> Rendered {
    Rendered { ids: r.ids, spans: r.spans }
}

impl Renderer for ModelRenderer {
    fn render(&self, messages: &[Message], tools: &[ToolDef]) -> Result<Rendered, String> {
        self.inner.render_ids(messages, tools, true).map(rendered).map_err(|e| e.to_string())
    }

    fn bridge(&self, previous: &[TokenId], replies: &[Message], _: &[ToolDef]) -> Result<Option<Rendered>, String> {
        if self.anew {
            return Ok(None);
        }
        let bridge = self.inner.bridge_to_next_turn(previous, replies).map_err(|e| e.to_string())?;
        Ok(bridge.map(rendered))
    }

    fn answer(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        message: &Message,
        cut: bool,
    ) -> Result<Vec<TokenId>, String> {
        self.inner.answer_ids(messages, tools, message, cut).map_err(|e| e.to_string())
    }

    fn parse(&self, sampled: &Sampled, tools: &[ToolDef]) -> Message {
        // Ids the tokenizer cannot read are an answer without text, not a failure of the run.
        self.inner.parse_sampled(sampled, tools).unwrap_or_else(|error| {
            tracing::warn!(target: "prl_orchestrator", "a sampled turn cannot be decoded: {error}");
            Message::text(Role::Assistant, "")
        })
    }

    fn stop_token_ids(&self) -> Arc<[TokenId]> {
        self.stops.clone()
    }
}
