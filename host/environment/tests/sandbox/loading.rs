//! Files that are no environments, and how each is told.

use super::common::{limits, plain, sandbox, wasm};
use prl_environment::{Grant, LoadConfig, LoadError, Sandbox, SandboxConfig};
use std::fs;
use std::path::Path;
use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
use wit_parser::{ManglingAndAbi, Resolve};

const CONTRACT: &str = include_str!("../../../../sdk/wit/since_v0.1.0/env.wit");

/// A component of `world` whose functions all trap.
fn component(wit: &str, world: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", wit).unwrap();
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut module = dummy_module(&resolve, world, ManglingAndAbi::Standard32);
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    ComponentEncoder::default().validate(true).module(&module).unwrap().encode().unwrap()
}

async fn refusal(dir: &Path, bytes: &[u8]) -> String {
    let path = dir.join("x.wasm");
    fs::write(&path, bytes).unwrap();
    let error = sandbox().load(&path, &plain(limits())).await.expect_err("the file is refused").to_string();
    assert!(error.starts_with(&format!("`{}`", path.display())), "{error}");
    assert!(!error.contains('\n'), "{error}");
    error.replacen(&path.display().to_string(), "x", 1)
}

#[tokio::test]
async fn each_wrong_file_has_one_clear_line() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    assert_eq!(refusal(dir, b"").await, "`x` is not a WASM file: it is empty");
    assert_eq!(refusal(dir, b"\x7fELF\x02\x01\x01\0\0").await, "`x` is not a WASM file: it does not begin like one");
    assert!(refusal(dir, b"\0asm\x01\0\0\0").await.starts_with("`x` is a core WASM module, not a component"));
    let whole = fs::read(wasm("reverse-text")).unwrap();
    assert!(refusal(dir, &whole[..50_000]).await.starts_with("`x` is cut off"));
    let junk = refusal(dir, b"\0asm\x0d\0\x01\0\x63\x03abc").await;
    assert!(junk.starts_with("`x` is not a valid WASM component: "), "{junk}");
    let missing = sandbox().load(&dir.join("none.wasm"), &plain(limits())).await.err().unwrap();
    assert!(matches!(missing, LoadError::Read { .. }), "{missing}");

    let other = component("package a:b; world w { export run: func(); export greet: interface { hi: func(); } }", "w");
    assert_eq!(
        refusal(dir, &other).await,
        "`x` is a component but not an environment: it exports `run`, `greet` and not `prl:env/environment`"
    );
    let nothing = component("package a:b; world w { }", "w");
    assert!(refusal(dir, &nothing).await.contains("it exports nothing and not"));

    let newer = component(&CONTRACT.replace("prl:env@0.1.0", "prl:env@0.2.0"), "pure-env");
    assert_eq!(
        refusal(dir, &newer).await,
        "`x` was built for prl:env 0.2.0, this prl runs prl:env 0.1.x: it needs a newer prl, one that runs prl:env 0.2"
    );
    let older = component(&CONTRACT.replace("prl:env@0.1.0", "prl:env@0.0.9"), "pure-env");
    assert!(refusal(dir, &older).await.ends_with("build it anew with the current prl-env"));

    let bent = component(&CONTRACT.replace("index: u64, seed: u64) ->", "index: u64) ->"), "pure-env");
    let bent = refusal(dir, &bent).await;
    assert!(
        bent.starts_with("`x` does not match the interface it names: ") && bent.contains("type mismatch"),
        "{bent}"
    );
}

/// https://github.com/huggingface/OpenEnv/issues/1232
/// https://github.com/SJTU-DENG-Lab/LightningRL/issues/1
/// https://github.com/vecna-labs/open-range/issues/202
#[tokio::test]
async fn imports_need_a_grant_or_are_refused_by_name() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    assert_eq!(
        refusal(dir, &component(CONTRACT, "judged-env")).await,
        "`x` imports `prl:env/llm@0.1.0`, which this run does not grant; if it may, add \"llm\" to its `grants`"
    );
    let path = dir.join("granted.wasm");
    fs::write(&path, component(CONTRACT, "full-env")).unwrap();
    let config = |grants: &[Grant]| LoadConfig { limits: limits(), grants: grants.to_vec() };
    let refused = sandbox().load(&path, &config(&[Grant::Llm, Grant::Kv])).await.err().unwrap();
    assert!(
        matches!(&refused, LoadError::NotGranted { import, grant: Grant::Assets, .. } if import == "prl:env/assets@0.1.0")
    );
    // With all it gets as far as its description, which traps.
    let taken = sandbox().load(&path, &config(&Grant::ALL)).await.err().unwrap();
    assert!(matches!(taken, LoadError::Describe { .. }), "{taken}");

    let greedy = CONTRACT.replace("  import log;\n", "  import log;\n  import camera;\n")
        + "\ninterface camera { look: func() -> string; }\n";
    let refused = refusal(dir, &component(&greedy, "pure-env")).await;
    assert_eq!(
        refused,
        "`x` imports `prl:env/camera@0.1.0`, which no environment can have; there are `prl:env/log`, with a grant \
         `prl:env/assets`, `prl:env/http`, `prl:env/kv`, `prl:env/llm`, and `wasi:*@0.2`, which is denied deterministically"
    );
    let later = component(&greedy.replace("prl:env@0.1.0", "prl:env@0.1.4"), "pure-env");
    assert!(refusal(dir, &later).await.ends_with("it imports `prl:env/camera@0.1.4` and needs a newer prl"));
}

#[tokio::test]
async fn a_later_patch_of_the_same_track_is_welcome() {
    // Its functions trap, so that it gets as far as its description says that it was taken for an environment.
    let temp = tempfile::tempdir().unwrap();
    for version in ["0.1.0", "0.1.7"] {
        let text = CONTRACT.replace("prl:env@0.1.0", &format!("prl:env@{version}"));
        let refused = refusal(temp.path(), &component(&text, "pure-env")).await;
        assert!(
            refused.contains("`x` cannot be described: ") && refused.contains("in `describe`: it crashed"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn compiled_code_is_kept_and_a_bad_cache_is_survived() {
    let temp = tempfile::tempdir().unwrap();
    let cache = temp.path().join("cache");
    let config = SandboxConfig { cache_dir: Some(cache.clone()), threads: 1 };
    let files = || fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let first = Sandbox::new(&config).unwrap().load(&wasm("misbehave"), &plain(limits())).await.unwrap();
    let kept = files();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let name = kept[0].file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(first.sha256()) && name.ends_with(".cwasm"), "{name}");
    let second = Sandbox::new(&config).unwrap().load(&wasm("misbehave"), &plain(limits())).await.unwrap();
    assert_eq!((first.info(), files().len()), (second.info(), 1));

    let good = fs::read(&kept[0]).unwrap();
    let mut flipped = good.clone();
    flipped[10_000] ^= 1;
    for bad in [&b"not code"[..], &good[..5000], &flipped] {
        fs::write(&kept[0], bad).unwrap();
        let again = Sandbox::new(&config).unwrap().load(&wasm("misbehave"), &plain(limits())).await.unwrap();
        assert_eq!(first.info(), again.info());
        assert_eq!(fs::read(&kept[0]).unwrap().len(), good.len(), "the bad file was replaced");
    }

    let blocked = SandboxConfig { cache_dir: Some(kept[0].join("below-a-file")), threads: 1 };
    assert!(Sandbox::new(&blocked).unwrap().load(&wasm("misbehave"), &plain(limits())).await.is_ok());
}

/// The module with an endless loop as its start function, which runs when it is instantiated.
fn with_endless_start(module: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (module[..8].to_vec(), &module[8..]);
    let (mut types, mut functions) = (0, 0);
    let mut sections = Vec::new();
    while let Some((id, after)) = rest.split_first() {
        let (size, body) = leb(after);
        sections.push((*id, body[..size].to_vec()));
        rest = &body[size..];
    }
    for (id, body) in &mut sections {
        match id {
            1 => types = append(body, &[0x60, 0, 0]),
            2 => functions += imported_functions(body),
            3 => functions += append(body, &lebs(types)),
            // No locals; loop, branch to it, and both ends.
            10 => drop(append(body, &[7, 0, 0x03, 0x40, 0x0c, 0, 0x0b, 0x0b])),
            _ => {}
        }
    }
    let code = sections.iter().position(|(id, _)| *id == 10).expect("it has code");
    let elements = sections.iter().position(|(id, _)| *id == 9 || *id == 12).unwrap_or(code);
    sections.insert(elements, (8, lebs(functions)));
    for (id, body) in sections {
        out.push(id);
        out.extend(lebs(body.len()));
        out.extend(body);
    }
    out
}

/// Adds an item to a section of counted items; gives its index.
fn append(section: &mut Vec<u8>, item: &[u8]) -> usize {
    let (count, items) = leb(section);
    let mut new = lebs(count + 1);
    new.extend(items);
    new.extend(item);
    *section = new;
    count
}

fn imported_functions(section: &[u8]) -> usize {
    let (count, mut rest) = leb(section);
    for _ in 0..count {
        for _ in 0..2 {
            let (length, name) = leb(rest);
            rest = &name[length..];
        }
        assert_eq!(rest[0], 0, "the dummy imports functions only");
        rest = leb(&rest[1..]).1;
    }
    count
}

fn leb(bytes: &[u8]) -> (usize, &[u8]) {
    let mut value = 0;
    for (i, byte) in bytes.iter().enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return (value, &bytes[i + 1..]);
        }
    }
    panic!("a number is cut off");
}

fn lebs(mut value: usize) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        out.push(if value == 0 { byte } else { byte | 0x80 });
        if value == 0 {
            return out;
        }
    }
}

#[tokio::test]
async fn an_endless_loop_before_anything_is_called_is_interrupted() {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", CONTRACT).unwrap();
    let world = resolve.select_world(&[package], Some("pure-env")).unwrap();
    let mut module = with_endless_start(&dummy_module(&resolve, world, ManglingAndAbi::Standard32));
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    let component = ComponentEncoder::default().validate(true).module(&module).unwrap().encode().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("x.wasm");
    fs::write(&path, component).unwrap();
    let quick = plain(prl_environment::Limits { call_timeout: std::time::Duration::from_millis(200), ..limits() });
    let refused = sandbox().load(&path, &quick).await.err().unwrap().to_string();
    assert!(refused.ends_with("in `instantiate`: no answer within 0.2 s"), "{refused}");
}
