//! Main memory: how much there is and how much can still be had, a container's limit included. Owns the files of Linux that
//! say so.

use std::path::{Path, PathBuf};

/// Bytes of main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What programs can still take without swapping.
    pub available: u64,
}

/// Of this machine; `None` where it cannot be read.
pub fn memory() -> Option<Memory> {
    below(Path::new("/"))
}

fn below(root: &Path) -> Option<Memory> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = |name: &str| field(&text, &format!("{name}:")).map(|kib| kib.saturating_mul(1024));
    let mut memory = Memory { total: line("MemTotal")?, available: line("MemAvailable")? };
    for Limit { most, used } in limits(root) {
        memory.total = memory.total.min(most);
        memory.available = memory.available.min(most.saturating_sub(used));
    }
    Some(memory)
}

/// A number behind a name at a line's start.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// What a control group may use and uses.
struct Limit {
    most: u64,
    used: u64,
}

/// Of this process's group and those above it. Inside a container the path is often that of the host, whose folders are not
/// there; its own limit is then in the folder at the top.
fn limits(root: &Path) -> Vec<Limit> {
    let Ok(groups) = std::fs::read_to_string(root.join("proc/self/cgroup")) else { return Vec::new() };
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (top, names) = match controllers {
            "" => ("sys/fs/cgroup", ["memory.max", "memory.current", "inactive_file "]),
            list if list.split(',').any(|c| c == "memory") => {
                ("sys/fs/cgroup/memory", ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "])
            }
            _ => continue,
        };
        let top: PathBuf = root.join(top);
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            found.extend(limit(&top.join(group), names));
        }
    }
    found
}

/// A group's limit; `max`, which is none, is no number.
fn limit(dir: &Path, [most, used, cached]: [&str; 3]) -> Option<Limit> {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let most = read(most)?.trim().parse().ok()?;
    let used: u64 = read(used)?.trim().parse().ok()?;
    // Cached files count as used and are dropped when memory is needed.
    let cached = read("memory.stat").and_then(|text| field(&text, cached)).unwrap_or(0);
    Some(Limit { most, used: used.saturating_sub(cached) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    800 kB\n");
        for (name, text) in files.iter().chain([&meminfo]) {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn without_a_limit_it_is_the_machines() {
        let whole = Some(Memory { total: 1000 << 10, available: 800 << 10 });
        assert_eq!(below(machine(&[]).path()), whole);
        let unlimited = [
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.current", "5\n"),
        ];
        assert_eq!(below(machine(&unlimited).path()), whole);
        assert_eq!(below(Path::new("/nowhere")), None);
    }

    #[test]
    fn a_containers_limit_counts_without_what_is_only_cached() {
        let second = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "409600\n"),
            ("sys/fs/cgroup/a/memory.current", "300000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 100\ninactive_file 200000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ];
        assert_eq!(below(machine(&second).path()), Some(Memory { total: 409_600, available: 309_600 }));
        let first = [
            ("proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/0123\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "409600\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9600\n"),
        ];
        assert_eq!(below(machine(&first).path()), Some(Memory { total: 409_600, available: 400_000 }));
    }
}
