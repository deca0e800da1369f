//! Models that take and give token ids, behind servers with vLLM's doors and fields for them. Owns the form of requests and
//! answers; must not know what ids mean.

use super::Client;
use super::model::RemoteModel;
use prl_environment::ServiceError;
use prl_types::{FinishReason, PolicyVersion, Sampled, TokenId};
use serde_json::{Value, json};

/// Where ids go in and come out, at the server's root.
const GENERATE: &str = "/inference/v1/generate";

/// Which version of the policy tokens are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// What the server tells, or else this one.
    UnlessTold(PolicyVersion),
    /// This one, whatever the server counts.
    Is(PolicyVersion),
}

impl RemoteModel {
    /// Continues `ids`. `params` are the sampling parameters; `salt` says with whom keys and values may be shared.
    ///
    /// # Errors
    /// As [`RemoteModel::post`], and for an answer without ids or log-probabilities.
    pub async fn sample(
        &self,
        client: &Client,
        ids: &[TokenId],
        params: Value,
        salt: &str,
        version: Version,
    ) -> Result<Sampled, ServiceError> {
        let body = json!({ "model": self.model, "token_ids": ids, "sampling_params": params, "cache_salt": salt });
        let answer = self.post(client, GENERATE, &body).await?;
        sampled(&answer["choices"][0], version).map_err(|what| self.unusable(what))
    }

    /// What the server calls each of `ids` but the first, where it says.
    ///
    /// # Errors
    /// As [`RemoteModel::score`].
    pub async fn words(&self, client: &Client, ids: &[TokenId]) -> Result<Vec<Option<String>>, ServiceError> {
        let answer = self.scored(client, ids, 1.0).await?;
        scores(&answer, ids).map_err(|what| self.unusable(what))?;
        let table = &answer["choices"][0]["prompt_logprobs"];
        let word = |(at, id): (usize, &TokenId)| table[at][id.to_string()]["decoded_token"].as_str().map(str::to_owned);
        Ok(ids.iter().enumerate().skip(1).map(word).collect())
    }

    async fn scored(&self, client: &Client, ids: &[TokenId], temperature: f32) -> Result<Value, ServiceError> {
        let body = json!({
            "model": self.model, "prompt": ids, "max_tokens": 1, "temperature": temperature, "prompt_logprobs": 1,
        });
        self.post(client, "completions", &body).await
    }

    /// Log-probability of each of `ids` given those before it, 0 for the first; at `temperature`, where the server heeds it.
    ///
    /// # Errors
    /// As [`RemoteModel::post`], and for an answer that does not score every token.
    pub async fn score(&self, client: &Client, ids: &[TokenId], temperature: f32) -> Result<Vec<f32>, ServiceError> {
        let answer = self.scored(client, ids, temperature).await?;
        scores(&answer, ids).map_err(|what| self.unusable(what))
    }
}

fn sampled(choice: &Value, version: Version) -> Result<Sampled, String> {
    let ids: Vec<TokenId> =
        serde_json::from_value(choice["token_ids"].clone()).map_err(|e| format!("`token_ids`: {e}"))?;
    let told = choice["logprobs"]["content"].as_array().ok_or("the answer has no `logprobs`")?;
    let logprobs = told.iter().map(|token| token["logprob"].as_f64().map(|logprob| logprob as f32));
    let logprobs = logprobs.collect::<Option<Vec<f32>>>().ok_or("a token has no log-probability")?;
    let (version, told) = match version {
        Version::UnlessTold(version) => (version, choice["policy_versions"].as_array()),
        Version::Is(version) => (version, None),
    };
    let versions = told.into_iter().flatten();
    let versions = versions.filter_map(|run| run["version"].as_u64().map(PolicyVersion));
    let versions = versions.fold(None, |all: Option<(PolicyVersion, PolicyVersion)>, v| {
        Some(all.map_or((v, v), |(least, most)| (least.min(v), most.max(v))))
    });
    let finish = match (choice["finish_reason"].as_str(), choice["stop_reason"].as_str(), ids.last()) {
        (Some("stop"), Some(stop), _) => FinishReason::StopString(stop.to_owned()),
        (Some("stop"), None, Some(last)) => FinishReason::StopToken(*last),
        (Some("length"), ..) => FinishReason::Length,
        (Some("abort"), ..) => FinishReason::Aborted,
        (reason, ..) => return Err(format!("`finish_reason` is {reason:?}")),
    };
    Sampled::from_engine(ids, logprobs, versions.unwrap_or((version, version)), finish).map_err(|e| e.to_string())
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
    fn an_answer_in_ids_is_read_or_refused() {
        let v = PolicyVersion;
        let whole = json!({
            "token_ids": [5, 2], "logprobs": { "content": [{ "logprob": -0.5 }, { "logprob": -1 }] },
            "finish_reason": "stop", "stop_reason": null,
            "policy_versions": [{ "version": 4, "tokens": 1 }, { "version": 3, "tokens": 1 }],
        });
        let with = |key: &str, value: Value| {
            let mut changed = whole.clone();
            changed[key] = value;
            sampled(&changed, Version::UnlessTold(v(9)))
        };
        let want = |versions, finish| Sampled::from_engine(vec![5, 2], vec![-0.5, -1.0], versions, finish).unwrap();
        assert_eq!(with("x", json!(1)).unwrap(), want((v(3), v(4)), FinishReason::StopToken(2)));
        assert_eq!(with("policy_versions", Value::Null).unwrap().versions(), Some((v(9), v(9))));
        assert_eq!(sampled(&whole, Version::Is(v(9))).unwrap().versions(), Some((v(9), v(9))));
        assert_eq!(with("finish_reason", json!("length")).unwrap().finish(), &FinishReason::Length);
        assert_eq!(with("stop_reason", json!("end")).unwrap().finish(), &FinishReason::StopString("end".into()));
        for (key, value, words) in [
            ("token_ids", json!([-1]), "`token_ids`"),
            ("token_ids", json!([5]), "`logprobs` has 2 entries for 1 tokens"),
            ("logprobs", json!(null), "no `logprobs`"),
            ("logprobs", json!({ "content": [{}, {}] }), "no log-probability"),
            ("finish_reason", json!("tool_calls"), "`finish_reason`"),
        ] {
            let error = with(key, value).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

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
