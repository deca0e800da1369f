//! The report as text, in two halves, because the second takes its time. Owns its wording and layout.

use super::{Host, Report};
use std::fmt::Write;

/// What can be said at once.
pub fn host(host: &Host) -> String {
    let mut text = format!("prl {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |line: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{line}");
    };
    let gib = |gib: Option<f64>| gib.map_or_else(|| "unknown".to_string(), |gib| format!("{gib:.1} GiB"));
    let cpu = &host.cpu;
    line(format_args!("\nCPU"));
    line(format_args!("  {} cores, {} instructions", cpu.cores, cpu.instructions));
    line(format_args!("  memory {}, of which available {}", gib(cpu.memory_gib), gib(cpu.available_gib)));
    line(format_args!("\nCaches"));
    for cache in &host.caches {
        match &cache.dir {
            Some(dir) => {
                let note = if cache.exists { "" } else { " (not there yet)" };
                line(format_args!("  {:12} {dir}{note}", cache.of));
            }
            None => line(format_args!("  {:12} none: set HOME or XDG_CACHE_HOME", cache.of)),
        }
    }
    line(format_args!("\nAlgorithms"));
    for algorithm in &host.algorithms {
        line(format_args!("  {} {}  {}", algorithm.name, algorithm.version, algorithm.file));
    }
    for broken in &host.broken_algorithms {
        line(format_args!("  {} cannot be used: {}", broken.file, broken.reason));
    }
    if host.algorithms.is_empty() {
        line(format_args!("  none found: put libgrpo.so beside the binary, or its folder into PRL_PLUGIN_PATH"));
    }
    text
}

/// CUDA and the verdict. `asked` says that a GPU is asked for.
pub fn cuda(report: &Report, asked: bool) -> String {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{line}");
    };
    line(format_args!("\nCUDA"));
    let parts = report.cuda.parts.iter().map(|part| (part, "missing"));
    for (part, absent) in parts.chain(report.cuda.optional.iter().map(|part| (part, "optional"))) {
        let mark = if part.found { "ok" } else { absent };
        line(format_args!("  {mark:8} {:17} {}", part.name, part.detail));
        if let Some(remedy) = &part.remedy {
            line(format_args!("  {:8} {:17} -> {remedy}", "", ""));
        }
    }
    for gpu in &report.cuda.gpus {
        let (name, memory, capability) = (&gpu.name, gpu.memory_gib, &gpu.compute_capability);
        line(format_args!("  cuda:{}   {name}, {memory:.1} GiB, compute capability {capability}", gpu.index));
    }
    line(format_args!(""));
    let missing: Vec<&str> = report.cuda.parts.iter().filter(|p| !p.found).map(|p| p.name.as_str()).collect();
    match (report.cpu_ready, report.cuda_ready) {
        (false, _) => line(format_args!("`prl rl` cannot run: there is no algorithm.")),
        (true, true) => line(format_args!("Ready: CPU and GPU.")),
        (true, false) if asked => line(format_args!("Not ready for a GPU; missing: {}.", missing.join(", "))),
        (true, false) => line(format_args!("Ready: CPU. For a GPU there is missing: {}.", missing.join(", "))),
    }
    text
}
