//! Loading a plug-in: a private copy, its table, the check that table, description and metadata agree. The library stays
//! loaded for the life of the process. Must not score anything.

use crate::host::{Context, HostTable, Places, text};
use crate::metadata::{Parsed, open, parse};
use crate::{ActionLoss, Algorithm, AlgorithmError, Hook, Metadata};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use prl_abi::ids::{action, needs};
use prl_abi::{ABI_VERSION, Description, INIT_SYMBOL, Init, MAGIC, PLUGIN_SIZE_1_0, Str};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::mem::{MaybeUninit, size_of};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A loaded plug-in.
#[derive(Clone, Debug)]
pub struct Plugin {
    path: PathBuf,
    metadata: Metadata,
    table: prl_abi::Plugin,
}

impl Plugin {
    /// Reads, checks and loads a plug-in file. Later changes of the file do not affect it.
    ///
    /// # Errors
    /// Everything that makes the file no plug-in of this host; the dynamic linker's and the plug-in's own refusals.
    pub fn load(path: &Path) -> Result<Self, AlgorithmError> {
        let mut bytes = Vec::new();
        let read = open(path)?.read_to_end(&mut bytes);
        read.map_err(|source| AlgorithmError::Read { path: path.into(), source })?;
        let Parsed { metadata, section } = parse(path, &*bytes)?;
        let library = load_copy(path, &bytes)?;
        let plugin = Plugin { table: start(path, &metadata, library)?, path: path.into(), metadata };
        plugin.check_description(&section)?;
        Ok(plugin)
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says about itself.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Makes an instance that scores. `config` holds the plug-in's keys of `[orchestrator.algo]`; `seed` is the instance's
    /// own.
    ///
    /// # Errors
    /// [`AlgorithmError::Config`] with the plug-in's text, [`AlgorithmError::Panic`].
    pub fn create(&self, config: &Value, seed: u64) -> Result<Algorithm, AlgorithmError> {
        let host = HostTable::new(Context::new(&self.metadata.name));
        let config = config.to_string();
        let mut instance = ptr::null_mut();
        let Some(create) = self.table.create else { return Err(self.contract("its table has no `create`")) };
        host.context().begin(seed, Places::default());
        // SAFETY: the table was checked; host, text and result place are valid during the call, the host for longer.
        let code = unsafe { create(host.as_ptr(), Str::new(&config), &mut instance) };
        let outcome = host.context().end();
        let name = || self.metadata.name.clone();
        let reason = outcome.error.or(outcome.fault).unwrap_or_else(|| format!("it returned {code} without a reason"));
        match code {
            prl_abi::OK => Ok(Algorithm::new(self.metadata.clone(), self.table, host, instance, seed)),
            prl_abi::PANIC => Err(AlgorithmError::Panic { name: name(), call: "create", reason }),
            _ => Err(AlgorithmError::Config { name: name(), reason }),
        }
    }

    /// Makes an instance whose loss is called. `config` holds the plug-in's keys of `[trainer.loss]`.
    ///
    /// # Errors
    /// As [`Plugin::create`], and [`AlgorithmError::NoLoss`].
    pub fn create_loss(&self, config: &Value, seed: u64) -> Result<Algorithm, AlgorithmError> {
        if self.table.loss.is_none() {
            return Err(AlgorithmError::NoLoss { name: self.metadata.name.clone() });
        }
        self.create(config, seed)
    }

    fn contract(&self, reason: impl Into<String>) -> AlgorithmError {
        contract(&self.path, &self.metadata, reason)
    }

    fn check_description(&self, section: &[u8]) -> Result<(), AlgorithmError> {
        let table = &self.table;
        for (hook, given) in [
            (Hook::ScoreRollout, table.score_rollout.is_some()),
            (Hook::ScoreGroup, table.score_group.is_some()),
            (Hook::State, table.save_state.is_some()),
            (Hook::Loss, table.loss.is_some()),
            (Hook::Reference, table.reference.is_some()),
        ] {
            if given != self.metadata.hooks.contains(&hook) {
                let (has, lists) = if given { ("has", "does not list") } else { ("lacks", "lists") };
                return Err(self.contract(format!("its table {has} {hook:?}, its metadata {lists} it")));
            }
        }
        if table.save_state.is_some() != table.load_state.is_some() {
            return Err(self.contract("its table has only one of save_state and load_state"));
        }
        if table.create.is_none() || table.destroy.is_none() {
            return Err(self.contract("its table lacks `create` or `destroy`"));
        }
        let Some(describe) = table.describe else { return Err(self.contract("its table lacks `describe`")) };
        let size = size_of::<Description>() as u32;
        let mut out = Description { struct_size: size, action_loss: 0, needs: 0, metadata: Str::EMPTY };
        // SAFETY: the table was checked, and `out` is as long as it says.
        let code = unsafe { describe(&mut out) };
        if code != prl_abi::OK {
            return Err(self.contract(format!("`describe` returned {code}")));
        }
        let declared = match self.metadata.action_loss {
            ActionLoss::Rl => action::RL,
            ActionLoss::Ce => action::CE,
            ActionLoss::RefKl => action::REF_KL,
        };
        if out.action_loss != declared {
            return Err(self.contract("`describe` and the metadata differ in the action loss"));
        }
        let known = needs::ALL.iter().fold(0, |bits, (_, bit)| bits | u64::from(*bit));
        if out.needs & !known != 0 {
            let unknown = out.needs & !known;
            return Err(self.contract(format!("it needs things this host does not know (bits {unknown:#x})")));
        }
        if out.needs != self.metadata.needs() {
            let (described, declared) = (out.needs, self.metadata.needs());
            return Err(self.contract(format!("it describes the needs {described:#x}, its metadata {declared:#x}")));
        }
        // SAFETY: a static text by `prl.h`.
        let described = unsafe { out.metadata.bytes() }.unwrap_or_default();
        if trim(described) != trim(section) {
            return Err(self.contract("`describe` gives other metadata than the file's section"));
        }
        Ok(())
    }
}

fn trim(text: &[u8]) -> &[u8] {
    &text[..text.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1)]
}

fn contract(path: &Path, metadata: &Metadata, reason: impl Into<String>) -> AlgorithmError {
    AlgorithmError::Contract { name: metadata.name.clone(), path: path.into(), reason: reason.into() }
}

/// Writes the bytes to a new private file, loads it, and deletes the file: the mapping stays.
fn load_copy(path: &Path, bytes: &[u8]) -> Result<Library, AlgorithmError> {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    let number = COPIES.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("prl-plugin-{}-{number}", std::process::id()));
    let file = path.file_name().unwrap_or(path.as_os_str());
    let copy = folder.join(file);
    let written = private_folder(&folder).and_then(|()| fs::write(&copy, bytes));
    let loaded = written
        .map_err(|source| AlgorithmError::Copy { path: path.into(), copy: copy.clone(), source })
        .and_then(|()| {
            // SAFETY: running the initialisers of a plug-in is what loading one means; plug-ins are trusted code.
            unsafe { Library::open(Some(&copy), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| AlgorithmError::Load {
                path: path.into(),
                reason: std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string),
            })
        });
    // Best effort: what stays behind is a folder in the temporary directory.
    let _ = fs::remove_dir_all(&folder);
    loaded
}

/// A folder that did not exist before and that only this user can enter.
fn private_folder(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o700).create(folder)
}

/// Calls the entry point and copies the table. Keeps the library loaded from then on.
fn start(path: &Path, metadata: &Metadata, library: Library) -> Result<prl_abi::Plugin, AlgorithmError> {
    // SAFETY: `prl.h` gives the symbol this type.
    let init = unsafe { library.get::<Init>(INIT_SYMBOL.as_bytes()) }.map(|symbol| *symbol);
    let init = init.map_err(|_| AlgorithmError::MissingSymbol { path: path.into() })?;
    // Never unloaded: threads and thread-locals of the plug-in may outlive any instance.
    std::mem::forget(library);
    let (mut table, mut error) = (ptr::null(), Str::EMPTY);
    // SAFETY: both places are valid during the call.
    let code = unsafe { init(ABI_VERSION, &mut table, &mut error) };
    let name = || metadata.name.clone();
    if code != prl_abi::OK {
        // SAFETY: a static text by `prl.h`.
        let reason = match unsafe { text(error) } {
            text if text.is_empty() => format!("it returned {code} without a reason"),
            text => text,
        };
        return Err(AlgorithmError::Refused { name: name(), path: path.into(), reason });
    }
    if table.is_null() {
        return Err(contract(path, metadata, "its entry point gave no table"));
    }
    // SAFETY: a table starts with the magic number; only when it is right is the rest read.
    if unsafe { ptr::addr_of!((*table).magic).read_unaligned() } != MAGIC {
        return Err(AlgorithmError::Magic { name: name(), path: path.into() });
    }
    // SAFETY: the header of every version has these fields.
    let (major, minor, size) = unsafe { ((*table).abi_major, (*table).abi_minor, (*table).struct_size as usize) };
    if format!("{major}.{minor}") != metadata.abi {
        let reason = format!("its table says ABI {major}.{minor}, its metadata {}", metadata.abi);
        return Err(contract(path, metadata, reason));
    }
    if size < PLUGIN_SIZE_1_0 {
        return Err(contract(
            path,
            metadata,
            format!("its table has {size} bytes, at least {PLUGIN_SIZE_1_0} are due"),
        ));
    }
    // What an older plug-in's table lacks stays 0, which is `None` for every function.
    let mut copy = MaybeUninit::<prl_abi::Plugin>::zeroed();
    let known = size.min(size_of::<prl_abi::Plugin>());
    // SAFETY: `known` bytes are there on both sides; all-zero is a valid value of each field.
    unsafe {
        ptr::copy_nonoverlapping(table.cast::<u8>(), copy.as_mut_ptr().cast(), known);
        Ok(copy.assume_init())
    }
}
