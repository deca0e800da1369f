//! From the words of a command line to a plug-in. Owns where names and files lead; must not know what is done with it.

use crate::failure::{Failure, input, run as running};
use clap::Args;
use prl_algorithm::{Plugin, Registry, Search};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Which plug-in.
#[derive(Args)]
pub struct Asked {
    /// A plug-in file, or a name that is looked up as in a run's configuration.
    pub algo: String,
    /// A plug-in file that wins over all others of its name; may be repeated.
    #[arg(long = "plugin", value_name = "FILE")]
    pub plugins: Vec<PathBuf>,
}

impl Asked {
    /// Its file.
    ///
    /// # Errors
    /// No plug-in has the name; a file of `--plugin` is none.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        match self.file() {
            Some(path) => Ok(path.to_owned()),
            None => registry(self.plugins.clone())?.locate(&self.algo).map_err(Failure::input),
        }
    }

    /// The plug-in, loaded.
    ///
    /// # Errors
    /// As [`Asked::path`], and everything that makes the file no plug-in of this host.
    pub fn plugin(&self) -> Result<Plugin, Failure> {
        Plugin::load(&self.path()?).map_err(Failure::input)
    }

    /// The file that the word itself names: names of algorithms have neither a slash nor a dot.
    fn file(&self) -> Option<&Path> {
        self.algo.contains(['/', '.']).then(|| Path::new(&self.algo))
    }
}

/// All plug-ins in reach; those of `plugins` first.
///
/// # Errors
/// A file of `plugins` is no plug-in, or two of them have one name.
pub fn registry(plugins: Vec<PathBuf>) -> Result<Registry, Failure> {
    let binary = std::env::current_exe().map_err(running("the path of this binary"))?;
    let search = Search::new(plugins, std::env::var_os("PRL_PLUGIN_PATH").as_deref(), &binary);
    Registry::discover(&search).map_err(Failure::input)
}

/// The value of `--config`.
///
/// # Errors
/// It is no JSON object.
pub fn config(text: &str) -> Result<Value, Failure> {
    let value: Value = serde_json::from_str(text).map_err(input("`--config` is no JSON"))?;
    match value.is_object() {
        true => Ok(value),
        false => Err(Failure::input(format_args!("`--config`: {value} is no JSON object"))),
    }
}
