//! What can go wrong with a plug-in: each with its own line that names the file or the plug-in. Owns texts only.

use prl_abi::{ABI_MAJOR, ABI_MINOR};
use std::path::PathBuf;

/// An error of an algorithm plug-in, from finding it to reading its results.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the texts name
pub enum AlgorithmError {
    /// No plug-in has the name asked for.
    #[error(
        "there is no algorithm `{name}`: known are {}; searched {}; add one with --plugin FILE or PRL_PLUGIN_PATH",
        list(known, "none"),
        list(searched, "nowhere")
    )]
    UnknownType { name: String, known: Vec<String>, searched: Vec<String> },
    /// Two files given by `--plugin` claim one name.
    #[error("two plug-ins are named `{name}`: {} and {}; give only one of them to --plugin", first.display(), second.display())]
    Ambiguous { name: String, first: PathBuf, second: PathBuf },
    /// The file cannot be read.
    #[error("cannot read the plug-in {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file has no bytes.
    #[error("the plug-in {} is an empty file", path.display())]
    Empty { path: PathBuf },
    /// The file is something else.
    #[error("{} is not a plug-in: it is not an ELF shared library", path.display())]
    NotElf { path: PathBuf },
    /// The file starts like an ELF file but is cut off or broken.
    #[error("the plug-in {} is a damaged ELF file: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    /// Built for another machine.
    #[error("the plug-in {} is built for {found}, this machine is {}", path.display(), std::env::consts::ARCH)]
    Architecture { path: PathBuf, found: String },
    /// A shared library of some other kind.
    #[error("{} is a shared library but no prl plug-in: it has no section {}", path.display(), prl_abi::METADATA_SECTION)]
    NoMetadata { path: PathBuf },
    /// The metadata is not what `prl.h` says.
    #[error("the metadata of the plug-in {} is invalid: {reason}", path.display())]
    BadMetadata { path: PathBuf, reason: String },
    /// Built against another major version of the ABI.
    #[error("the plug-in {} speaks plug-in ABI {found}, this prl speaks {ABI_MAJOR}.{ABI_MINOR}: rebuild it against this prl's sdk", path.display())]
    AbiMajor { path: PathBuf, found: String },
    /// Built against a newer minor version of the ABI.
    #[error("the plug-in {} needs plug-in ABI {found}, this prl has {ABI_MAJOR}.{ABI_MINOR}: use a newer prl", path.display())]
    AbiMinor { path: PathBuf, found: String },
    /// The entry point is missing.
    #[error("the plug-in {} does not export the function {}", path.display(), prl_abi::INIT_SYMBOL)]
    MissingSymbol { path: PathBuf },
    /// The private copy cannot be written.
    #[error("cannot copy the plug-in {} to {}: {source}", path.display(), copy.display())]
    Copy { path: PathBuf, copy: PathBuf, source: std::io::Error },
    /// The dynamic linker refuses it.
    #[error("the plug-in {} cannot be loaded: {reason}", path.display())]
    Load { path: PathBuf, reason: String },
    /// Its entry point refuses this host.
    #[error("the plug-in `{name}` ({}) refuses to start: {reason}", path.display())]
    Refused { name: String, path: PathBuf, reason: String },
    /// The table does not start with the magic number.
    #[error("the plug-in `{name}` ({}) has a table with a wrong magic number: not built against prl.h, or damaged", path.display())]
    Magic { name: String, path: PathBuf },
    /// The table or the description contradicts `prl.h` or the metadata.
    #[error("the plug-in `{name}` ({}) breaks the plug-in ABI: {reason}", path.display())]
    Contract { name: String, path: PathBuf, reason: String },
    /// The plug-in does not take its configuration.
    #[error("the algorithm `{name}` rejects its configuration: {reason}")]
    Config { name: String, reason: String },
    /// A plug-in without a loss is asked for one.
    #[error("the algorithm `{name}` has no loss: [trainer.loss] needs a plug-in with the hook `loss`")]
    NoLoss { name: String },
    /// The caller's own lists contradict each other.
    #[error("the batch of a loss is broken: `{list}` has {len} where {due} is due")]
    Batch { list: &'static str, len: usize, due: usize },
    /// A call failed with a text of the plug-in.
    #[error("the algorithm `{name}` failed in {call}: {reason}")]
    Failed { name: String, call: &'static str, reason: String },
    /// A caught bug of the plug-in.
    #[error("the algorithm `{name}` panicked in {call}: {reason}")]
    Panic { name: String, call: &'static str, reason: String },
    /// A call gave something that cannot be used.
    #[error("the algorithm `{name}` gave an invalid result in {call}: {reason}")]
    Output { name: String, call: &'static str, reason: String },
    /// A file cannot take the place of the running instance, which goes on.
    #[error("the plug-in {} cannot take over from the running algorithm `{name}`, which goes on: {reason}", path.display())]
    Swap { name: String, path: PathBuf, reason: String },
    /// A checkpoint holds a state, but the plug-in has no hook for it.
    #[error("the algorithm `{name}` keeps no state, but the checkpoint holds {len_bytes} bytes of it")]
    NoState { name: String, len_bytes: usize },
}

fn list(items: &[String], none: &str) -> String {
    if items.is_empty() { none.into() } else { items.join(", ") }
}
