//! Reverse a short text, character by character. Owns the task and its reward; must not know who trains on it.
//!
//! A task is 2 to 4 common English words. Reward `reverse_text` is the difflib ratio of what stands inside
//! `<reversed_text>` against the reversed text, and 0 without the tag. The eval split draws its words from a list
//! that the train split never uses.

mod texts;

use prl_env::{
    Completion, Environment, Error, ErrorCode, Features, Info, Message, Result, Rollout, RolloutContext, Score, Split,
    Task, Turn,
};
use serde::Deserialize;
use serde_json::{Value, json};
use texts::Words;

/// The instruction, as a system message or at the head of the user's.
const INSTRUCTION: &str = "Reverse the text character-by-character. Put your answer in <reversed_text> tags.";
const TAG: &str = "reversed_text";
const EVAL_TASKS: u64 = 256;
const MIN_CHARS: usize = 10;
const MAX_CHARS: usize = 24;

/// What the run may set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Args {
    min_chars: usize,
    max_chars: usize,
    system_prompt: bool,
    demonstration_quality: f64,
}

impl Default for Args {
    fn default() -> Self {
        Args { min_chars: MIN_CHARS, max_chars: MAX_CHARS, system_prompt: true, demonstration_quality: 1.0 }
    }
}

/// The configured environment.
pub struct ReverseText {
    args: Args,
    train: Words,
    eval: Words,
}

prl_env::export!(ReverseText);

impl Environment for ReverseText {
    type Rollout = Attempt;

    fn describe() -> Info {
        let integer = |default: usize, description: &str| {
            json!({ "type": "integer", "minimum": texts::SHORTEST, "maximum": texts::LONGEST, "default": default,
                    "description": description })
        };
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "min_chars": integer(MIN_CHARS, "least characters of a text, spaces included"),
                "max_chars": integer(MAX_CHARS, "most characters of a text, spaces included"),
                "system_prompt": { "type": "boolean", "default": true,
                    "description": "whether the instruction is sent as a system message" },
                "demonstration_quality": { "type": "number", "minimum": 0, "maximum": 1, "default": 1,
                    "description": "share of tasks whose payload holds a right demonstration; the others show a \
                                    typical mistake" },
            },
        });
        Info {
            name: "reverse-text".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            description: "Reverse 2 to 4 English words character by character.".into(),
            args_schema: schema.to_string(),
            splits: vec![
                Split { name: "train".into(), size: None },
                Split { name: "eval".into(), size: Some(EVAL_TASKS) },
            ],
            features: Features::PROCEDURAL | Features::DETERMINISTIC,
            components: vec!["reverse_text".into()],
            metrics: vec!["format".into()],
            tags: vec!["text".into(), "single-turn".into()],
        }
    }

    fn configure(args: &str) -> Result<Self> {
        let args: Args = serde_json::from_str(args).map_err(|e| Error::invalid_config(e.to_string()))?;
        if args.min_chars > args.max_chars || args.min_chars < texts::SHORTEST || args.max_chars > texts::LONGEST {
            return Err(Error::invalid_config(format!(
                "min_chars = {} and max_chars = {} must satisfy {} <= min_chars <= max_chars <= {}",
                args.min_chars,
                args.max_chars,
                texts::SHORTEST,
                texts::LONGEST,
            )));
        }
        if !(0.0..=1.0).contains(&args.demonstration_quality) {
            return Err(Error::invalid_config(format!(
                "demonstration_quality = {} must be between 0 and 1",
                args.demonstration_quality
            )));
        }
        Ok(ReverseText { args, train: Words::train(), eval: Words::eval() })
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let (text, key) = match split {
            "train" => (self.text(&self.train, &[seed, index]), format!("train/{seed}/{index}")),
            // The eval split is the same 256 texts whatever the seed, so that runs compare.
            "eval" if index < EVAL_TASKS => (self.text(&self.eval, &[index]), format!("eval/{index}")),
            "eval" => {
                return Err(Error::invalid_task(format!("split `eval` has {EVAL_TASKS} tasks, no index {index}")));
            }
            _ => return Err(Error::invalid_task(format!("no split `{split}`; there are `train` and `eval`"))),
        };
        let reversed: String = text.chars().rev().collect();
        let user = Message::user(text.as_str());
        Ok(Task {
            split: split.into(),
            index,
            seed,
            key,
            prompt: if self.args.system_prompt { vec![Message::system(INSTRUCTION), user] } else { vec![user] },
            tools: Vec::new(),
            payload: json!({ "text": text, "demonstration": self.demonstration(&text, &reversed, [seed, index]) })
                .to_string(),
            answer: Some(json!(reversed).to_string()),
            max_turns: Some(1),
            tags: Vec::new(),
        })
    }

    fn open(&self, task: Task, _context: RolloutContext) -> Result<Attempt> {
        let answer = task.answer.as_deref().and_then(|json| serde_json::from_str::<Value>(json).ok());
        match answer {
            Some(Value::String(reversed)) => Ok(Attempt { reversed, said: None }),
            _ => Err(Error::invalid_task(format!("task `{}` carries no reversed text as its answer", task.key))),
        }
    }
}

impl ReverseText {
    fn text(&self, words: &Words, parts: &[u64]) -> String {
        words.text(&mut prl_env::Rng::from_parts(parts), self.args.min_chars, self.args.max_chars)
    }
}

/// Mixed into the seed of demonstrations, so that their mistakes do not follow the words of the text.
const DEMONSTRATION: u64 = 1;

impl ReverseText {
    /// An expert's answer, or, for the share of tasks that `demonstration_quality` leaves, a beginner's: without the
    /// tag, not reversed, or ended early.
    fn demonstration(&self, text: &str, reversed: &str, parts: [u64; 2]) -> String {
        let mut rng = prl_env::Rng::from_parts(&[parts[0], parts[1], DEMONSTRATION]);
        let tagged = |answer: &str| format!("<{TAG}>{answer}</{TAG}>");
        if rng.unit() < self.args.demonstration_quality {
            return tagged(reversed);
        }
        match rng.below(10) {
            0..4 => reversed.to_owned(),
            4..7 => tagged(text),
            _ => tagged(&reversed[..1 + rng.below(5)]),
        }
    }
}

/// One attempt: the model answers once.
pub struct Attempt {
    reversed: String,
    said: Option<String>,
}

impl Rollout for Attempt {
    fn step(&mut self, completion: Completion) -> Result<Turn> {
        if self.said.is_some() {
            return Err(Error::new(ErrorCode::InvalidState, "the rollout is over: there is one turn"));
        }
        self.said = Some(completion.message.text());
        Ok(Turn::terminated("answered"))
    }

    fn score(&mut self, _truncated: Option<&str>) -> Result<Score> {
        let answer = self.said.as_deref().and_then(|said| prl_env::tag(said, TAG));
        let reward = answer.map_or(0.0, |answer| prl_env::ratio(answer, &self.reversed));
        Ok(Score::empty().reward("reverse_text", reward, 1.0).metric("format", f64::from(u8::from(answer.is_some()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_env::FinishReason;

    fn environment(args: &str) -> ReverseText {
        ReverseText::configure(args).expect("valid arguments")
    }

    fn score(env: &ReverseText, task: Task, said: Option<&str>) -> (f64, f64) {
        let context = RolloutContext { id: "0.0".into(), seed: 0, sample: 0, group_size: 1, step: 0, eval: false };
        let mut attempt = env.open(task, context).unwrap();
        assert_eq!(attempt.start().unwrap(), Turn::next(vec![]));
        if let Some(said) = said {
            let completion = Completion {
                message: Message::assistant(said),
                finish_reason: FinishReason::Stop,
                completion_tokens: 1,
                context_left: None,
            };
            assert_eq!(attempt.step(completion.clone()).unwrap(), Turn::terminated("answered"));
            assert_eq!(attempt.step(completion).unwrap_err().code, ErrorCode::InvalidState);
        }
        let score = attempt.score(None).unwrap();
        assert_eq!((score.components.len(), score.metrics.len()), (1, 1));
        (score.components[0].value, score.metrics[0].value)
    }

    #[test]
    fn tasks_are_reproducible_and_as_described() {
        let env = environment("{}");
        let mut texts = std::collections::HashSet::new();
        for (split, index, seed) in (0..300).map(|i| ("train", i, 5)).chain((0..EVAL_TASKS).map(|i| ("eval", i, 5))) {
            let task = env.task(split, index, seed).unwrap();
            assert_eq!(task, environment("{}").task(split, index, seed).unwrap());
            let payload: Value = serde_json::from_str(&task.payload).unwrap();
            let text = payload["text"].as_str().unwrap().to_owned();
            assert_eq!((task.prompt[0].text().as_str(), task.prompt[1].text()), (INSTRUCTION, text.clone()));
            assert_eq!(score(&env, task, payload["demonstration"].as_str()), (1.0, 1.0));
            texts.insert(text);
        }
        assert!(texts.len() > 550, "only {} different texts", texts.len());
        assert_eq!(env.task("eval", 3, 1).unwrap().prompt, env.task("eval", 3, 2).unwrap().prompt);
        assert_ne!(env.task("train", 3, 1).unwrap().prompt, env.task("train", 3, 2).unwrap().prompt);
    }

    #[test]
    fn the_share_of_right_demonstrations_is_as_asked() {
        let env = environment(r#"{"demonstration_quality": 0.3}"#);
        let right = (0..1000).filter(|index| {
            let task = env.task("train", *index, 7).unwrap();
            let payload: Value = serde_json::from_str(&task.payload).unwrap();
            score(&env, task, payload["demonstration"].as_str()).0 == 1.0
        });
        let right = right.count();
        assert!((250..350).contains(&right), "{right} of 1000");
    }

    #[test]
    fn the_reward_is_the_ratio_inside_the_tag() {
        let env = environment("{}");
        let mut task = env.task("train", 0, 0).unwrap();
        task.answer = Some("\"dlrow olleh\"".into());
        let score = |said| score(&env, task.clone(), said);
        assert_eq!(score(Some("let me see <reversed_text>\n dlrow olleh </reversed_text>")), (1.0, 1.0));
        // All 10 characters match: 2·10 / (10 + 11).
        assert_eq!(score(Some("<reversed_text>dlrow oleh</reversed_text>")), (20.0 / 21.0, 1.0));
        assert_eq!(score(Some("<reversed_text></reversed_text>")), (0.0, 1.0));
        assert_eq!(score(Some("dlrow olleh")), (0.0, 0.0));
        assert_eq!(score(Some("<reversed_text>dlrow olleh")), (0.0, 0.0));
        assert_eq!(score(None), (0.0, 0.0));
    }

    #[test]
    fn arguments_are_checked_and_obeyed() {
        let env = environment(r#"{"min_chars": 5, "max_chars": 6, "system_prompt": false}"#);
        for index in 0..50 {
            let task = env.task("train", index, 0).unwrap();
            assert_eq!(task.prompt.len(), 1);
            assert!((5..=6).contains(&task.prompt[0].text().len()));
        }
        let refused = |args: &str| {
            let error = ReverseText::configure(args).err().expect("refused");
            assert_eq!(error.code, ErrorCode::InvalidConfig);
            error.message
        };
        assert!(refused(r#"{"min_char": 5}"#).contains("unknown field `min_char`"));
        assert!(refused(r#"{"min_chars": 30}"#).contains("min_chars = 30 and max_chars = 24"));
        assert!(refused(r#"{"max_chars": 400}"#).contains("<= 39"));
        assert!(refused(r#"{"demonstration_quality": 1.5}"#).contains("between 0 and 1"));
        assert!(refused("[").contains("EOF"));
        assert_eq!(env.task("test", 0, 0).unwrap_err().code, ErrorCode::InvalidTask);
        assert_eq!(env.task("eval", EVAL_TASKS, 0).unwrap_err().code, ErrorCode::InvalidTask);
    }
}
