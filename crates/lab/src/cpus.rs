//! The CPUs of an experiment: which are the server's and which the load generator's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::procfs;

/// The CPUs of one side, one at least and each once, in the order in which its threads get them. In files
/// one is a number and several are a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(try_from = "OneOrMany", into = "OneOrMany")]
pub struct CpuList(Vec<usize>);

#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum OneOrMany {
    One(usize),
    Many(Vec<usize>),
}

impl CpuList {
    /// One CPU.
    pub fn one(cpu: usize) -> CpuList {
        CpuList(vec![cpu])
    }

    /// These CPUs.
    ///
    /// # Errors
    /// Why they are no list: there is none, one is there twice, or the kernel cannot have one.
    pub fn new(cpus: Vec<usize>) -> Result<CpuList, String> {
        if cpus.is_empty() {
            return Err("no CPU is given".to_owned());
        }
        for (index, cpu) in cpus.iter().enumerate() {
            if cpus[..index].contains(cpu) {
                return Err(format!("CPU {cpu} is given twice"));
            }
            if *cpu >= CpuSet::count() {
                return Err(format!(
                    "CPU {cpu} is beyond the {} that are supported",
                    CpuSet::count()
                ));
            }
        }
        Ok(CpuList(cpus))
    }

    /// The first.
    pub fn first(&self) -> usize {
        self.0[0]
    }

    /// All of them.
    pub fn all(&self) -> &[usize] {
        &self.0
    }

    pub(crate) fn first_of(&self, count: usize) -> CpuList {
        CpuList(self.0[..count.clamp(1, self.0.len())].to_vec())
    }

    /// Keeps a thread, 0 for the calling one, to these CPUs.
    pub(crate) fn pin(&self, thread: i32) -> nix::Result<()> {
        let mut set = CpuSet::new();
        self.0.iter().try_for_each(|cpu| set.set(*cpu))?;
        sched_setaffinity(Pid::from_raw(thread), &set)
    }
}

impl TryFrom<OneOrMany> for CpuList {
    type Error = String;

    fn try_from(cpus: OneOrMany) -> Result<CpuList, String> {
        match cpus {
            OneOrMany::One(cpu) => CpuList::new(vec![cpu]),
            OneOrMany::Many(cpus) => CpuList::new(cpus),
        }
    }
}

impl From<CpuList> for OneOrMany {
    fn from(cpus: CpuList) -> OneOrMany {
        match cpus.0[..] {
            [cpu] => OneOrMany::One(cpu),
            _ => OneOrMany::Many(cpus.0),
        }
    }
}

impl std::str::FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuList, String> {
        let bad = |part: &str| format!("`{part}` is neither a CPU nor a range such as `2-3`");
        let number = |text: &str| text.parse::<usize>().ok().filter(|cpu| *cpu < CpuSet::count());
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
            let (first, last) = range.ok_or_else(|| bad(part))?;
            cpus.extend(first..=last);
        }
        CpuList::new(cpus)
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&words.join(","))
    }
}

/// The CPUs of an experiment, a number or a list for either side. What is not given, the lab chooses: the
/// first CPUs for the workers of the server, as many of other cores for the load generator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// The server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu: Option<CpuList>,
    /// The load generator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu: Option<CpuList>,
}

impl Pin {
    pub(crate) fn is_free(&self) -> bool {
        *self == Pin::default()
    }
}

/// Which CPU does what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cpus {
    /// The server's. A cell with fewer workers uses the first of them.
    pub server: CpuList,
    /// The load generator's, the same in each cell.
    pub client: CpuList,
    /// Both use the same: nothing about that is fair to either.
    pub shared: bool,
    /// Both are threads of one core and slow each other down.
    pub siblings: bool,
    /// Left for the lab itself and everybody else.
    pub others: Vec<usize>,
}

impl Cpus {
    /// Chooses among the CPUs that this process may use those that are not given: of different cores if
    /// there are, for up to `workers` threads on either side.
    pub fn choose(pin: &Pin, workers: usize) -> Result<Cpus, LabError> {
        let why = |errno| LabError::machine(format!("its CPUs cannot be listed: {errno}"));
        let cores = allowed_cores().map_err(why)?;
        choose(&cores, pin, workers)
    }
}

/// The CPUs that this process may use, each with those of its core.
pub(crate) fn allowed_cores() -> nix::Result<BTreeMap<usize, Vec<usize>>> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu) == Ok(true));
    Ok(cpus.map(|cpu| (cpu, core_siblings(cpu))).collect())
}

fn choose(
    cores: &BTreeMap<usize, Vec<usize>>,
    pin: &Pin,
    workers: usize,
) -> Result<Cpus, LabError> {
    let Pin { server_cpu, client_cpu } = pin;
    for wanted in [server_cpu, client_cpu].into_iter().flatten().flat_map(CpuList::all) {
        if !cores.contains_key(wanted) {
            let allowed: Vec<&usize> = cores.keys().collect();
            let found = format!("CPU {wanted} may not be used");
            return Err(LabError::request("the CPUs", found, format!("one of {allowed:?}")));
        }
    }
    let none = || LabError::machine("it has no CPU");
    // As many for the load generator, which has to keep the server busy.
    let count = workers.min(cores.values().collect::<BTreeSet<_>>().len() / 2).max(1);
    let on_cores_of = |cpus: &[usize]| -> Vec<usize> {
        cpus.iter().flat_map(|cpu| cores[cpu].iter().copied()).collect()
    };
    let of_client = client_cpu.as_ref().map_or(&[][..], CpuList::all);
    let server =
        server_cpu.clone().or_else(|| pick(cores, count, of_client, &on_cores_of(of_client)));
    let server = server.or_else(|| client_cpu.clone()).ok_or_else(none)?;
    let beside = on_cores_of(server.all());
    let of_rest = || pick(cores, server.all().len(), server.all(), &beside);
    let client = client_cpu.clone().or_else(of_rest).unwrap_or_else(|| server.clone());
    let is_free = |cpu: &usize| !server.0.contains(cpu) && !client.0.contains(cpu);
    let others = cores.keys().copied().filter(is_free).collect();
    let shared = server.0.iter().any(|cpu| client.0.contains(cpu));
    let siblings = !shared && client.0.iter().any(|cpu| beside.contains(cpu));
    Ok(Cpus { server, client, shared, siblings, others })
}

/// Up to `count` CPUs, each of a core of its own as long as there are: never those of `taken`, and those
/// of `last` only if there are no others.
fn pick(
    cores: &BTreeMap<usize, Vec<usize>>,
    count: usize,
    taken: &[usize],
    last: &[usize],
) -> Option<CpuList> {
    let mut picked: Vec<usize> = Vec::new();
    for (own_core, beside) in [(true, false), (false, false), (false, true)] {
        // Fewer CPUs are better than one on a core of the other side.
        if beside && !picked.is_empty() {
            break;
        }
        for cpu in cores.keys().filter(|cpu| !taken.contains(cpu)) {
            let is_alone = !cores[cpu].iter().any(|sibling| picked.contains(sibling));
            let fits = (is_alone || !own_core) && (beside || !last.contains(cpu));
            if fits && picked.len() < count && !picked.contains(cpu) {
                picked.push(*cpu);
            }
        }
    }
    CpuList::new(picked).ok()
}

fn core_siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let siblings = procfs::cpu_list(&path);
    if siblings.is_empty() { vec![cpu] } else { siblings }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(list: &[&[usize]]) -> BTreeMap<usize, Vec<usize>> {
        list.iter().flat_map(|core| core.iter().map(|cpu| (*cpu, core.to_vec()))).collect()
    }

    fn list(cpus: &str) -> CpuList {
        cpus.parse().unwrap()
    }

    #[test]
    fn both_sides_get_cores_of_their_own_as_long_as_there_are() {
        let eight: Vec<[usize; 1]> = (0..8).map(|cpu| [cpu]).collect();
        let eight: Vec<&[usize]> = eight.iter().map(|core| &core[..]).collect();
        let two_cores: &[&[usize]] = &[&[0, 1], &[2, 3]];
        let threads: &[&[usize]] = &[&[0, 4], &[1, 5], &[2, 6], &[3, 7]];
        let one_core: &[&[usize]] = &[&[4, 5]];
        let one_cpu: &[&[usize]] = &[&[7]];
        let two: &[&[usize]] = &[&[0], &[1]];
        for (list, given, workers, server, client, shared, siblings) in [
            (two_cores, [None; 2], 1, "0", "2", false, false),
            (two_cores, [Some("3"), None], 1, "3", "0", false, false),
            (two_cores, [None, Some("0")], 1, "2", "0", false, false),
            (one_core, [None; 2], 1, "4", "5", false, true),
            (one_cpu, [None; 2], 1, "7", "7", true, false),
            // A core for each worker, and as many for the load generator: no more than half of them.
            (&eight, [None; 2], 2, "0,1", "2,3", false, false),
            (&eight, [None; 2], 16, "0,1,2,3", "4,5,6,7", false, false),
            (threads, [None; 2], 8, "0,1", "2,3", false, false),
            (two, [None; 2], 8, "0", "1", false, false),
            // Who gives them decides.
            (&eight, [Some("0-5"), None], 6, "0,1,2,3,4,5", "6,7", false, false),
            (two, [Some("0,1"); 2], 2, "0,1", "0,1", true, false),
        ] {
            let [server_cpu, client_cpu] = given.map(|it| it.map(self::list));
            let found = choose(&cores(list), &Pin { server_cpu, client_cpu }, workers).unwrap();
            assert_eq!((&*found.server.to_string(), &*found.client.to_string()), (server, client));
            assert_eq!((found.shared, found.siblings), (shared, siblings), "{list:?}");
        }
        assert_eq!(choose(&cores(two_cores), &Pin::default(), 1).unwrap().others, [1, 3]);
        let pin = Pin { server_cpu: Some(CpuList::one(8)), client_cpu: None };
        assert_eq!(choose(&cores(one_cpu), &pin, 1).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn lists_are_read_as_taskset_writes_them_and_one_is_a_number_in_files() {
        assert_eq!(list("0,2-4").all(), [0, 2, 3, 4]);
        for text in ["", "1,", "2-1", "0,0", "a", "1-2-3", "0-99999999999", "-1"] {
            text.parse::<CpuList>().unwrap_err();
        }
        for (json, cpus) in [("3", "3"), ("[1,0]", "1,0")] {
            assert_eq!(serde_json::to_string(&list(cpus)).unwrap(), json);
            assert_eq!(serde_json::from_str::<CpuList>(json).unwrap(), list(cpus));
        }
        serde_json::from_str::<CpuList>("[]").unwrap_err();
        assert_eq!(list("5,6,7").first_of(2), list("5,6"));
        assert_eq!(list("5").first_of(2), list("5"));
    }
}
