//! NVIDIA's libraries that are damaged, hang or crash: a message, the CPU, or a report, but no crash.

use crate::support::{Finished, Running, Scratch, model};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// A library in the scratch's `lib`, compiled from C; false without a compiler.
fn library(scratch: &Scratch, name: &str, source: &str) -> bool {
    let lib = scratch.path("lib");
    fs::create_dir_all(&lib).unwrap();
    let c = scratch.write("stub.c", source);
    match Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(lib.join(name)).arg(&c).status() {
        Ok(status) => {
            assert!(status.success());
            true
        }
        Err(_) => {
            eprintln!("skipped: there is no C compiler `cc`");
            false
        }
    }
}

fn with_libraries(scratch: &Scratch, words: &str) -> Finished {
    let mut command = scratch.command(words);
    command.env("LD_LIBRARY_PATH", scratch.path("lib"));
    Running::start(command).wait()
}

/// A part of the report.
fn part(done: &Finished, name: &str) -> (bool, String, String) {
    let report: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let parts = report["cuda"]["parts"].as_array().unwrap();
    let part = parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("no {name}: {done}"));
    let text = |key: &str| part[key].as_str().unwrap_or_default().to_string();
    (part["found"] == true, text("detail"), text("remedy"))
}

#[test]
fn runs_say_what_is_wrong_with_a_library_or_use_the_cpu() {
    let scratch = Scratch::new();
    if !library(&scratch, "libcuda.so", "int something_else;") {
        return;
    }
    let words = format!("trainer --model.name {} --model.seq-len 16 --data.fake --max-steps 1", model().display());
    for (naming, damaged) in [("has no function `cuInit`", false), ("cannot be loaded: ", true)] {
        if damaged {
            fs::write(scratch.path("lib/libcuda.so"), "text that is no library").unwrap();
            fs::write(scratch.path("lib/libcuda.so.1"), "text that is no library").unwrap();
        }
        if cfg!(feature = "cuda") {
            let done = with_libraries(&scratch, &format!("{words} --device cuda --output-dir never"));
            assert_eq!(done.code, Some(2), "{done}");
            assert!(done.stderr.contains("libcuda.so") && done.stderr.contains(naming), "{done}");
            assert!(!done.stderr.contains("panicked") && !scratch.path("never").exists(), "{done}");
        }
        let done = with_libraries(&scratch, &format!("{words} --output-dir out --clean-output-dir")).ok();
        assert!(done.stdout.contains("WARNING") && done.stdout.contains("this run uses the CPU"), "{done}");
        assert!(done.stdout.contains("| device cpu |"), "{done}");
        let report = with_libraries(&scratch, "doctor --json");
        let (found, detail, _) = part(&report, "driver");
        assert!(!found && detail.contains(naming), "{report}");
    }
}

#[test]
fn a_library_that_crashes_or_hangs_costs_the_report_one_line() {
    let scratch = Scratch::new();
    let crash = "__attribute__((constructor)) static void start(void) { *(volatile int *)0 = 1; }";
    if !library(&scratch, "libcublasLt.so", crash) {
        return;
    }
    let done = with_libraries(&scratch, "doctor --json").ok();
    let (found, detail, remedy) = part(&done, "cuBLASLt");
    assert!(!found && detail.contains("signal 11") && remedy.contains("install it again"), "{done}");

    let hang = "#include <unistd.h>\n__attribute__((constructor)) static void start(void) { sleep(1000); }";
    library(&scratch, "libcublasLt.so", hang);
    let done = with_libraries(&scratch, "doctor").ok();
    assert!(done.stdout.contains("no answer within 10 s") && done.stdout.contains("Ready: CPU"), "{done}");
    assert_eq!(with_libraries(&scratch, "doctor --cuda").code, Some(2));
}

#[test]
fn text_files_are_no_libraries() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("lib")).unwrap();
    for name in ["libcublasLt.so", "libnvrtc.so"] {
        scratch.write(&format!("lib/{name}"), "text that is no library");
    }
    let done = with_libraries(&scratch, "doctor --json").ok();
    for name in ["cuBLASLt", "NVRTC"] {
        let (found, detail, remedy) = part(&done, name);
        if found {
            // A toolkit of this machine comes after it.
            continue;
        }
        assert!(detail.contains("cannot be loaded"), "{done}");
        assert!(!remedy.contains("set LD_LIBRARY_PATH"), "{done}");
    }
}
