//! The rows of the table of metrics.
//!
//! A row: the metric; where it stands in `figures` of a bundle; `=` a shorter name, of what `lab compare`
//! always shows; unit, what is better, how several runs are put together; the columns of the reports with
//! it; `ratio`, of what comparisons show: place, field, title, when it is shown; what it says; how it is read from a run.

use super::super::reading::Reading;
use super::row::{
    Better, COUNTS, Column, DATAGRAMS, EACH, HTTP, MEMORY, REQUESTS, Ratio, Row, SIDES_TABLE,
    Several, Shown, TIMES, UDP, Unit, last,
};

metrics! {
single {
    ServerCpuNs "server_cpu_ns" = "server_cpu" (Ns Less Median) [EACH "server CPU" "ns/unit"]
        ratio 1 "server_cpu" "server CPU/unit" Always;
        "The primary metric: busy time of the server's CPU per unit, in nanoseconds."
        |it| it.per_unit_ns(it.server_busy_s);
    ClientCpuNs "client_cpu_ns" (Ns Less Median) []
        ratio 2 "client_cpu" "client CPU/unit" OnSchedule;
        "Busy time of the client's CPU per unit, in nanoseconds."
        |it| it.per_unit_ns(it.client_busy_s);
    BothCpusNs "both_cpus_ns" = "both_cpus" (Ns Less Median) [EACH "both CPUs" "ns/unit"]
        ratio 3 "both_cpus" "both CPUs/unit" Always;
        "Busy time of both CPUs per unit, in nanoseconds."
        |it| it.per_unit_ns(it.server_busy_s + it.client_busy_s);
    ServerProcessNs "server_process_ns" = "server_process" (Ns Less Median) []
        ratio 6 "server_process" "its process alone" Always;
        "CPU time of the server process by its own clock, per unit, in nanoseconds."
        |it| it.per_unit_ns(it.cpu.server.cpu_s);
    ServerUserNs "server_user_ns" (Ns Less Median) []
        "The server process's part of `server_cpu_ns` in user mode, in nanoseconds."
        |it| it.per_unit_ns(it.cpu.server.cpu_s) * it.cpu.server.user_share();
    ServerSystemNs "server_system_ns" (Ns Less Median) []
        "Its part in the kernel, in nanoseconds."
        |it| it.per_unit_ns(it.cpu.server.cpu_s) * (1.0 - it.cpu.server.user_share());
    ServerOutsideNs "server_outside_ns" (Ns Less Median) []
        "The rest of `server_cpu_ns`: softirq, interrupts, everything outside the process."
        |it| (it.per_unit_ns(it.server_busy_s) - it.per_unit_ns(it.cpu.server.cpu_s)).max(0.0);
    ServerKernelThreadsNs "server_kernel_threads_ns" (Ns Less Median) []
        "CPU time of the server's io-wq and SQPOLL threads, per unit, in nanoseconds."
        |it| it.per_unit_ns(it.kernel_threads_s());
    RequestsPerS "requests_per_s" = "throughput" (UnitsPerS More Median)
        [REQUESTS "throughput" "units/s", UDP "delivered" "units/s"]
        ratio 4 "throughput" "units/s" OffSchedule;
        "Units per second."
        |it| it.done / it.load.window().seconds;
    ContentBytesPerS "http.content_bytes_per_s" (BytesPerS More Median) [HTTP "content" "MB/s"]
        "Content per second, in bytes: without heads and, with TLS, before encryption."
        |it| it.http()?.bytes.bodies as f64 / it.load.window().seconds;
    LatencyUsMean "latency_us_mean" (Us Less Median) [TIMES "mean, us" ""]
        "Mean latency in microseconds."
        |it| it.latencies.mean() / 1e3;
    LatencyUsP50 "latency_us_p50" = "p50" (Us Less Median) [REQUESTS "p50" "us"]
        "Median latency in microseconds."
        |it| it.latency_us(0.5);
    LatencyUsP99 "latency_us_p99" = "p99" (Us Less Median) [REQUESTS "p99" "us", UDP "p99 trip" "us"]
        ratio 5 "latency_p99" "p99 latency" Always;
        "99th percentile in microseconds."
        |it| it.latency_us(0.99);
    LatencyUsP99_9 "latency_us_p99_9" = "p99.9" (Us Less Median) [REQUESTS "p99.9" "us"]
        "99.9th percentile in microseconds."
        |it| it.latency_us(0.999);
    LatencyUsMax "latency_us_max" (Us Less Median) []
        "Largest latency in microseconds."
        |it| it.latencies.max() as f64 / 1e3;
    FirstByteUsP50 "http.first_byte_us_p50" (Us Less Median) [TIMES "first byte p50, us" ""]
        "Time to the first byte of an answer: median, in microseconds."
        |it| it.http()?.ttfb_us.p50;
    FirstByteUsP99 "http.first_byte_us_p99" (Us Less Median) [TIMES "p99" ""]
        "99th percentile."
        |it| it.http()?.ttfb_us.p99;
    ConnectUsP50 "http.connect_us_p50" (Us Less Median) [TIMES "connecting p50, us" ""]
        "Time to make a connection, with its TLS handshake: median, in microseconds."
        |it| it.http()?.connect_us.p50;
    ConnectUsP99 "http.connect_us_p99" (Us Less Median) [TIMES "p99" ""]
        "99th percentile."
        |it| it.http()?.connect_us.p99;
    OpenLoopMissingRatio "open_loop.missing_ratio" (Ratio Less Median) []
        "Share of the requests due in the window that were not answered by its end."
        |it| it.requests_missing_ratio()?;
    OpenLoopLatenessUsP99 "open_loop.lateness_us_p99" (Us Less Median) []
        "How late requests left against their schedule: 99th percentile, in microseconds."
        |it| { it.requests_missing_ratio()?; it.load.requests()?.schedule_lag_us.as_ref()?.p99 };
    Notifications "counts.notifications" (Count Less Median) [COUNTS "notifications" "both CPUs"]
        "Interrupts by which one of the two CPUs was told something by another, per unit: function calls and reschedules."
        |it| it.per_unit(it.cpu.notifications()?);
    NetRxRuns "counts.net_rx_runs" (Count Less Median) [COUNTS "NET_RX" "both CPUs"]
        "Runs of the receive softirq on both CPUs, per unit."
        |it| it.per_unit(it.cpu.net_rx_runs()?);
    ServerSwitches "server_switches" (Count Less Median) [COUNTS "switches" "server"]
        "Context switches of the server per unit."
        |it| it.per_unit(it.cpu.server.voluntary_switches + it.cpu.server.involuntary_switches);
    ServerPageFaults "counts.server_page_faults" (Count Less Median) [COUNTS "faults" "server"]
        "Page faults of the server that took no disk, per unit."
        |it| it.per_unit(it.cpu.server.minor_faults?);
    ServerSyscalls "server_syscalls" = "syscalls" (Count Less Median)
        [EACH "syscalls" "/unit", COUNTS "syscalls" "whole life"]
        "System calls of the server per unit, over its whole life; if it counts them."
        |it| it.syscalls_per_unit()?;
    CompletionsPerEnter "completions_per_enter" (PerEnter More Median) [COUNTS "completions" "/enter"]
        "Completions per `io_uring_enter`, over its whole life; if it counts them."
        |it| it.runtime_counter("completions_per_enter")?;
    Retransmits "counts.retransmits" (PerRun Less Mean) [COUNTS "resent" "/run"]
        "TCP segments sent again by either side, per run."
        |it| it.cpu.retransmits(it.run.cell.net)? as f64;
    Drops "counts.drops" (PerRun Less Mean) [COUNTS "drops" "/run"]
        "Packets dropped at the devices and the receive backlogs of either side, per run."
        |it| it.cpu.drops(it.run.cell.net)? as f64;
    ListenDrops "counts.listen_drops" (PerRun Less Mean) [COUNTS "not accepted" "/run"]
        "Connections that the server's listeners dropped, most of them because the accept queue was full, per run."
        |it| it.cpu.server_cpu.counts.listen_drops? as f64;
    ServerBusyShare "server_busy_share" (OfWindow Neither Median) [EACH "server CPU" "busy"]
        "Share of the window in which the server's CPU was busy; of all, if it has several."
        |it| it.cpu.server_busy_share();
    ServerBusiestShare "workers.busiest_share" (OfWindow Neither Median) []
        "Share of the window in which the busiest CPU of the server was busy, if it has several."
        |it| it.cpu.server_cpu.busy_each_s.iter().copied().reduce(f64::max)? / it.cpu.window_s;
    ServerLeastBusyShare "workers.least_busy_share" (OfWindow Neither Median) []
        "The same of the least busy one."
        |it| it.cpu.server_cpu.busy_each_s.iter().copied().reduce(f64::min)? / it.cpu.window_s;
    ClientBusyShare "client_busy_share" (OfWindow Neither Median) [EACH "client CPU" "busy"]
        "The same of the load generator; of the busiest if there are several."
        |it| it.cpu.client_busy_share()?;
    ClientThreadShare "client_thread_share" (OfWindow Neither Median) []
        "Share of the window used by the load generator's busiest thread, as it says."
        |it| it.client_thread_share();
    ClientProcessShare "client_process_share" (OfWindow Neither Median) []
        "Share of the window that the load generator's process used, by its own clock."
        |it| it.cpu.client.as_ref()?.cpu_s / it.cpu.window_s;
    OtherProcessesShare "other_processes_share" (OfWindow Neither Median) []
        "Share of all CPUs that other processes used around the run; of the host where it was most."
        |it| it.other_processes_share()?;
    MissingRatio "datagrams.missing_ratio" (Ratio Less Mean) [DATAGRAMS "not back, of due" ""]
        "Share of the packets due that did not come back: lost, refused or never sent."
        |it| it.udp()?.packets.missing_ratio();
    LostRatio "datagrams.lost_ratio" (Ratio Less Mean) [UDP "lost" "of sent", DATAGRAMS "lost, of sent" ""]
        "Share of the packets sent that did not come back."
        |it| { let packets = &it.udp()?.packets; ratio(packets.lost, packets.sent) };
    DuplicatedRatio "datagrams.duplicated_ratio" (Ratio Less Mean) [DATAGRAMS "duplicated" ""]
        "Packets that came back more than once, of those that came back."
        |it| { let packets = &it.udp()?.packets; ratio(packets.duplicated, packets.received) };
    ReorderedRatio "datagrams.reordered_ratio" (Ratio Less Mean) [DATAGRAMS "reordered" ""]
        "Packets that came back behind a later one, of those that came back."
        |it| { let packets = &it.udp()?.packets; ratio(packets.reordered, packets.received) };
    KernelDrops "datagrams.kernel_drops" (PerRun Less Mean) [DATAGRAMS "kernel drops" ""]
        "Answers that the kernel dropped at full receive buffers of the load generator."
        |it| it.udp()?.kernel_drops? as f64;
    LatenessUsP50 "datagrams.lateness_us_p50" (Us Less Median) [DATAGRAMS "late p50, us" ""]
        "How late packets left against their schedule: median, in microseconds."
        |it| it.late_us(0.5)?;
    LatenessUsP99 "datagrams.lateness_us_p99" (Us Less Median) [DATAGRAMS "p99" ""]
        "99th percentile."
        |it| it.late_us(0.99)?;
    LatenessUsP99_9 "datagrams.lateness_us_p99_9" (Us Less Median)
        [UDP "p99.9 late" "us", DATAGRAMS "p99.9" ""]
        "99.9th percentile."
        |it| it.late_us(0.999)?;
    LatenessUsMax "datagrams.lateness_us_max" (Us Less Median) [DATAGRAMS "max" ""]
        "The latest."
        |it| it.lateness.as_ref()?.max() as f64 / 1e3;
    WaitOverrunUsP99_9 "datagrams.wait_overrun_us_p99_9" (Us Less Median)
        [DATAGRAMS "wait overrun p99.9, us" ""]
        "How much longer than asked the load generator's waits took: 99.9th percentile, in microseconds."
        |it| it.overrun.as_ref()?.value_at_quantile(0.999) as f64 / 1e3;
    JitterUsP50 "datagrams.jitter_us_p50" (Us Less Median) [DATAGRAMS "jitter p50, us" ""]
        "Median over the streams of their jitter by RFC 3550, in microseconds."
        |it| it.udp()?.jitter_us.p50;
    JitterUsP99 "datagrams.jitter_us_p99" (Us Less Median) [DATAGRAMS "p99" ""]
        "99th percentile over the streams."
        |it| it.udp()?.jitter_us.p99;
    RssBytesAtReady "memory.server_rss_bytes_at_ready" (Bytes Less Median) [MEMORY "when ready, MiB" ""]
        "Resident memory of the server when it was ready."
        |it| it.run.memory?.server_at_ready.rss_bytes as f64;
    RssBytes "memory.server_rss_bytes" = "memory" (Bytes Less Median) [MEMORY "peak, MiB" ""]
        "The most that was resident until the end of the window."
        |it| it.run.memory?.server_at_end.peak_rss_bytes as f64;
    AnonymousBytes "memory.server_anonymous_bytes" (Bytes Less Median)
        [MEMORY "at the end, of no file, MiB" ""]
        "Pages of no file behind the window, when connections may have been closed already."
        |it| it.run.memory?.server_at_end.anonymous_bytes as f64;
    LockedBytes "memory.server_locked_bytes" (Bytes Less Median) [MEMORY "locked, MiB" ""]
        "Memory of the server that may not be swapped out, or is pinned."
        |it| { let end = it.run.memory?.server_at_end; end.locked_bytes.max(end.pinned_bytes) as f64 };
    RssBytesPerConnection "memory.rss_bytes_per_connection" (BytesPerConnection Less Median)
        [MEMORY "grown, B/connection" ""]
        "Growth of the server's resident memory, up to its peak, by connection or stream."
        |it| it.grown(|it| [it.server_at_ready.rss_bytes, it.server_at_end.peak_rss_bytes])?;
    KernelBytesPerConnection "memory.kernel_bytes_per_connection" (BytesPerConnection Less Median)
        [MEMORY "kernel, B/connection" ""]
        "Growth of the kernel's own memory by connection or stream until the window opened: slab, stacks and page tables of the whole machine, so that both ends of each connection are in it, and everybody else."
        |it| it.grown(|it| [&it.kernel_at_ready, &it.kernel_under_load].map(|it| it.total_bytes()))?;
    SocketBytesPerConnection "memory.socket_bytes_per_connection" (BytesPerConnection Less Median)
        [MEMORY "socket buffers, B/connection" ""]
        "Growth of the buffers that sockets hold, by connection or stream, both ends included. Most of it is slab, and so in the figure above as well."
        |it| it.grown(|it| [it.kernel_at_ready.socket_bytes, it.kernel_under_load.socket_bytes])?;
}
pairs {
    ServerSideBusyNs ClientSideBusyNs busy_ns (Ns Less Median) ["busy" ""]
        "All that the CPU did. Of a client that shares the server's CPU, what its process used: the rest cannot be told apart and is the server's.";
    ServerSideUserNs ClientSideUserNs user_ns (Ns Less Part) ["user" ""]
        "The process in user mode. Its time is exact, its division into user mode and kernel is sampled at ticks.";
    ServerSideSystemNs ClientSideSystemNs system_ns (Ns Less Part) ["system" ""]
        "The process's own threads in the kernel. A kernel that does not account for interrupts charges them, with the packets that they receive, to whom they interrupt; then they are in here and in `user_ns`.";
    ServerSideIoWqNs ClientSideIoWqNs io_wq_ns (Ns Less Part) ["io-wq" ""]
        "Its workers of io_uring (`iou-wrk`), exact.";
    ServerSideSqpollNs ClientSideSqpollNs sqpoll_ns (Ns Less Part) ["SQPOLL" ""]
        "Its polling threads of io_uring (`iou-sqp`), exact.";
    ServerSideSoftirqThreadNs ClientSideSoftirqThreadNs softirq_thread_ns (Ns Less Part)
        ["softirq thread" ""]
        "The CPU's softirq thread, exact.";
    ServerSideOutsideNs ClientSideOutsideNs outside_ns (Ns Less Part) ["outside" ""]
        "The remainder: interrupts and softirq while the CPU had nothing else to do, the rest of the machine, and the lab's own sampling.";
    ServerSideSoftirqCountedNs ClientSideSoftirqCountedNs softirq_counted_ns (Ns Less Part)
        ["softirq, counted" ""]
        "Softirq and interrupts of the whole CPU by `/proc/stat`, wherever they were charged above. Sampled at ticks, and not while the CPU is idle, unless the kernel accounts for interrupts.";
    ServerSideWaits ClientSideWaits voluntary_switches (Count Less Median) ["waits" "/unit"]
        "Context switches per unit because the process waited.";
    ServerSidePreemptions ClientSidePreemptions involuntary_switches (Count Less Median)
        ["preempted" "/unit"]
        "Context switches per unit because the scheduler ran another thread.";
    ServerSideStealShare ClientSideStealShare steal_share (Ratio Neither Median) ["stolen" ""]
        "Share of the window that the hypervisor took of the CPU, in ticks of 10 ms.";
    ServerSideLookShare ClientSideLookShare look_share (Ratio Neither Median) []
        "Share of the window that the lab's own look inside it took, if it was on this CPU at all.";
}
}

fn ratio(count: u64, whole: u64) -> f64 {
    count as f64 / whole.max(1) as f64
}
