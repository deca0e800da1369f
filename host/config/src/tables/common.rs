//! Sections and words that several tables share.

use crate::macros::{choice, section};
use crate::schema::{Field, Kind, Node};
use std::fmt;
use std::str::FromStr;

/// Where the model computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// A CUDA device where the build and the machine have one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this index.
    Cuda(usize),
}

const DEVICE: &str = "\"auto\", \"cpu\", \"cuda\" or \"cuda:<index>\"";

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            other => {
                let index = other.strip_prefix("cuda:").and_then(|i| i.parse().ok());
                index.map(Device::Cuda).ok_or_else(|| format!("a device is {DEVICE}, not \"{other}\""))
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => write!(f, "auto"),
            Device::Cpu => write!(f, "cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        device.to_string()
    }
}

impl Field for Device {
    fn node() -> Node {
        Node { kind: Kind::Checked(DEVICE, |text| text.parse::<Device>().is_ok()), optional: false }
    }
}

choice! {
    /// Which implementation of the model computes.
    pub enum Kernels {
        /// Fused operations.
        "fast" => Fast,
        /// Plain tensor operations, for comparison.
        "reference" => Reference,
    }
}

choice! {
    /// How exactly a GPU multiplies matrices. The CPU always has f32.
    pub enum MatmulPrecision {
        /// f32 throughout, without TF32.
        "highest" => Highest,
        /// bf16 factors, f32 sums.
        "high" => High,
        /// Like "high".
        "medium" => Medium,
    }
}

choice! {
    /// How much is logged.
    pub enum LogLevel {
        /// Everything.
        "trace" => Trace,
        /// Details.
        "debug" => Debug,
        /// Progress.
        "info" => Info,
        /// Results and problems.
        "success" => Success,
        /// Problems.
        "warning" => Warning,
        /// Failures.
        "error" => Error,
    }
}

section! {
    /// Logging of one component.
    pub struct Log {
        /// Least severe level that is logged.
        level: LogLevel = LogLevel::Info;
        /// One JSON object per line instead of text.
        json_logging: bool = false;
    }
    unsupported ["vf_level", "log_data", "interval", "ranks_filter"]
}

section! {
    /// Recording in Weights & Biases' format.
    pub struct Wandb {
        /// Project.
        project: String = "prime-rl".to_string();
        /// Team or user.
        entity: Option<String> = None;
        /// Name of the run.
        name: Option<String> = None;
        /// Group of runs.
        group: Option<String> = None;
        /// Labels.
        tags: Option<Vec<String>> = None;
        /// Accepted as in prime-rl; runs are always recorded on disk only.
        offline: bool = false;
    }
    unsupported ["log_extras"]
}

section! {
    /// Where the tokenizer comes from.
    pub struct Tokenizer {
        /// Folder or hub id; by default that of the model.
        name: Option<String> = None => [Path];
        /// Chat template (text, or the path of a file) in place of the tokenizer's own.
        chat_template: Option<String> = None => [Path];
    }
    unsupported ["trust_remote_code"]
}
