//! Layout and constants: the Rust mirror, the C header and the golden table agree. A change of `layout.golden` other
//! than lines added for fields at the end of a struct breaks every plug-in built so far.

use prl_abi::{Batch, Bytes, Column, Description, Group, Host, Loss, Plugin, Str, ids};
use std::fmt::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

const GOLDEN: &str = include_str!("layout.golden");

macro_rules! rust_layout {
    ($out:ident, $c_out:ident, $($ty:ident as $c:literal { $($field:ident),* })*) => {
        $(
            writeln!($out, "{} size {} align {}", $c, size_of::<$ty>(), align_of::<$ty>()).unwrap();
            writeln!($c_out, "  printf(\"{0} size %zu align %zu\\n\", sizeof({0}), _Alignof({0}));", $c).unwrap();
            $(
                writeln!($out, "  {} {}", offset_of!($ty, $field), stringify!($field)).unwrap();
                writeln!($c_out, "  printf(\"  %zu {1}\\n\", offsetof({0}, {1}));", $c, stringify!($field)).unwrap();
            )*
        )*
    };
}

/// The table as Rust sees it, and C statements that print the table as C sees it.
fn layouts() -> (String, String) {
    let (mut rust, mut c) = (String::new(), String::new());
    rust_layout! { rust, c,
        Str as "prl_str" { ptr, len }
        Bytes as "prl_bytes" { ptr, len }
        Column as "prl_column" { id, dtype, axis, width, len, ptr }
        Group as "prl_group" { struct_size, n_columns, columns, n_rollouts, n_samples, n_tokens }
        Batch as "prl_batch" { struct_size, n_columns, columns, n_samples, n_tokens, normalizer }
        Loss as "prl_loss" { struct_size, reserved, loss, d_logprob, d_entropy, token_loss }
        Host as "prl_host" {
            struct_size, abi_version, ctx, log, metric, rng, error, assign, write, drop, save, reference
        }
        Description as "prl_description" { struct_size, action_loss, needs, metadata }
        Plugin as "prl_plugin" {
            magic, abi_major, abi_minor, struct_size, reserved, describe, create, destroy, score_rollout, score_group,
            save_state, load_state, loss, reference
        }
    }
    let mut constant = |name: String, value: u64| {
        writeln!(rust, "{name} {value}").unwrap();
        writeln!(c, "  printf(\"{name} %llu\\n\", (unsigned long long){name});").unwrap();
    };
    constant("PRL_MAGIC".into(), prl_abi::MAGIC);
    constant("PRL_ABI_VERSION".into(), prl_abi::ABI_VERSION.into());
    for (name, value) in [("OK", prl_abi::OK), ("ERROR", prl_abi::ERROR), ("PANIC", prl_abi::PANIC)] {
        constant(format!("PRL_{name}"), value as u64);
    }
    for (prefix, all) in [
        ("", ids::dtype::ALL),
        ("AXIS_", ids::axis::ALL),
        ("COL_", ids::col::ALL),
        ("ROLE_", ids::role::ALL),
        ("STREAM_", ids::stream::ALL),
        ("ACTION_", ids::action::ALL),
        ("NEEDS_", ids::needs::ALL),
        ("LOG_", ids::log::ALL),
    ] {
        for (name, value) in all {
            constant(format!("PRL_{prefix}{name}"), (*value).into());
        }
    }
    (rust, c)
}

#[test]
fn rust_matches_the_golden_layout() {
    assert_eq!(layouts().0, GOLDEN);
    assert_eq!(size_of::<Plugin>(), prl_abi::PLUGIN_SIZE_1_0);
}

#[test]
fn c_matches_the_golden_layout() {
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("skipped c_matches_the_golden_layout: no C compiler named `cc`");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    let body = layouts().1;
    std::fs::write(&source, format!("#include \"prl.h\"\n#include <stdio.h>\nint main(void) {{\n{body}}}\n")).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-function", "-I"])
        .arg(&include)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let printed = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), GOLDEN);
}

#[test]
fn the_header_names_every_id() {
    let header = include_str!("../include/prl.h");
    let known = layouts().0;
    for line in header.lines().filter(|l| l.starts_with("#define PRL_")) {
        let name = line.split_whitespace().nth(1).unwrap();
        let is_helper = name.contains('(') || ["PRL_EXPORT", "PRL_H", "PRL_ABI_MAJOR", "PRL_ABI_MINOR"].contains(&name);
        assert!(is_helper || known.contains(&format!("{name} ")), "{name} is missing from the Rust mirror");
    }
}

#[test]
fn columns_carry_their_rows() {
    let mut data = prl_abi::GroupData::new(7, "env", "key", "{}".into(), "null".into());
    for tokens in [3, 0] {
        data.member.push(0);
        data.reward.push(1.5);
        data.turns.push(1);
        data.truncated.push(0);
        data.policy_version.push(0);
        data.stop_condition.push("done".into());
        data.score_info.push("null".into());
        for i in 0..tokens {
            data.token_id.push(i);
            data.mask.push(u8::from(i > 0));
            data.sampling_logprob.push(0.0);
            data.role.push(0);
            data.content.push(0);
        }
        data.temperature.push(1.0);
        data.version_min.push(0);
        data.version_max.push(0);
        data.end_sample();
        data.end_rollout();
    }
    assert_eq!((data.rollouts(), data.samples()), (2, 2));
    assert_eq!((data.samples_of(1), data.tokens_of(0), data.tokens_of(2)), (Some(1..2), Some(0..3), None));
    let view = data.view();
    let raw = view.raw();
    assert_eq!((raw.n_rollouts, raw.n_samples, raw.n_tokens), (2, 2, 3));
    let columns = unsafe { prl_abi::view(raw.columns, raw.n_columns as usize) }.unwrap();
    let of_a_group = ids::col::ALL.iter().filter(|(_, id)| !(69..=73).contains(id));
    assert_eq!(columns.len(), of_a_group.clone().count());
    for (name, id) in of_a_group {
        let column = columns.iter().find(|c| c.id == *id).unwrap_or_else(|| panic!("no column {name}"));
        let rows = match column.axis {
            ids::axis::GROUP => 1,
            ids::axis::ROLLOUT | ids::axis::SAMPLE => 2,
            ids::axis::TOKEN => 3,
            _ => 0,
        };
        assert_eq!(column.len, rows + usize::from(name.ends_with("_START")), "{name}");
    }
    let output = columns.iter().find(|c| c.id == ids::col::OUTPUT_TOKENS).unwrap();
    assert_eq!(unsafe { prl_abi::view(output.ptr.cast::<u64>(), output.len) }.unwrap(), [2, 0]);
}

#[test]
fn references_are_a_column_where_there_are_some() {
    let mut data = prl_abi::GroupData::new(7, "env", "key", "{}".into(), "null".into());
    data.token_id.extend([1, 2]);
    data.ref_logprob.extend([-0.5, f32::NAN]);
    let view = data.view();
    let columns = unsafe { prl_abi::view(view.raw().columns, view.raw().n_columns as usize) }.unwrap();
    let column = columns.iter().find(|c| c.id == ids::col::REF_LOGPROB).unwrap();
    assert_eq!((column.dtype, column.axis, column.len), (ids::dtype::F32, ids::axis::TOKEN, 2));
}

#[test]
fn a_batch_borrows_its_columns() {
    let (floats, token_ids, mask) = ([0.5f32, 1.5, 2.5], [1u32, 2, 3], [0u8, 1, 1]);
    let mut batch = prl_abi::BatchColumns {
        normalizer: 4.0,
        token_start: &[0, 2, 3],
        temperature: &[1.0, 0.7],
        version_min: &[0, 0],
        version_max: &[0, 1],
        token_id: &token_ids,
        mask: &mask,
        trainer_logprob: &floats,
        sampling_logprob: &floats,
        ref_logprob: None,
        advantage: &floats,
        rl_weight: &floats,
        entropy: Some(&floats),
    };
    assert_eq!(batch.misfit(), None);
    let view = batch.view();
    let raw = view.raw();
    assert_eq!((raw.n_samples, raw.n_tokens, raw.normalizer), (2, 3, 4.0));
    let columns = unsafe { prl_abi::view(raw.columns, raw.n_columns as usize) }.unwrap();
    assert!(columns.iter().all(|c| c.id != ids::col::REF_LOGPROB));
    let entropy = columns.iter().find(|c| c.id == ids::col::ENTROPY).unwrap();
    assert_eq!((entropy.ptr, entropy.len), (floats.as_ptr().cast(), 3), "no copy");
    for column in columns {
        let rows = if column.axis == ids::axis::SAMPLE { 2 } else { 3 };
        assert_eq!(column.len, rows + usize::from(column.id == ids::col::TOKEN_START), "column {}", column.id);
    }
    batch.mask = &mask[..2];
    assert_eq!(batch.misfit(), Some(("mask", 2, 3)));
}
