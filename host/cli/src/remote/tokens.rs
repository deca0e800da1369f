//! Models that score token ids, behind OpenAI-compatible servers with vLLM's `prompt_logprobs`. Owns the form of requests and
//! answers; must not know what ids mean.

use super::Client;
use super::model::RemoteModel;
use prl_environment::ServiceError;
use prl_types::TokenId;
use serde_json::{Value, json};

impl RemoteModel {
    /// Log-probability of each of `ids` given those before it, 0 for the first.
    ///
    /// # Errors
    /// As [`RemoteModel::post`], and for an answer that does not score every token.
    pub async fn score(&self, client: &Client, ids: &[TokenId]) -> Result<Vec<f32>, ServiceError> {
        let body = json!({
            "model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "prompt_logprobs": 1,
        });
        let answer = self.post(client, "completions", &body).await?;
        scores(&answer, ids).map_err(|what| self.unusable(what))
    }
}

fn scores(answer: &Value, ids: &[TokenId]) -> Result<Vec<f32>, String> {
    let table = answer["choices"][0]["prompt_logprobs"].as_array();
    let table = table.ok_or("the answer has no `prompt_logprobs`, which vLLM and `prl inference` give")?;
    if table.len() != ids.len() {
        return Err(format!("`prompt_logprobs` has {} entries for {} tokens", table.len(), ids.len()));
    }
    let of = |(at, (entry, id)): (usize, (&Value, &TokenId))| match entry[id.to_string()]["logprob"].as_f64() {
        // The first token has none before it.
        _ if at == 0 => Ok(0.0),
        Some(logprob) if logprob <= 0.0 => Ok(logprob as f32),
        _ => Err(format!("`prompt_logprobs` has no log-probability of token {at} (id {id})")),
    };
    table.iter().zip(ids).enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_but_the_first_needs_its_own_logprob() {
        let first = json!({ "7": { "logprob": -0.5, "rank": 1 } });
        let second = json!({ "9": { "logprob": -3, "rank": 4 }, "7": { "logprob": -0.1 } });
        let read = |table: Value| scores(&json!({ "choices": [{ "prompt_logprobs": table }] }), &[5, 7, 9]);
        assert_eq!(read(json!([null, first, second])), Ok(vec![0.0, -0.5, -3.0]));
        for (table, words) in [
            (json!([null, first]), "2 entries for 3 tokens"),
            (json!([null, first, first]), "token 2 (id 9)"),
            (json!([null, { "7": { "logprob": 0.5 } }, second]), "token 1 (id 7)"),
            (json!(null), "no `prompt_logprobs`"),
        ] {
            assert!(read(table).unwrap_err().contains(words), "{words}");
        }
    }
}
