//! What a run takes of the memory.
//!
//! The process is looked at before the load generator starts and behind the window, because that
//! takes the longer the more memory there is. Connections may have been closed by then, so what a
//! server took is its peak, which the kernel keeps. It keeps none of its own memory: that is looked
//! at when the window opens, which takes well under a tenth of a millisecond.

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
    /// The same, with shared pages divided by the number of those who share them; 0 if the kernel
    /// does not tell.
    pub pss_bytes: u64,
    /// Pages of no file: heap, stacks, buffers.
    pub anonymous_bytes: u64,
    /// Pages that may not be swapped out.
    pub locked_bytes: u64,
    /// Pages that are pinned for input and output, such as registered buffers.
    pub pinned_bytes: u64,
    /// Page tables.
    pub page_table_bytes: u64,
}

/// Memory of a host's kernel, whoever caused it. The four parts do not overlap; the memory of
/// sockets is a part of slab for the most part.
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
    /// Buffers that sockets of TCP and UDP hold, whatever namespace they are in.
    pub socket_bytes: u64,
}

impl ProcessMemory {
    /// Looks at the process tree of `pid`. What has ended or may not be read counts as nothing.
    pub(crate) fn take(pid: i32) -> ProcessMemory {
        let mut sum = ProcessMemory::default();
        for pid in procfs::process_tree(pid) {
            let text = |file| procfs::text(&format!("/proc/{pid}/{file}")).unwrap_or_default();
            sum.add(ProcessMemory::read(&text("smaps_rollup"), &text("status")));
        }
        sum
    }

    /// From the texts of `smaps_rollup` (Linux 4.14) and `status` of a process.
    fn read(rollup: &str, status: &str) -> ProcessMemory {
        let bytes = |text: &str, key| procfs::status_number(text, key).map(|kib| kib << 10);
        let of_rollup = |key| bytes(rollup, key).unwrap_or(0);
        let of_status = |key| bytes(status, key).unwrap_or(0);
        ProcessMemory {
            peak_rss_bytes: of_status("VmHWM"),
            // `smaps_rollup` counts pages; VmRSS lags behind by up to 64 pages a thread (proc(5)).
            rss_bytes: bytes(rollup, "Rss").unwrap_or_else(|| of_status("VmRSS")),
            pss_bytes: of_rollup("Pss"),
            anonymous_bytes: bytes(rollup, "Anonymous").unwrap_or_else(|| of_status("RssAnon")),
            locked_bytes: of_status("VmLck"),
            pinned_bytes: of_status("VmPin"),
            page_table_bytes: of_status("VmPTE"),
        }
    }

    fn add(&mut self, other: ProcessMemory) {
        self.peak_rss_bytes += other.peak_rss_bytes;
        self.rss_bytes += other.rss_bytes;
        self.pss_bytes += other.pss_bytes;
        self.anonymous_bytes += other.anonymous_bytes;
        self.locked_bytes += other.locked_bytes;
        self.pinned_bytes += other.pinned_bytes;
        self.page_table_bytes += other.page_table_bytes;
    }
}

impl KernelMemory {
    /// Looks at the kernel of this host.
    pub(crate) fn take() -> KernelMemory {
        let text = |path| procfs::text(path).unwrap_or_default();
        KernelMemory::read(&text("/proc/meminfo"), &text("/proc/net/sockstat"))
    }

    /// From the texts of `/proc/meminfo` and `/proc/net/sockstat`.
    fn read(meminfo: &str, sockstat: &str) -> KernelMemory {
        let bytes = |key| procfs::status_number(meminfo, key).map_or(0, |kib| kib << 10);
        KernelMemory {
            unreclaimable_slab_bytes: bytes("SUnreclaim"),
            reclaimable_slab_bytes: bytes("SReclaimable"),
            stack_bytes: bytes("KernelStack"),
            page_table_bytes: bytes("PageTables"),
            socket_bytes: procfs::socket_pages(sockstat) * procfs::page_bytes(),
        }
    }

    /// Everything but the sockets' buffers, which are in slab already.
    pub fn total_bytes(&self) -> u64 {
        self.unreclaimable_slab_bytes
            + self.reclaimable_slab_bytes
            + self.stack_bytes
            + self.page_table_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let rollup = "55d0-7ffd ---p 00000000 00:00 0    [rollup]\n\
                      Rss:                1764 kB\nPss:                 256 kB\n\
                      Pss_Anon:            112 kB\nAnonymous:           112 kB\nLocked: 4 kB\n";
        let status = "Name:\ta\nVmHWM:\t    2000 kB\nVmLck:\t       8 kB\nVmPin:\t       16 kB\nVmRSS:\t    1700 kB\n\
                      RssAnon:\t     100 kB\nVmPTE:\t      44 kB\n";
        let expected = ProcessMemory {
            peak_rss_bytes: 2000 << 10,
            rss_bytes: 1764 << 10,
            pss_bytes: 256 << 10,
            anonymous_bytes: 112 << 10,
            locked_bytes: 8 << 10,
            pinned_bytes: 16 << 10,
            page_table_bytes: 44 << 10,
        };
        assert_eq!(ProcessMemory::read(rollup, status), expected);
        let forbidden = ProcessMemory::read("", status);
        assert_eq!((forbidden.rss_bytes, forbidden.anonymous_bytes), (1700 << 10, 100 << 10));
        assert_eq!(ProcessMemory::read("", ""), ProcessMemory::default());
    }

    #[test]
    fn the_kernels_own_is_read() {
        let meminfo = "MemTotal: 9 kB\nSReclaimable:   40 kB\nSUnreclaim:      2 kB\n\
                       KernelStack:    3 kB\nPageTables:     5 kB\nSecPageTables:  7 kB\n";
        let sockstat = "sockets: used 17\nTCP: inuse 1 orphan 0 tw 186 alloc 1 mem 3\n\
                        UDP: inuse 0 mem 53\nFRAG: inuse 0 memory 8\n";
        let kernel = KernelMemory::read(meminfo, sockstat);
        assert_eq!(kernel.total_bytes(), 50 << 10);
        assert_eq!(kernel.socket_bytes, 56 * procfs::page_bytes());
    }
}
