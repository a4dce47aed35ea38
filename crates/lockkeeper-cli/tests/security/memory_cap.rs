//! Caps the memory of a node: by a control group of the kernel, otherwise by a limit on its data segment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::harness::node::Node;

/// The memory controller of cgroup v1.
const CONTROLLER: &str = "/sys/fs/cgroup/memory";

/// The kernel ends a process that exceeds the cap, or fails its allocations.
pub enum MemoryCap {
    /// Counts resident memory and the page cache.
    ControlGroup(PathBuf),
    /// Counts committed memory of the process.
    DataLimit(u64),
}

impl MemoryCap {
    /// Chooses the mechanism, and prints which one.
    pub fn new(mib: u64) -> MemoryCap {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let group = Path::new(CONTROLLER).join(format!("lockkeeper-test-{}-{number}", std::process::id()));
        let limit = group.join("memory.limit_in_bytes");
        let made = fs::create_dir(&group).and_then(|()| fs::write(&limit, (mib << 20).to_string()));
        match made {
            Ok(()) => {
                // Without swap accounting there is no such file.
                let _ = fs::write(group.join("memory.memsw.limit_in_bytes"), (mib << 20).to_string());
                println!("memory capped to {mib} MiB by {}", group.display());
                MemoryCap::ControlGroup(group)
            }
            Err(error) => {
                let _ = fs::remove_dir(&group);
                println!(
                    "memory capped to {mib} MiB by prlimit, as control groups are not available: {error}"
                );
                MemoryCap::DataLimit(mib << 20)
            }
        }
    }

    /// Starts a node under the cap and returns its process id.
    pub fn spawn(&self, node: &mut Node, words: &[&str]) -> u32 {
        if let MemoryCap::DataLimit(_) = self {
            // The allocator must not count what it only reserves, which it takes in pieces of a gibibyte.
            node.environment.push(("MIMALLOC_ARENA_EAGER_COMMIT".into(), "0".into()));
        }
        let process = node.spawn(words);
        // The process has just begun: its memory up to here is that of its executable.
        match self {
            MemoryCap::ControlGroup(group) => {
                fs::write(group.join("cgroup.procs"), process.to_string()).expect("a control group")
            }
            MemoryCap::DataLimit(bytes) => {
                let limit = format!("--data={bytes}");
                let status = Command::new("prlimit").args(["--pid", &process.to_string(), &limit]).status();
                assert!(status.expect("prlimit (util-linux)").success());
            }
        }
        process
    }
}

impl Drop for MemoryCap {
    fn drop(&mut self) {
        if let MemoryCap::ControlGroup(group) = self {
            // The kernel removes a process from its group shortly after its end.
            let removed = (0..200).any(|_| {
                let removed = fs::remove_dir(&*group).is_ok();
                if !removed {
                    sleep(Duration::from_millis(10));
                }
                removed
            });
            if !removed {
                eprintln!("{} is still in use", group.display());
            }
        }
    }
}
