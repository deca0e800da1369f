//! Finding plug-ins, and files that are none: each refused with its own clear line.

mod common;

use common::{compile_c, group, library, outside};
use prl_algorithm::{AlgorithmError, Hook, Plugin, Registry, Search, inspect};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

fn refusal(path: &Path) -> AlgorithmError {
    let loaded = Plugin::load(path).unwrap_err();
    if let Err(inspected) = inspect(path) {
        assert_eq!(loaded.to_string(), inspected.to_string(), "both ways in say the same");
    }
    assert!(loaded.to_string().contains(path.to_str().unwrap()), "names the file: {loaded}");
    loaded
}

fn file(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn metadata_is_read_without_loading() {
    let metadata = inspect(&library("grpo")).unwrap();
    assert_eq!((metadata.name.as_str(), metadata.abi.as_str()), ("grpo", "1.0"));
    assert_eq!(metadata.hooks, [Hook::ScoreGroup]);
    assert_eq!(metadata.config_schema["properties"]["length_penalty"]["default"], serde_json::Value::Null);
}

#[test]
fn files_of_other_kinds_are_refused_by_kind() {
    let dir = tempfile::tempdir().unwrap();
    let good = fs::read(library("grpo")).unwrap();
    let refuse = |name: &str, bytes: &[u8]| refusal(&file(dir.path(), name, bytes));
    assert!(matches!(refuse("libempty.so", b""), AlgorithmError::Empty { .. }));
    assert!(matches!(refuse("libtext.so", b"hello, I am a text\n"), AlgorithmError::NotElf { .. }));
    assert!(matches!(refuse("libtiny.so", b"\x7f"), AlgorithmError::NotElf { .. }));
    for keep in [4, 40, 64, 1000, good.len() / 2, good.len() - 1] {
        let error = refuse("libcut.so", &good[..keep]);
        assert!(matches!(error, AlgorithmError::Damaged { .. }), "cut to {keep} bytes: {error}");
    }
    let mut other = good.clone();
    other[18..20].copy_from_slice(&if cfg!(target_arch = "x86_64") { 183u16 } else { 62 }.to_le_bytes());
    let error = refuse("libother.so", &other);
    assert!(matches!(error, AlgorithmError::Architecture { .. }), "{error}");
    let missing = dir.path().join("none.so");
    assert!(refusal(&missing).to_string().contains("cannot read the plug-in"));
    assert!(refusal(dir.path()).to_string().contains("cannot read the plug-in"));
}

const BAD_PLUGIN: &str = r#"
#include "prl.h"
#ifndef ABI
#define ABI "1.0"
#endif
#ifndef NAME
#define NAME "bad"
#endif
#ifndef MAGIC
#define MAGIC PRL_MAGIC
#endif
#ifndef SIZE
#define SIZE sizeof(prl_plugin)
#endif
#ifndef HOOKS
#define HOOKS ""
#endif
#ifndef NEEDS
#define NEEDS 0
#endif
#ifndef LOSS
#define LOSS 0
#endif
#ifndef MORE
#define MORE ""
#endif
#ifndef META
#define META "{\"name\": \"" NAME "\", \"version\": \"1\", \"abi\": \"" ABI "\", \"hooks\": [" HOOKS "], \"action_loss\": \"rl\"" MORE "}"
#endif
PRL_METADATA(META);
static int32_t describe(prl_description *out) {
  out->action_loss = PRL_ACTION_RL;
  out->needs = NEEDS;
  out->metadata = PRL_LITERAL(prl_metadata);
  return PRL_OK;
}
static int32_t create(const prl_host *host, prl_str config, void **instance) {
  (void)config; (void)instance; host->error(host->ctx, PRL_LITERAL("not today")); return PRL_ERROR;
}
static void destroy(void *instance) { (void)instance; }
int32_t loss(void *instance, const prl_batch *batch, prl_loss *out);
int32_t loss(void *instance, const prl_batch *batch, prl_loss *out) {
  (void)instance; (void)batch; (void)out; return PRL_OK;
}
static const prl_plugin table = {
    .magic = MAGIC, .abi_major = PRL_ABI_MAJOR, .abi_minor = PRL_ABI_MINOR, .struct_size = SIZE,
    .describe = describe, .create = create, .destroy = destroy, .loss = LOSS,
};
#ifndef NO_SYMBOL
PRL_EXPORT int32_t prl_plugin_init(uint32_t host_abi, const prl_plugin **out, prl_str *error) {
  (void)host_abi;
#ifdef REFUSE
  *error = PRL_LITERAL("no licence"); (void)out; return PRL_ERROR;
#elif defined NO_TABLE
  (void)out; (void)error; return PRL_OK;
#else
  *out = &table; (void)error; return PRL_OK;
#endif
}
#else
const prl_plugin *unused(void);
const prl_plugin *unused(void) { return &table; }
#endif
"#;

#[test]
fn libraries_that_break_the_abi_are_refused_by_rule() {
    let dir = tempfile::tempdir().unwrap();
    let source = file(dir.path(), "bad.c", BAD_PLUGIN.as_bytes());
    let test = "libraries_that_break_the_abi_are_refused_by_rule";
    let build = |name: &str, flags: &[&str]| {
        let path = dir.path().join(format!("lib{name}.so"));
        compile_c(test, &source, &path, flags).map(|()| path)
    };
    let unused = "-Wno-unused-const-variable";
    for (name, flags, line) in [
        ("major", vec!["-DABI=\"2.0\""], "speaks plug-in ABI 2.0, this prl speaks 1.0"),
        ("minor", vec!["-DABI=\"1.7\""], "needs plug-in ABI 1.7, this prl has 1.0: use a newer prl"),
        ("symbol", vec!["-DNO_SYMBOL"], "does not export the function prl_plugin_init"),
        ("magic", vec!["-DMAGIC=12345"], "has a table with a wrong magic number"),
        ("refuse", vec!["-DREFUSE", unused, "-Wno-unused-variable"], "refuses to start: no licence"),
        ("notable", vec!["-DNO_TABLE", unused, "-Wno-unused-variable"], "its entry point gave no table"),
        ("size", vec!["-DSIZE=40"], "its table has 40 bytes, at least 96 are due"),
        ("hooks", vec!["-DHOOKS=\"\\\"score_group\\\"\""], "its table lacks ScoreGroup, its metadata lists it"),
        ("needs", vec!["-DNEEDS=48"], "it needs things this host does not know (bits 0x30)"),
        ("teacher", vec!["-DNEEDS=1"], "it describes the needs 0x1, its metadata 0x0"),
        ("loss", vec!["-DLOSS=loss"], "its table has Loss, its metadata does not list it"),
        ("reference", vec!["-DMORE=\", \\\"reference\\\": \\\"policy\\\"\""], "need each other"),
        ("entropy", vec!["-DMORE=\", \\\"entropy\\\": true\""], "`entropy` is for a plug-in with the hook `loss`"),
        ("json", vec!["-DMETA=\"{oops\""], "the metadata of the plug-in"),
        ("noabi", vec!["-DMETA=\"{}\""], "the key `abi` is missing"),
        ("name", vec!["-DNAME=\"a b\""], "`name` is \"a b\""),
    ] {
        let Some(path) = build(name, &flags) else { return };
        let error = refusal(&path).to_string();
        assert!(error.contains(line), "{name}: {error}");
        assert!(!error.contains('\n'), "one line: {error}");
    }
    let Some(path) = build("fine", &[]) else { return };
    let error = Plugin::load(&path).unwrap().create(&serde_json::json!({}), 0).err().unwrap().to_string();
    assert_eq!(error, "the algorithm `bad` rejects its configuration: not today");

    let plain = file(dir.path(), "plain.c", b"int forty_two(void); int forty_two(void) { return 42; }\n");
    let path = dir.path().join("libplain.so");
    let Some(()) = compile_c(test, &plain, &path, &[]) else { return };
    assert!(matches!(refusal(&path), AlgorithmError::NoMetadata { .. }));
}

#[test]
fn a_registry_finds_by_name_and_says_what_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let (bin, extra) = (dir.path().join("bin"), dir.path().join("extra"));
    let lib = dir.path().join("lib/prl");
    for folder in [&bin, &extra, &lib] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::copy(library("grpo"), bin.join("libgrpo.so")).unwrap();
    fs::copy(outside("misbehave"), lib.join("libany_file_name.so")).unwrap();
    file(&bin, "libdamaged.so", b"\x7fELF");
    file(&bin, "notes.txt", b"not looked at");
    let path = std::env::join_paths([&extra, &dir.path().join("missing")]).unwrap();
    let search = |plugins| Search::new(plugins, Some(&path), &bin.join("prl"));

    let registry = Registry::discover(&search(vec![])).unwrap();
    let names: Vec<&str> = registry.found().iter().map(|found| found.metadata.name.as_str()).collect();
    assert_eq!(names, ["grpo", "misbehave"]);
    let broken: Vec<&Path> = registry.broken().map(|(path, _)| path).collect();
    assert_eq!(broken, [bin.join("libdamaged.so")]);
    assert_eq!(registry.open("grpo").unwrap().path(), bin.join("libgrpo.so"));
    assert_eq!(registry.open("misbehave").unwrap().metadata().name, "misbehave");
    assert!(matches!(registry.open("damaged").unwrap_err(), AlgorithmError::Damaged { .. }));
    let error = registry.open("gpro").unwrap_err().to_string();
    assert!(error.starts_with("there is no algorithm `gpro`: known are `grpo`, `misbehave`; searched "), "{error}");
    for place in [&extra, &bin, &lib] {
        assert!(error.contains(place.to_str().unwrap()), "{error}");
    }

    // PRL_PLUGIN_PATH wins over the binary's folder, --plugin over both.
    fs::copy(library("grpo"), extra.join("libmine.so")).unwrap();
    assert_eq!(Registry::discover(&search(vec![])).unwrap().get("grpo").unwrap().path, extra.join("libmine.so"));
    let given = dir.path().join("given.so");
    fs::copy(library("grpo"), &given).unwrap();
    let registry = Registry::discover(&search(vec![given.clone()])).unwrap();
    assert_eq!(registry.get("grpo").unwrap().path, given);
    let twice = Registry::discover(&search(vec![given, extra.join("libmine.so")])).unwrap_err();
    assert!(matches!(twice, AlgorithmError::Ambiguous { .. }), "{twice}");
    let text = Registry::discover(&search(vec![bin.join("notes.txt")])).unwrap_err();
    assert!(matches!(text, AlgorithmError::NotElf { .. }), "{text}");

    let empty = Registry::discover(&Search::default()).unwrap().open("grpo").unwrap_err().to_string();
    assert!(empty.starts_with("there is no algorithm `grpo`: known are none; searched nowhere"), "{empty}");
}

#[test]
fn a_cargo_checkout_finds_the_freshly_built_library() {
    let search = Search::new(vec![], Some(OsStr::new("")), Path::new("/x/target/release/prl"));
    let places = ["/x/target/release/deps", "/x/target/release", "/x/target/lib/prl"].map(PathBuf::from);
    assert_eq!(search.places, places);
}

#[test]
fn a_loaded_plugin_does_not_depend_on_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("libcopy_of_grpo_{}.so", std::process::id());
    let path = dir.path().join(&name);
    fs::copy(library("grpo"), &path).unwrap();
    let plugin = Plugin::load(&path).unwrap();
    fs::write(&path, b"rebuilding").unwrap();
    let mut grpo = plugin.create(&serde_json::json!({}), 0).unwrap();
    let rollouts = group(&[0.0, 1.0]);
    let scored = grpo.score_group(&rollouts.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(scored.streams[1][0].advantages.as_ref().unwrap()[4], 0.5);
    fs::remove_file(&path).unwrap();
    for folder in fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        assert!(!folder.path().join(&name).exists(), "{} was left behind", folder.path().display());
    }
}
