//! What a run takes of the memory.
//!
//! The process is looked at before the load generator starts and behind the window, because that
//! takes the longer the more memory there is; connections may have been closed by then, so its peak counts. The kernel
//! keeps no peak of its own memory: that is looked at when the window opens.

use serde::{Deserialize, Serialize};

use crate::procfs;

/// The server's memory and the kernel's, before the load and under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MemoryUse {
    /// The server's when it was ready, before the load generator was started.
    pub server_at_ready: ProcessMemory,
    /// The server's behind the end of the window.
    pub server_at_end: ProcessMemory,
    /// The kernel's on the server's host, before the load generator was started.
    pub kernel_at_ready: KernelMemory,
    /// The kernel's there when the window had opened and every connection was open.
    pub kernel_under_load: KernelMemory,
}

/// Memory of a process and its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessMemory {
    /// The most that was ever resident, by process.
    pub peak_rss_bytes: u64,
    /// Resident pages. What several processes of the tree share counts for each of them.
    pub rss_bytes: u64,
}

/// Memory of a host's kernel, whoever caused it; the parts do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KernelMemory {
    /// Slab that cannot be reclaimed: sockets, files, packets.
    pub unreclaimable_slab_bytes: u64,
    /// Slab that can be reclaimed: caches of names and inodes.
    pub reclaimable_slab_bytes: u64,
    /// Stacks of threads in the kernel.
    pub stack_bytes: u64,
    /// Page tables of all processes.
    pub page_table_bytes: u64,
}

impl ProcessMemory {
    /// Looks at the process tree of `pid`. What has ended or may not be read counts as nothing.
    pub(crate) fn take(pid: i32) -> ProcessMemory {
        let mut sum = ProcessMemory::default();
        for pid in procfs::process_tree(pid) {
            let text = |file| procfs::text(&format!("/proc/{pid}/{file}")).unwrap_or_default();
            let of_one = ProcessMemory::read(&text("smaps_rollup"), &text("status"));
            sum.peak_rss_bytes += of_one.peak_rss_bytes;
            sum.rss_bytes += of_one.rss_bytes;
        }
        sum
    }

    /// From the texts of `smaps_rollup` (Linux 4.14) and `status` of a process.
    fn read(rollup: &str, status: &str) -> ProcessMemory {
        let bytes = |text: &str, key| procfs::status_number(text, key).map(|kib| kib << 10);
        ProcessMemory {
            peak_rss_bytes: bytes(status, "VmHWM").unwrap_or(0),
            // `smaps_rollup` counts pages; VmRSS lags behind by up to 64 pages a thread (proc(5)).
            rss_bytes: bytes(rollup, "Rss").or_else(|| bytes(status, "VmRSS")).unwrap_or(0),
        }
    }
}

impl KernelMemory {
    pub(crate) fn take() -> KernelMemory {
        KernelMemory::read(&procfs::text("/proc/meminfo").unwrap_or_default())
    }

    fn read(meminfo: &str) -> KernelMemory {
        let bytes = |key| procfs::status_number(meminfo, key).map_or(0, |kib| kib << 10);
        KernelMemory {
            unreclaimable_slab_bytes: bytes("SUnreclaim"),
            reclaimable_slab_bytes: bytes("SReclaimable"),
            stack_bytes: bytes("KernelStack"),
            page_table_bytes: bytes("PageTables"),
        }
    }

    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        let slab = self.unreclaimable_slab_bytes.saturating_add(self.reclaimable_slab_bytes);
        slab.saturating_add(self.stack_bytes).saturating_add(self.page_table_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let rollup =
            "55d0-7ffd ---p 00000000 00:00 0    [rollup]\nRss:      1764 kB\nPss: 256 kB\n";
        let status = "Name:\ta\nVmHWM:\t    2000 kB\nVmRSS:\t    1700 kB\nRssAnon:\t     100 kB\n";
        let expected = ProcessMemory { peak_rss_bytes: 2000 << 10, rss_bytes: 1764 << 10 };
        assert_eq!(ProcessMemory::read(rollup, status), expected);
        assert_eq!(ProcessMemory::read("", status).rss_bytes, 1700 << 10);
        assert_eq!(ProcessMemory::read("", ""), ProcessMemory::default());
        let meminfo = "MemTotal: 9 kB\nSReclaimable:   40 kB\nSUnreclaim:      2 kB\n\
                       KernelStack:    3 kB\nPageTables:     5 kB\nSecPageTables:  7 kB\n";
        assert_eq!(KernelMemory::read(meminfo).total_bytes(), 50 << 10);
    }
}
