//! What a sample of the profile was doing, by the names of the functions on its stack.
//!
//! The innermost function that any rule knows decides, so that helpers which everybody uses
//! (copying, locking, allocating) count for their caller: `tcp_recvmsg` under `io_recv` is
//! the network stack, and so is a copy under `tcp_recvmsg`; what `io_recv` itself does is io_uring.

use serde::{Deserialize, Serialize};

/// What the CPU did when a sample was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Sockets, TCP, UDP, IP, queues and devices.
    NetworkStack,
    /// io_uring.
    IoUring,
    /// epoll, and the polling of files that it rests on.
    Epoll,
    /// Ways into the kernel and out of it, and the thin layer of socket calls.
    SystemCalls,
    /// Choosing who runs, waking, switching, timers of those who wait.
    Scheduler,
    /// Files and their caches.
    Files,
    /// The program itself, in user mode.
    User,
    /// Interrupts as such, messages between CPUs, and what only a virtual machine has.
    Interrupts,
    /// No rule knows any function of it.
    Other,
    /// Processes that have nothing to do with the run.
    OtherProcesses,
    /// Nothing.
    Idle,
}

impl Class {
    /// What the run itself did, in the order in which to show it.
    pub const OF_THE_RUN: [Class; 9] = [
        Class::NetworkStack,
        Class::IoUring,
        Class::Epoll,
        Class::SystemCalls,
        Class::Scheduler,
        Class::Files,
        Class::User,
        Class::Interrupts,
        Class::Other,
    ];

    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Class::NetworkStack => "network stack",
            Class::IoUring => "io_uring",
            Class::Epoll => "epoll",
            Class::SystemCalls => "system calls",
            Class::Scheduler => "scheduler",
            Class::Files => "files",
            Class::User => "user code",
            Class::Interrupts => "interrupts",
            Class::Other => "other",
            Class::OtherProcesses => "other processes",
            Class::Idle => "idle",
        }
    }
}

/// Functions of one class. A name that ends with `*` stands for all that begin so.
struct Rule {
    class: Class,
    why: &'static str,
    names: &'static [&'static str],
}

/// The rules. An exact name beats a beginning, and a longer beginning a shorter one, so that their
/// order does not matter.
const RULES: &[Rule] = &[
    Rule {
        class: Class::Idle,
        why: "the idle loop and the instruction that halts, of the machine or of a virtual one",
        names: &[
            "default_idle*",
            "pv_native_safe_halt",
            "native_safe_halt",
            "acpi_idle_*",
            "acpi_safe_halt",
            "intel_idle*",
            "mwait_idle*",
            "poll_idle",
            "cpuidle_*",
            "cpu_idle_poll*",
            "haltpoll_*",
            "arch_cpu_idle",
            "do_idle",
        ],
    },
    Rule {
        class: Class::IoUring,
        why: "the files of io_uring/ in the kernel; its functions begin with io_",
        names: &[
            "io_*",
            "__io_*",
            "tctx_task_work*",
            "__do_sys_io_uring_*",
            "__se_sys_io_uring_*",
            "__x64_sys_io_uring_*",
            "__arm64_sys_io_uring_*",
        ],
    },
    Rule {
        class: Class::Scheduler,
        why: "begins with io_ and is the scheduler's: waiting for a disk",
        names: &["io_schedule*"],
    },
    Rule {
        class: Class::Epoll,
        why: "fs/eventpoll.c, and the generic polling of files",
        names: &[
            "ep_*",
            "__ep_*",
            "epoll_*",
            "do_epoll_*",
            "eventpoll_*",
            "__x64_sys_epoll_*",
            "__arm64_sys_epoll_*",
            "__pollwait",
            "poll_*",
            "do_poll*",
            "do_select",
            "select_estimate_accuracy",
        ],
    },
    Rule {
        class: Class::SystemCalls,
        why: "the way in and out of the kernel, with its mitigations, and the entries of calls that \
              have no class of their own",
        names: &[
            "entry_SYSCALL_*",
            "entry_SYSRETQ_*",
            "do_syscall_64",
            "x64_sys_call",
            "syscall_*",
            "__syscall_*",
            "exit_to_user_mode*",
            "irqentry_exit_to_user_mode",
            "el0_svc*",
            "invoke_syscall*",
            "__x64_sys_*",
            "__arm64_sys_*",
            "__se_sys_*",
            "__do_sys_*",
            "ksys_*",
            "fdget*",
            "__fdget*",
            "fget*",
            "__fget*",
            "fput*",
            "__fput*",
            "sockfd_lookup*",
            "__audit_*",
            "__seccomp_*",
            "seccomp_*",
            "__check_object_size",
            "check_heap_object",
        ],
    },
    Rule {
        class: Class::NetworkStack,
        why: "net/: sockets and their calls, TCP, UDP, IP, routing, filters, queues, buffers of \
              packets, congestion control, and the devices that connect namespaces",
        names: &[
            "tcp_*",
            "__tcp_*",
            "udp_*",
            "__udp_*",
            "udpv6_*",
            "ip_*",
            "__ip_*",
            "ip6_*",
            "ipv4_*",
            "ipv6_*",
            "inet_*",
            "__inet_*",
            "inet6_*",
            "__inet6_*",
            "raw_local_deliver",
            "sock_*",
            "__sock_*",
            "____sys_*msg",
            "___sys_*msg",
            "__sys_sendto",
            "__sys_recvfrom",
            "__sys_sendmsg",
            "__sys_recvmsg",
            "__sys_sendmmsg",
            "__sys_recvmmsg",
            "__sys_accept4*",
            "do_accept",
            "do_recvmmsg",
            "security_sock*",
            "security_sk_*",
            "sk_*",
            "__sk_*",
            "lock_sock*",
            "__lock_sock*",
            "release_sock",
            "__release_sock",
            "skb_*",
            "__skb_*",
            "__copy_skb_header",
            "__alloc_skb",
            "alloc_skb*",
            "napi_*",
            "__napi_*",
            "kfree_skb*",
            "__kfree_skb*",
            "consume_skb*",
            "__consume_stateless_skb",
            "net_*",
            "__net_*",
            "netif_*",
            "__netif_*",
            "netdev_*",
            "process_backlog",
            "enqueue_to_backlog",
            "get_rps_cpu",
            "rps_*",
            "dev_*",
            "__dev_*",
            "validate_xmit_*",
            "sch_direct_xmit",
            "__qdisc_*",
            "qdisc_*",
            "pfifo_*",
            "fq_*",
            "loopback_*",
            "veth_*",
            "eth_*",
            "gro_*",
            "udp4_*",
            "nf_*",
            "nft_*",
            "ipt_*",
            "neigh_*",
            "__neigh_*",
            "fib_*",
            "__fib_*",
            "dst_*",
            "rt_*",
            "bbr_*",
            "bictcp_*",
            "cubictcp_*",
            "bpf_skops_*",
            "reuseport_*",
            "tls_*",
            "datagram_*",
            "virtnet_*",
            "__virtnet_*",
        ],
    },
    Rule {
        class: Class::Scheduler,
        why: "kernel/sched, waiting and waking, and the timers of those who wait",
        names: &[
            "schedule*",
            "__schedule*",
            "preempt_schedule*",
            "finish_task_switch*",
            "__switch_to*",
            "context_switch",
            "prepare_task_switch",
            "pick_*",
            "__pick_*",
            "try_to_wake_up",
            "ttwu_*",
            "wake_*",
            "__wake_*",
            "default_wake_function",
            "autoremove_wake_function",
            "pollwake",
            "select_task_rq*",
            "select_idle_*",
            "enqueue_task*",
            "dequeue_task*",
            "enqueue_entity",
            "dequeue_entit*",
            "update_curr*",
            "update_load_avg*",
            "__update_load_avg*",
            "update_rq_clock*",
            "set_next_*",
            "put_prev_*",
            "check_preempt_*",
            "resched_curr*",
            "sched_clock*",
            "sched_*",
            "newidle_balance",
            "sched_balance_*",
            "load_balance*",
            "find_busiest_*",
            "psi_*",
            "hrtimer_start*",
            "hrtimer_try_to_cancel",
            "hrtimer_nanosleep",
            "do_nanosleep",
            "futex_*",
            "do_futex",
            "__futex_*",
            "prepare_to_wait*",
            "finish_wait",
            "add_wait_queue*",
            "remove_wait_queue",
            "rcu_note_context_switch",
            "switch_mm*",
        ],
    },
    Rule {
        class: Class::Files,
        why: "files and their cache, and what moves their pages to sockets",
        names: &[
            "filemap_*",
            "generic_file_*",
            "vfs_*",
            "path_*",
            "link_path_walk*",
            "lookup_*",
            "do_filp_open",
            "do_sendfile",
            "splice_*",
            "do_splice*",
            "__splice_*",
            "pipe_*",
            "ext4_*",
            "xfs_*",
            "btrfs_*",
            "shmem_*",
            "overlay_*",
            "ovl_*",
            "touch_atime",
            "atime_*",
            "page_cache_*",
        ],
    },
    Rule {
        class: Class::Interrupts,
        why: "interrupts as such, messages between CPUs, softirq beside its work, clock ticks, and \
              calls to the hypervisor",
        names: &[
            "asm_sysvec_*",
            "sysvec_*",
            "__sysvec_*",
            "asm_common_interrupt",
            "common_interrupt",
            "irq_enter*",
            "irq_exit*",
            "__irq_exit*",
            "irqentry_*",
            "handle_softirqs",
            "__do_softirq",
            "do_softirq*",
            "__local_bh_enable_ip",
            "run_ksoftirqd",
            "smpboot_thread_fn",
            "generic_handle_*",
            "handle_edge_irq",
            "handle_fasteoi_irq",
            "handle_irq_event*",
            "__handle_irq_event*",
            "flush_smp_call_function_queue",
            "__flush_smp_call_function_queue",
            "generic_smp_call_function*",
            "smp_call_function*",
            "generic_exec_single",
            "__smp_call_single_queue",
            "send_call_function_single_ipi",
            "native_send_call_func*",
            "x2apic_send_IPI*",
            "native_apic_*",
            "apic_*",
            "hrtimer_interrupt",
            "__hrtimer_run_queues",
            "tick_*",
            "update_process_times",
            "timekeeping_*",
            "run_timer_softirq",
            "__run_timers*",
            "rcu_core*",
            "rcu_do_batch",
            "note_gp_changes",
            "kvm_*",
            "__kvm_*",
            "pvclock_*",
            "xen_*",
            "hv_*",
            "virtqueue_*",
            "vring_*",
            "vp_interrupt",
            "vm_interrupt",
        ],
    },
];

/// The class of a function, if a rule knows it. Suffixes that the compiler adds do not count.
pub(super) fn class_of(function: &str) -> Option<Class> {
    let function = function.split('.').next().unwrap_or(function);
    let fit = |name: &str| match name.split_once('*') {
        None => (name == function).then_some(usize::MAX),
        Some((begin, end)) => {
            let rest = function.strip_prefix(begin)?;
            rest.ends_with(end).then_some(name.len())
        }
    };
    let best = |rule: &Rule| rule.names.iter().filter_map(|name| fit(name)).max();
    let fits = RULES.iter().filter_map(|rule| Some((best(rule)?, rule.class)));
    fits.max_by_key(|(length, _)| *length).map(|(_, class)| class)
}

/// The rules as rows: class, reason, functions.
pub fn rules() -> impl Iterator<Item = (Class, &'static str, &'static [&'static str])> {
    RULES.iter().map(|rule| (rule.class, rule.why, rule.names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_their_names() {
        for (function, class) in [
            ("tcp_recvmsg_locked", Class::NetworkStack),
            ("io_recv", Class::IoUring),
            ("io_schedule_timeout", Class::Scheduler),
            ("__x64_sys_io_uring_enter", Class::IoUring),
            ("__x64_sys_epoll_pwait2", Class::Epoll),
            ("__x64_sys_close", Class::SystemCalls),
            ("tcp_poll", Class::NetworkStack),
            ("____sys_recvmsg", Class::NetworkStack),
            ("finish_task_switch.isra.0", Class::Scheduler),
            ("ep_poll_callback", Class::Epoll),
            ("pv_native_safe_halt", Class::Idle),
            ("x2apic_send_IPI", Class::Interrupts),
            ("do_sendfile", Class::Files),
        ] {
            assert_eq!(class_of(function), Some(class), "{function}");
        }
        for helper in ["_raw_spin_lock", "kfree", "memcpy", "__slab_free", "[unknown]", ""] {
            assert_eq!(class_of(helper), None, "{helper}");
        }
    }

    #[test]
    fn no_function_is_claimed_by_two_rules_and_each_has_a_reason() {
        for (position, (_, why, names)) in rules().enumerate() {
            assert!(!why.is_empty());
            for other in RULES.iter().skip(position + 1) {
                let twice = names.iter().find(|name| other.names.contains(name));
                assert_eq!(twice, None);
            }
        }
        assert!(
            rules().all(|(class, ..)| class == Class::Idle || Class::OF_THE_RUN.contains(&class))
        );
    }
}
