//! Which parameters an adapter trains: patterns of module names held against a model's modules. Owns the names and what is refused;
//! must not know values.

use crate::fast::dims;
use crate::names::{self, HEAD, Kind, ParameterInfo, module_of};
use crate::{ModelConfig, ModelError};
use prl_kernels::Projection;
use regex::Regex;
use std::collections::BTreeSet;

/// What is asked of an adapter, in the words of PEFT and prime-rl.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraOptions {
    /// Columns of B, at least 1.
    pub rank: usize,
    /// The addition is times `alpha / rank`; above 0.
    pub alpha: f64,
    /// Share of what an addition sees that training leaves out, in [0, 1).
    pub dropout: f64,
    /// Modules with an adapter: a part of a module's path, or a regular expression that is found in it.
    pub target_modules: Vec<String>,
    /// Modules that are trained whole, named the same way.
    pub modules_to_save: Vec<String>,
}

/// An adapter's settings made out for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPlan {
    options: LoraOptions,
    /// By layer, then in the order of [`Projection::ALL`].
    targets: Vec<(usize, Projection)>,
    /// By parameter, whether it is trained whole.
    saved: Vec<bool>,
}

/// The last part of a module's path.
fn leaf(module: &str) -> &str {
    module.rsplit_once('.').map_or(module, |(_, leaf)| leaf)
}

/// A word that is a part of a path, or an expression.
enum Pattern<'a> {
    Part(&'a str),
    Expression(Regex),
}

impl<'a> Pattern<'a> {
    /// As prime-rl tells them apart.
    fn new(key: &'static str, text: &'a str) -> Result<Self, ModelError> {
        if !text.contains(['.', '*', '+', '?', '^', '$', '[', ']', '{', '}', '|', '(', ')', '\\']) {
            return Ok(Pattern::Part(text));
        }
        let refused = |e: regex::Error| {
            let reason = e.to_string();
            let last = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            ModelError::Lora { key, reason: format!("has \"{text}\", which is no regular expression: {last}") }
        };
        Regex::new(text).map(Pattern::Expression).map_err(refused)
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::Part(part) => name.split('.').any(|own| own == *part),
            Pattern::Expression(expression) => expression.is_match(name),
        }
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut seen = Vec::new();
    names.for_each(|name| {
        if !seen.contains(&name) {
            seen.push(name);
        }
    });
    seen.join(", ")
}

impl LoraPlan {
    /// Finds the modules that are meant.
    ///
    /// # Errors
    /// [`ModelError::Lora`] for a number out of range, a pattern that matches nothing which can be trained that way, and a module
    /// that is asked for both ways.
    pub fn new(options: LoraOptions, config: &ModelConfig) -> Result<LoraPlan, ModelError> {
        let refuse = |key, reason: String| Err(ModelError::Lora { key, reason });
        if options.rank == 0 {
            return refuse("rank", "is 0; it must be at least 1".into());
        }
        // Both in f32, as they are used.
        let scale = (options.alpha / options.rank as f64) as f32;
        if !(scale.is_finite() && scale > 0.0) {
            return refuse("alpha", format!("is {}; it must be above 0, and alpha / rank be a number", options.alpha));
        }
        if !(0.0..1.0).contains(&(options.dropout as f32)) {
            return refuse("dropout", format!("is {}; it must be at least 0 and below 1", options.dropout));
        }
        let targets = targets(&options.target_modules, config)?;
        let saved = saved(&options.modules_to_save, config)?;
        let infos = names::parameters(config);
        let whole =
            |module: &str| infos.iter().zip(&saved).any(|(info, saved)| *saved && module_of(&info.name) == module);
        let mut modules = targets.iter().map(|(layer, which)| which.path(*layer));
        if let Some(module) = modules.find(|module| whole(module)) {
            return refuse(
                "modules_to_save",
                format!("has {module}, which `target_modules` has too: leave it out of one"),
            );
        }
        Ok(LoraPlan { options, targets, saved })
    }

    /// Columns of B.
    pub fn rank(&self) -> usize {
        self.options.rank
    }

    /// What the addition is multiplied by.
    pub fn scale(&self) -> f32 {
        (self.options.alpha / self.options.rank as f64) as f32
    }

    /// Its settings.
    pub fn options(&self) -> &LoraOptions {
        &self.options
    }

    /// Matrices with an addition, by layer.
    pub fn targets(&self) -> &[(usize, Projection)] {
        &self.targets
    }

    /// Whether the parameter of this index is trained whole.
    pub(crate) fn saves(&self, index: usize) -> bool {
        self.saved[index]
    }

    /// The factors, in the order of their ids: A and B of each target. They are named as PEFT does within its prefix.
    pub(crate) fn factors(&self, config: &ModelConfig) -> Vec<ParameterInfo> {
        let dims = dims(config);
        let of = |(layer, which): &(usize, Projection)| {
            let [out, input] = which.shape(&dims);
            let [a, b] = which.factors(*layer);
            let info = |name, shape| ParameterInfo { name, shape, kind: Kind::Matrix };
            [info(a, vec![self.rank(), input]), info(b, vec![out, self.rank()])]
        };
        self.targets.iter().flat_map(of).collect()
    }

    /// All that is trained: parameters that are trained whole, then the factors.
    pub fn parameters(&self, config: &ModelConfig) -> Vec<ParameterInfo> {
        let whole = names::parameters(config).into_iter().zip(&self.saved);
        whole.filter(|(_, saved)| **saved).map(|(info, _)| info).chain(self.factors(config)).collect()
    }

    /// The last parts of the targets' paths where every layer has the same ones, as PEFT's settings have them; else whole paths.
    pub(super) fn target_names(&self, config: &ModelConfig) -> Vec<String> {
        let kinds: BTreeSet<Projection> = self.targets.iter().map(|(_, which)| *which).collect();
        match kinds.len() * config.layers == self.targets.len() {
            true => kinds.into_iter().map(|which| leaf(which.module()).to_owned()).collect(),
            false => self.targets.iter().map(|(layer, which)| which.path(*layer)).collect(),
        }
    }

    /// Paths of the modules that are trained whole.
    pub(super) fn saved_names(&self, config: &ModelConfig) -> Vec<String> {
        let infos = names::parameters(config);
        let saved = infos.iter().zip(&self.saved).filter(|(_, saved)| **saved);
        let mut names: Vec<String> = saved.map(|(info, _)| module_of(&info.name).to_owned()).collect();
        // A projection's weight and its bias stand apart.
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }
}

fn targets(patterns: &[String], config: &ModelConfig) -> Result<Vec<(usize, Projection)>, ModelError> {
    const KEY: &str = "target_modules";
    let refuse = |reason: String| Err(ModelError::Lora { key: KEY, reason });
    let all: Vec<(usize, Projection)> =
        (0..config.layers).flat_map(|layer| Projection::ALL.map(|which| (layer, which))).collect();
    let can = || listed(Projection::ALL.iter().map(|which| leaf(which.module())));
    if patterns.is_empty() {
        return refuse(format!("is empty; name some of {}", can()));
    }
    let mut found = vec![false; all.len()];
    for text in patterns {
        let pattern = Pattern::new(KEY, text)?;
        if pattern.matches(module_of(HEAD)) {
            return refuse(format!(
                "has \"{text}\", which matches lm_head: that can have no adapter here, only be trained whole \
                 (`modules_to_save`)"
            ));
        }
        let mut any = false;
        for (found, (layer, which)) in found.iter_mut().zip(&all) {
            if pattern.matches(&which.path(*layer)) {
                (*found, any) = (true, true);
            }
        }
        if !any {
            return refuse(format!(
                "has \"{text}\", which matches no module of this model that can have an adapter: those are {}, in \
                 model.layers.0 to model.layers.{}",
                can(),
                config.layers.saturating_sub(1)
            ));
        }
    }
    Ok(all.into_iter().zip(found).filter(|(_, found)| *found).map(|(target, _)| target).collect())
}

fn saved(patterns: &[String], config: &ModelConfig) -> Result<Vec<bool>, ModelError> {
    const KEY: &str = "modules_to_save";
    let infos = names::parameters(config);
    let mut saved = vec![false; infos.len()];
    for text in patterns {
        let pattern = Pattern::new(KEY, text)?;
        let of = |info: &ParameterInfo| pattern.matches(module_of(&info.name));
        let found: Vec<usize> = (0..infos.len()).filter(|i| of(&infos[*i])).collect();
        if found.is_empty() && config.tied && pattern.matches(module_of(HEAD)) {
            let reason = format!("has \"{text}\", but this model's head is its embedding: name embed_tokens");
            return Err(ModelError::Lora { key: KEY, reason });
        }
        if found.is_empty() {
            let modules = listed(infos.iter().map(|info| leaf(module_of(&info.name))));
            let reason = format!("has \"{text}\", which matches no module of this model: it has {modules}");
            return Err(ModelError::Lora { key: KEY, reason });
        }
        found.into_iter().for_each(|i| saved[i] = true);
    }
    Ok(saved)
}
