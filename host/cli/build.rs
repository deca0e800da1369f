//! Takes the Python SDK into the binary, so that one without prl's sources makes and builds Python environments. Owns the
//! list of its files; what becomes of them is `env/sdk.rs`'s.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Asked now and not when this was compiled: clones may share a target folder.
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let package = here.join("../../sdk/python/src/prl_env").canonicalize()?;
    let mut files = Vec::new();
    gather(&package, Path::new(""), &mut files)?;
    files.sort();
    println!("cargo:rerun-if-changed={}", package.display());
    println!("cargo:rerun-if-changed={}", package.join("wit").canonicalize()?.display());
    let mut list = String::from("[\n");
    for file in &files {
        writeln!(list, "({file:?}, include_bytes!({:?}).as_slice()),", package.join(file))?;
    }
    list.push(']');
    std::fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("python_sdk.rs"), list)?;
    Ok(())
}

/// Every file below `dir`, by its path in the package. `wit` is a link to the contract; what it leads to is taken.
fn gather(package: &Path, dir: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(package.join(dir))? {
        let inside = dir.join(entry?.file_name());
        if inside.ends_with("__pycache__") {
            continue;
        }
        match package.join(&inside).is_dir() {
            true => gather(package, &inside, files)?,
            false => files.push(inside),
        }
    }
    Ok(())
}
