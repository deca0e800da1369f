//! `prl algo new`: a first plug-in in a new folder. Owns the names put into a template; what is in one is `sdk/templates`'.

use super::New;
use crate::failure::Failure;
use crate::template::{self, camel};
use crate::{logging, sdk};
use clap::ValueEnum;
use std::path::Path;

/// Languages with a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lang {
    /// Rust.
    Rust,
    /// C.
    C,
}

/// The Rust template: file names and texts.
const RUST: [(&str, &str); 4] = [
    ("Cargo.toml", include_str!("../../../../sdk/templates/algorithm-rust/Cargo.toml")),
    ("src/lib.rs", include_str!("../../../../sdk/templates/algorithm-rust/src/lib.rs")),
    ("README.md", include_str!("../../../../sdk/templates/algorithm-rust/README.md")),
    (".gitignore", include_str!("../../../../sdk/templates/algorithm-rust/gitignore")),
];

/// The C template. The header goes with it, so that the folder needs nothing else.
const C: [(&str, &str); 4] = [
    ("tempered.c", include_str!("../../../../sdk/templates/algorithm-c/tempered.c")),
    ("test.c", include_str!("../../../../sdk/templates/algorithm-c/test.c")),
    ("README.md", include_str!("../../../../sdk/templates/algorithm-c/README.md")),
    (".gitignore", include_str!("../../../../sdk/templates/algorithm-c/gitignore")),
];

/// The header of the plug-in ABI.
const HEADER: &str = include_str!("../../../../sdk/abi/include/prl.h");

/// Runs the command.
pub fn run(asked: &New) -> Result<u8, Failure> {
    let name = asked.name.as_str();
    let module = name.replace('-', "_");
    template::check_name("algorithm", name, asked.lang == Lang::Rust, module.starts_with("prl_"))?;
    let dir = Path::new(name);
    let (build, file) = match asked.lang {
        Lang::Rust => {
            let sdk = template::in_toml(&sdk::folder(asked.sdk.as_deref(), "algorithm")?.join("algorithm"))?;
            let camel = camel(name);
            let words = [("tempered_file", module.as_str()), ("Tempered", &camel), ("tempered", name)];
            template::write(dir, &RUST, &[&words[..], &[("../../algorithm", &sdk)]].concat())?;
            ("cargo test && cargo build --release".to_owned(), format!("target/release/lib{module}.so"))
        }
        Lang::C => {
            template::write(dir, &C, &[("tempered", name)])?;
            template::write(dir, &[("prl.h", HEADER)], &[])?;
            let test = "cc -std=c11 test.c -o test && ./test";
            (format!("{test} && cc -std=c11 -O2 -fPIC -shared {name}.c -o {name}.so"), format!("./{name}.so"))
        }
    };
    logging::print(&format!("Wrote {name}. Next: cd {name} && {build} && prl algo check {file}"))
}
