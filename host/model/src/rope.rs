//! Rotary position embeddings: which frequencies a config asks for. Owns the scaling variants and their formulas;
//! must not know how or where the rotation is applied.

use crate::ModelError;
use serde_json::{Map, Value};
use std::f64::consts::PI;
use std::path::Path;

/// How the rotary frequencies of a pretrained model were stretched to longer contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// `theta^(-2i/d)` as it is.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, those between interpolated.
    Llama3 {
        /// Stretch of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the pretraining, tokens.
        original_context: f64,
    },
    /// YaRN (arXiv:2309.00071): a ramp over the dimensions between kept and stretched frequencies, and cos/sin scaled.
    Yarn {
        /// Stretch.
        factor: f64,
        /// Rotations over the original context above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is stretched in full.
        beta_slow: f64,
        /// Context length of the pretraining, tokens.
        original_context: f64,
        /// Factor on cos and sin.
        attention_factor: f64,
        /// Whether the ramp's borders are rounded outwards to whole dimensions.
        truncate: bool,
    },
}

/// The rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// Scaling variant.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// Reads `rope_parameters` (newer files) or `rope_theta` and `rope_scaling` (older ones).
    ///
    /// # Errors
    /// A variant that is not supported, or one of its numbers missing, each by key.
    pub(crate) fn parse(raw: &Map<String, Value>, path: &Path, max_positions: usize) -> Result<Self, ModelError> {
        let top = Section { path, name: "", map: raw };
        top.refuse_partial()?;
        let present = |key: &'static str| raw.get(key).filter(|v| !v.is_null()).map(|v| (key, v));
        let Some((section, value)) = present("rope_parameters").or_else(|| present("rope_scaling")) else {
            let theta = top.number("rope_theta")?.unwrap_or(10_000.0);
            return RopeConfig { theta, scaling: RopeScaling::Default }.check(path);
        };
        let map = value.as_object().ok_or_else(|| ModelError::config(path, section, "must be an object"))?;
        let s = Section { path, name: section, map };
        s.refuse_partial()?;
        let theta = match s.number("rope_theta")? {
            Some(theta) => theta,
            None => top.number("rope_theta")?.unwrap_or(10_000.0),
        };
        let kind = map.get("rope_type").or_else(|| map.get("type"));
        let scaling = match kind.map_or(Some("default"), Value::as_str) {
            Some("default") => RopeScaling::Default,
            Some("linear") => RopeScaling::Linear { factor: s.required("factor")? },
            Some("llama3") => RopeScaling::Llama3 {
                factor: s.required("factor")?,
                low_freq_factor: s.required("low_freq_factor")?,
                high_freq_factor: s.required("high_freq_factor")?,
                original_context: s.number("original_max_position_embeddings")?.unwrap_or(max_positions as f64),
            },
            Some("yarn") => s.yarn(max_positions)?,
            _ => {
                let got = kind.map(Value::to_string).unwrap_or_default();
                return Err(ModelError::config(
                    path,
                    format!("{section}.rope_type"),
                    format!("is {got}; supported are default, linear, llama3 and yarn"),
                ));
            }
        };
        RopeConfig { theta, scaling }.check(path)
    }

    fn check(self, path: &Path) -> Result<Self, ModelError> {
        if self.theta.is_finite() && self.theta > 1.0 {
            Ok(self)
        } else {
            Err(ModelError::config(path, "rope_theta", format!("is {}, must be a number above 1", self.theta)))
        }
    }

    /// Frequencies of the `head_dim / 2` planes in radians per token, rounded to f32 from f64, and the factor on cos
    /// and sin. Formulas as in `modeling_rope_utils.py` of the transformers library.
    pub fn frequencies(&self, head_dim: usize) -> (Vec<f32>, f32) {
        let plain = |i: usize| self.theta.powf(-(2.0 * i as f64) / head_dim as f64);
        let half = head_dim / 2;
        let mut attention = 1.0f64;
        let freqs: Vec<f64> = match self.scaling {
            RopeScaling::Default => (0..half).map(plain).collect(),
            RopeScaling::Linear { factor } => (0..half).map(|i| plain(i) / factor).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => (0..half)
                .map(|i| {
                    let f = plain(i);
                    let wavelength = 2.0 * PI / f;
                    if wavelength < original_context / high_freq_factor {
                        f
                    } else if wavelength > original_context / low_freq_factor {
                        f / factor
                    } else {
                        let smooth =
                            (original_context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, attention_factor, truncate } => {
                attention = attention_factor;
                let border = |rotations: f64| {
                    head_dim as f64 * (original_context / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (border(beta_fast), border(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                (0..half)
                    .map(|i| {
                        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        plain(i) / factor * ramp + plain(i) * (1.0 - ramp)
                    })
                    .collect()
            }
        };
        (freqs.into_iter().map(|f| f as f32).collect(), attention as f32)
    }
}

struct Section<'a> {
    path: &'a Path,
    name: &'a str,
    map: &'a Map<String, Value>,
}

impl Section<'_> {
    fn key(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_string() } else { format!("{}.{key}", self.name) }
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|v| v.is_finite() && *v > 0.0) {
                Some(v) => Ok(Some(v)),
                None => Err(ModelError::config(self.path, self.key(key), format!("is {value}, must be above 0"))),
            },
        }
    }

    fn refuse_partial(&self) -> Result<(), ModelError> {
        let key = "partial_rotary_factor";
        match self.number(key)? {
            None | Some(1.0) => Ok(()),
            Some(_) => Err(ModelError::config(self.path, self.key(key), "is not supported, only 1.0 is")),
        }
    }

    fn required(&self, key: &str) -> Result<f64, ModelError> {
        self.number(key)?.ok_or_else(|| ModelError::config(self.path, self.key(key), "is missing"))
    }

    fn yarn(&self, max_positions: usize) -> Result<RopeScaling, ModelError> {
        let original_context = self.number("original_max_position_embeddings")?.unwrap_or(max_positions as f64);
        let factor = self.number("factor")?.unwrap_or(max_positions as f64 / original_context);
        let stretch = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let attention_factor = match self.number("attention_factor")? {
            Some(v) => v,
            None => match (self.number("mscale")?, self.number("mscale_all_dim")?) {
                (Some(m), Some(all)) => stretch(m) / stretch(all),
                _ => stretch(1.0),
            },
        };
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: self.number("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.number("beta_slow")?.unwrap_or(1.0),
            original_context,
            attention_factor,
            truncate: self.map.get("truncate").and_then(Value::as_bool).unwrap_or(true),
        })
    }
}
