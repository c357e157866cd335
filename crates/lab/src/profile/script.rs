//! Samples from the text of `perf script`, and their attribution.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;

use super::classes::{Class, class_of};

/// Functions that are kept of each side, those with the most samples. The rest are in the classes.
const MOST_DECIDERS: usize = 40;

/// Where the samples of one CPU went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// The CPU.
    #[serde(rename = "cpu")]
    pub cpus: CpuList,
    /// Samples on it.
    pub samples: u64,
    /// Samples by class; their sum is `samples`.
    pub classes: BTreeMap<Class, u64>,
    /// The functions that decided most often.
    pub deciders: Vec<Decider>,
    /// Samples in the kernel of which no function has a name.
    pub nameless: u64,
}

/// A function that put samples into a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decider {
    /// The class.
    pub class: Class,
    /// The function; of samples without one, the program in parentheses.
    pub function: String,
    /// How many samples.
    pub samples: u64,
}

impl Attribution {
    /// Samples in which the CPU worked for the run: it was not idle, and no other process ran.
    pub fn of_the_run(&self) -> u64 {
        let others = [Class::Idle, Class::OtherProcesses];
        others.into_iter().fold(self.samples, |left, class| left.saturating_sub(self.of(class)))
    }

    /// Samples of a class.
    pub fn of(&self, class: Class) -> u64 {
        self.classes.get(&class).copied().unwrap_or(0)
    }

    /// Part that a class has of the samples of the run; nothing for what is not of the run, or if
    /// there are none.
    pub fn share(&self, class: Class) -> Option<f64> {
        let all = self.of_the_run();
        (all > 0 && Class::OF_THE_RUN.contains(&class)).then(|| self.of(class) as f64 / all as f64)
    }
}

/// Collects samples of the CPUs of one side as they are read.
pub(super) struct Collector {
    cpus: CpuList,
    /// The processes of the run.
    own: BTreeSet<i32>,
    by_decider: BTreeMap<(Class, String), u64>,
    nameless: u64,
}

/// One sample: who ran, and the functions of the kernel on its stack, the innermost first. Without
/// any it was in user mode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sample {
    pub(super) program: String,
    pub(super) pid: i32,
    pub(super) cpu: usize,
    pub(super) functions: Vec<String>,
}

impl Collector {
    pub(super) fn new(cpus: CpuList, own: impl IntoIterator<Item = i32>) -> Collector {
        let own = own.into_iter().collect();
        Collector { cpus, own, by_decider: BTreeMap::new(), nameless: 0 }
    }

    pub(super) fn add(&mut self, sample: &Sample) {
        if self.cpus.all().contains(&sample.cpu) {
            let decider = self.decide(sample);
            *self.by_decider.entry(decider).or_default() += 1;
        }
    }

    fn decide(&mut self, sample: &Sample) -> (Class, String) {
        let Sample { program, pid, functions, .. } = sample;
        let by_name = || format!("({program})");
        if !self.own.contains(pid) && !is_kernel_thread(program) {
            return (Class::OtherProcesses, by_name());
        }
        let Some(innermost) = functions.first() else { return (Class::User, by_name()) };
        if functions.iter().all(|function| function == UNKNOWN) {
            self.nameless += 1;
        }
        let known = functions.iter().find_map(|it| Some((class_of(it)?, it.clone())));
        known.unwrap_or_else(|| (Class::Other, innermost.clone()))
    }

    pub(super) fn finish(self) -> Attribution {
        let mut classes: BTreeMap<Class, u64> = BTreeMap::new();
        for ((class, _), samples) in &self.by_decider {
            *classes.entry(*class).or_default() += samples;
        }
        let mut deciders: Vec<Decider> = self
            .by_decider
            .into_iter()
            .map(|((class, function), samples)| Decider { class, function, samples })
            .collect();
        deciders.sort_by(|a, b| b.samples.cmp(&a.samples).then(a.function.cmp(&b.function)));
        deciders.truncate(MOST_DECIDERS);
        Attribution {
            cpus: self.cpus,
            samples: classes.values().sum(),
            classes,
            deciders,
            nameless: self.nameless,
        }
    }
}

/// What `perf script` calls a function that it has no name for.
const UNKNOWN: &str = "[unknown]";

/// Threads of the kernel belong to no process, and work for all of them.
fn is_kernel_thread(program: &str) -> bool {
    const BEGINNINGS: &[&str] = &[
        "swapper",
        "ksoftirqd/",
        "kworker/",
        "rcu",
        "migration/",
        "irq/",
        "napi/",
        "idle_inject/",
    ];
    BEGINNINGS.iter().any(|begin| program.starts_with(begin))
}

/// Reads lines of `perf script -F comm,pid,tid,cpu,ip,sym` and gives each sample to `take`.
pub(super) fn read(lines: impl Iterator<Item = String>, mut take: impl FnMut(&Sample)) {
    let mut current: Option<Sample> = None;
    for line in lines {
        if line.starts_with(char::is_whitespace) {
            // Address, then name, which may hold blanks in other languages than C.
            let name = line.trim().split_once(' ').map(|(_, name)| name.trim().to_owned());
            if let (Some(sample), Some(name)) = (&mut current, name) {
                sample.functions.push(name);
            }
        } else if !line.is_empty() {
            current.iter().for_each(&mut take);
            current = head(&line);
        }
    }
    current.iter().for_each(&mut take);
}

/// The first line of a sample: `program  PID/TID  [CPU]`. The program's name may hold anything.
fn head(line: &str) -> Option<Sample> {
    let (rest, cpu) = line.rsplit_once('[')?;
    let cpu = cpu.split_once(']')?.0.parse().ok()?;
    let (program, ids) = rest.trim_end().rsplit_once(char::is_whitespace)?;
    let pid = ids.split('/').next()?.parse().ok()?;
    Some(Sample { program: program.trim().to_owned(), pid, cpu, functions: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::super::{Profile, ProfiledRun};
    use super::*;
    use crate::experiment::{Cell, NetKind, Point, UdpPoint};

    /// From `perf script` of Linux 6.1 on Linux 6.18, shortened.
    const RECORDED: &str = "\
twinring  4242/4242  [000]: 
\tffffffff81e00001 _raw_spin_unlock_irqrestore
\tffffffff81353120 __wake_up_sync_key
\tffffffff81b10010 sock_def_readable
\tffffffff81c00020 tcp_rcv_established
\tffffffff81e10000 do_syscall_64

twinring  4242/4242  [000]: 

twinring  4242/4243  [000]: 
\tffffffff81a00000 memcpy
\tffffffff81a00010 tcp_recvmsg_locked
\tffffffff81a00020 io_recv
\tffffffff81a00030 __do_sys_io_uring_enter

swapper     0/0     [000]: 
\tffffffff821f236b pv_native_safe_halt
\tffffffff821f3e75 default_idle

swapper     0/0     [000]: 
\tffffffff81c00020 tcp_v4_rcv
\tffffffff81d00020 handle_softirqs
\tffffffff821f3e75 default_idle

a [b] c  77/77  [000]: 
\tffffffff81c00020 tcp_v4_rcv

iou-wrk-4242  4242/4250  [000]: 
\tffffffff81c00021 [unknown]
\tffffffff81c00022 [unknown]

twinring  4300/4300  [001]: 
\tffffffff81c00021 kfree
\tffffffff81c00022 do_mystery
";

    fn lines() -> impl Iterator<Item = String> {
        RECORDED.lines().map(str::to_owned)
    }

    #[test]
    fn the_innermost_known_function_decides() {
        let (mut server, mut client) =
            (Collector::new(CpuList::one(0), [4242]), Collector::new(CpuList::one(1), [4300]));
        read(lines(), |sample| {
            server.add(sample);
            client.add(sample);
        });
        let (server, client) = (server.finish(), client.finish());
        let expected = [
            (Class::Scheduler, 1),
            (Class::User, 1),
            (Class::NetworkStack, 2),
            (Class::Idle, 1),
            (Class::Other, 1),
            (Class::OtherProcesses, 1),
        ];
        assert_eq!(server.classes, BTreeMap::from(expected));
        assert_eq!((server.samples, server.of_the_run(), server.nameless), (7, 5, 1));
        assert_eq!(server.share(Class::NetworkStack), Some(2.0 / 5.0));
        assert_eq!(server.share(Class::Idle), None);
        let stranger = server.deciders.iter().find(|it| it.function == "(a [b] c)").unwrap();
        assert_eq!((stranger.class, stranger.samples), (Class::OtherProcesses, 1));
        assert_eq!((client.samples, client.deciders[0].function.as_str()), (1, "kfree"));
    }

    #[test]
    fn what_is_no_sample_is_left_out() {
        let mut seen = Vec::new();
        let text = ["no sample", "\tffff tcp_v4_rcv", "x 1/1 [zz]:", "y  9/9  [003]: ", "\tffff"];
        read(text.into_iter().map(str::to_owned), |sample| seen.push(sample.clone()));
        let expected = Sample { program: "y".to_owned(), pid: 9, cpu: 3, functions: Vec::new() };
        assert_eq!(seen, [expected]);
        assert_eq!(Collector::new(CpuList::one(0), []).finish().share(Class::User), None);
    }

    /// Found while the fuzz target `bundle` was written: the sums overflowed.
    #[test]
    fn absurd_numbers_of_samples_contradict_themselves() {
        let classes = [(Class::Idle, u64::MAX), (Class::OtherProcesses, u64::MAX)].into();
        let deciders = Vec::new();
        let side = Attribution {
            cpus: CpuList::one(0),
            samples: u64::MAX - 1,
            classes,
            deciders,
            nameless: 0,
        };
        assert_eq!(side.of_the_run(), 0);
        let point =
            Point::Udp(UdpPoint { streams: 1, packets_per_s: 1, message_bytes: 16, workers: 1 });
        let cell = Cell { net: NetKind::Lo, point };
        let (subject, counts) = ("a".to_owned(), None);
        let run = ProfiledRun { cell, subject, server: Some(side), client: None, counts };
        let profile = Profile { runs: vec![run], ..Profile::default() };
        assert_eq!(profile.contradictions().len(), 1);
    }
}
