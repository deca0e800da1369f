//! Reads what a plug-in file says about itself without running any of its code. Owns the checks that come before loading;
//! must not load anything.

use crate::{ActionLoss, AlgorithmError};
use object::{Architecture, Object, ObjectSection, ObjectSymbol, ReadCache, ReadRef};
use prl_abi::ids::needs;
use prl_abi::{ABI_MAJOR, ABI_MINOR, INIT_SYMBOL, METADATA_SECTION};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::path::Path;

/// An optional function that a plug-in has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// Sees each rollout when it finishes.
    ScoreRollout,
    /// Sees each group when it is complete.
    ScoreGroup,
    /// Has a state that checkpoints hold.
    State,
    /// Supplies the loss.
    Loss,
    /// Asks for references under the live policy.
    Reference,
}

/// Which reference log-probabilities a plug-in needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// None.
    #[default]
    None,
    /// Those of a frozen model.
    Teacher,
    /// Those of the live policy, behind messages that the plug-in asks for.
    Policy,
}

/// What the rollouts of a plug-in are sampled from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The policy that is trained.
    #[default]
    Policy,
    /// A frozen model.
    Frozen,
}

/// What a plug-in's file says about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// The value of `[orchestrator.algo] type` that selects it.
    pub name: String,
    /// Version of the plug-in, free text.
    pub version: String,
    /// ABI it was built against, `major.minor`.
    pub abi: String,
    /// Optional functions it has.
    pub hooks: Vec<Hook>,
    /// What sampled tokens feed.
    pub action_loss: ActionLoss,
    /// The references it needs.
    #[serde(default)]
    pub reference: Reference,
    /// What its rollouts are sampled from.
    #[serde(default)]
    pub source: Source,
    /// Whether its loss needs entropies.
    #[serde(default)]
    pub entropy: bool,
    /// JSON Schema of its configuration; null when it has none.
    #[serde(default)]
    pub config_schema: Value,
}

impl Metadata {
    /// The same needs as `PRL_NEEDS_*` bits.
    pub(crate) fn needs(&self) -> u64 {
        let reference = match self.reference {
            Reference::None => 0,
            Reference::Teacher => needs::TEACHER,
            Reference::Policy => needs::POLICY_REFERENCE,
        };
        let source = if self.source == Source::Frozen { needs::FROZEN_SOURCE } else { 0 };
        let entropy = if self.entropy { needs::ENTROPY } else { 0 };
        u64::from(reference | source | entropy)
    }
}

/// Reads the metadata of a plug-in and checks that this host could load it. Reads headers and one section only.
///
/// # Errors
/// Everything that makes the file no loadable plug-in, short of running it.
pub fn inspect(path: &Path) -> Result<Metadata, AlgorithmError> {
    Ok(parse(path, &ReadCache::new(open(path)?))?.metadata)
}

/// Opens a file that could be a plug-in: a regular one with at least one byte.
pub(crate) fn open(path: &Path) -> Result<File, AlgorithmError> {
    let read = |source| AlgorithmError::Read { path: path.into(), source };
    // Asked before opening: opening a named pipe would wait for its writer.
    let about = std::fs::metadata(path).map_err(read)?;
    if !about.is_file() {
        return Err(read(std::io::Error::other("not a regular file")));
    }
    if about.len() == 0 {
        return Err(AlgorithmError::Empty { path: path.into() });
    }
    File::open(path).map_err(read)
}

/// What [`parse`] found.
pub(crate) struct Parsed {
    pub metadata: Metadata,
    /// The metadata section as it is in the file.
    pub section: Vec<u8>,
}

/// As [`inspect`], on data that is there already; `path` is for errors.
pub(crate) fn parse<'d, R: ReadRef<'d>>(path: &Path, data: R) -> Result<Parsed, AlgorithmError> {
    let damaged = |e: object::Error| AlgorithmError::Damaged { path: path.into(), reason: e.to_string() };
    match data.read_bytes_at(0, 4) {
        Ok(b"\x7fELF") => {}
        _ => return Err(AlgorithmError::NotElf { path: path.into() }),
    }
    let file = object::File::parse(data).map_err(damaged)?;
    if file.architecture() != this_architecture() || !file.is_64() || !file.is_little_endian() {
        let bits = if file.is_64() { 64 } else { 32 };
        let order = if file.is_little_endian() { "little" } else { "big" };
        let found = format!("{:?} ({bits} bits, {order}-endian)", file.architecture());
        return Err(AlgorithmError::Architecture { path: path.into(), found });
    }
    let Some(section) = file.section_by_name(METADATA_SECTION) else {
        return Err(AlgorithmError::NoMetadata { path: path.into() });
    };
    let section = section.data().map_err(damaged)?.to_vec();
    let metadata = read_json(path, &section)?;
    // A library that is cut off behind its headers still has them: its symbols are then out of reach.
    let symbols = file.dynamic_symbol_table().ok_or_else(|| AlgorithmError::MissingSymbol { path: path.into() })?;
    let exported = |symbol: object::Symbol<'d, '_, R>| symbol.is_definition() && symbol.name() == Ok(INIT_SYMBOL);
    if !object::ObjectSymbolTable::symbols(&symbols).any(exported) {
        return Err(AlgorithmError::MissingSymbol { path: path.into() });
    }
    Ok(Parsed { metadata, section })
}

fn this_architecture() -> Architecture {
    match std::env::consts::ARCH {
        "x86_64" => Architecture::X86_64,
        "aarch64" => Architecture::Aarch64,
        "riscv64" => Architecture::Riscv64,
        "powerpc64" => Architecture::PowerPc64,
        "loongarch64" => Architecture::LoongArch64,
        _ => Architecture::Unknown,
    }
}

fn read_json(path: &Path, section: &[u8]) -> Result<Metadata, AlgorithmError> {
    let bad = |reason: String| AlgorithmError::BadMetadata { path: path.into(), reason };
    // C strings end with a NUL, which is no JSON.
    let end = section.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    let value: Value = serde_json::from_slice(&section[..end]).map_err(|e| bad(e.to_string()))?;
    // The version first: another version may have other keys.
    let abi = value.get("abi").and_then(Value::as_str).ok_or_else(|| bad("the key `abi` is missing".into()))?;
    let numbers = abi.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor): (u32, u32) = numbers.ok_or_else(|| bad(format!("`abi` is {abi:?}, not \"major.minor\"")))?;
    if major != ABI_MAJOR {
        return Err(AlgorithmError::AbiMajor { path: path.into(), found: abi.into() });
    }
    if minor > ABI_MINOR {
        return Err(AlgorithmError::AbiMinor { path: path.into(), found: abi.into() });
    }
    let metadata: Metadata = serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if metadata.name.is_empty() || !metadata.name.chars().all(plain) {
        return Err(bad(format!("`name` is {:?}; letters, digits, `_` and `-` are allowed", metadata.name)));
    }
    if (metadata.reference == Reference::Policy) != metadata.hooks.contains(&Hook::Reference) {
        return Err(bad("the hook `reference` and `\"reference\": \"policy\"` need each other".into()));
    }
    if metadata.entropy && !metadata.hooks.contains(&Hook::Loss) {
        return Err(bad("`entropy` is for a plug-in with the hook `loss`".into()));
    }
    Ok(metadata)
}
