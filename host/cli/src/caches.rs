//! Where what can be made anew is kept between runs. Must not know what it is.

use std::ffi::OsStr;
use std::path::PathBuf;

/// `$XDG_CACHE_HOME/prl/NAME`, else `$HOME/.cache/prl/NAME`; `None` without either. A relative path does not count, as the XDG
/// base directory specification has it.
pub fn folder(name: &str) -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name);
    folder_in(var("XDG_CACHE_HOME").as_deref(), var("HOME").as_deref(), name)
}

fn folder_in(xdg_cache_home: Option<&OsStr>, home: Option<&OsStr>, name: &str) -> Option<PathBuf> {
    let absolute = |dir: &OsStr| Some(PathBuf::from(dir)).filter(|dir| dir.is_absolute());
    let base = xdg_cache_home.and_then(absolute).or_else(|| home.and_then(absolute).map(|home| home.join(".cache")));
    base.map(|base| base.join("prl").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_place_follows_xdg() {
        let folder = |xdg: Option<&str>, home: Option<&str>| folder_in(xdg.map(OsStr::new), home.map(OsStr::new), "x");
        assert_eq!(folder(Some("/c"), Some("/h")), Some("/c/prl/x".into()));
        assert_eq!(folder(Some(""), Some("/h")), Some("/h/.cache/prl/x".into()));
        assert_eq!(folder(Some("c"), Some("/h")), Some("/h/.cache/prl/x".into()));
        assert_eq!(folder(None, None), None);
    }
}
