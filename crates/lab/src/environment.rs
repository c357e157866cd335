//! Where an experiment takes place: CPUs, networks, hosts.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::cpus::Cpus;
use crate::error::LabError;
use crate::host::HostRecord;
use crate::machine::Fingerprint;
use crate::net::{self, Between, Config, Networks};
use crate::options::RunOptions;
use crate::prices::{self, PriceRecord};
use crate::quorum::LostHost;
use crate::stop::Stop;

/// Where an experiment takes place.
pub(crate) struct Environment {
    pub(crate) networks: Networks,
    pub(crate) cpus: Cpus,
    pub(crate) machine: Fingerprint,
    /// Between hosts, all of them.
    pub(crate) hosts: Vec<HostRecord>,
    /// Client hosts that could not be used from the start.
    pub(crate) lost_hosts: Vec<LostHost>,
    /// The fewest client hosts with which the experiment goes on.
    pub(crate) least: usize,
    pub(crate) prices: PriceRecord,
    pub(crate) affinity: LabAffinity,
}

impl Environment {
    pub(crate) fn set_up(options: &RunOptions, stop: &Stop) -> Result<Environment, LabError> {
        let Some(between) = &options.hosts else {
            let experiment = &options.experiment;
            let cpus = Cpus::choose(&experiment.pin, experiment.workers_most())?;
            // Measuring prices uses both CPUs, so it comes before the lab leaves them.
            let prices = match options.prices {
                true => prices::measure(&options.binary, &cpus, stop),
                false => PriceRecord::none("they were not to be measured"),
            };
            let affinity = LabAffinity::keep_to(&cpus.others);
            let networks = net::set_up(options.experiment.net, &cpus)?;
            let machine = Fingerprint::read(&cpus);
            let (hosts, lost_hosts, least) = (Vec::new(), Vec::new(), usize::MAX);
            return Ok(Environment {
                networks,
                cpus,
                machine,
                hosts,
                lost_hosts,
                least,
                prices,
                affinity,
            });
        };
        if options.profile {
            return Err(LabError::BadExperiment {
                place: "--profile".to_owned(),
                problem: "perf looks at programs of the lab's own host".to_owned(),
                expected: "neither --server-host nor --client-host".to_owned(),
            });
        }
        let words = options.helper.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
        let config = Config {
            pin: &options.experiment.pin,
            workers: options.experiment.workers_most(),
            binary: &options.binary,
            helper: &words.collect::<Vec<_>>(),
        };
        let Between { network, cpus, records, lost_hosts, least, others } =
            net::between_hosts(between, &options.experiment, &config)?;
        let networks = Networks { list: vec![network], fallback: None };
        let machine = records.first().map(|host| host.machine.clone()).unwrap_or_default();
        let affinity = LabAffinity::keep_to(&others);
        let prices = PriceRecord::none("they are measured on the lab's own host only");
        let hosts = records;
        Ok(Environment { networks, cpus, machine, hosts, lost_hosts, least, prices, affinity })
    }
}

/// Keeps the lab's own thread, and the threads it starts, off the measured CPUs while there are
/// others. Children are pinned one by one and are not affected.
pub(crate) struct LabAffinity {
    before: Option<CpuSet>,
}

impl LabAffinity {
    fn keep_to(cpus: &[usize]) -> LabAffinity {
        let mut others = CpuSet::new();
        let usable = !cpus.is_empty() && cpus.iter().all(|cpu| others.set(*cpu).is_ok());
        let this = Pid::from_raw(0);
        let before = usable.then(|| sched_getaffinity(this).ok()).flatten();
        // Without it the measurement is a little noisier, no more.
        let moved = before.is_some() && sched_setaffinity(this, &others).is_ok();
        LabAffinity { before: before.filter(|_| moved) }
    }
}

impl Drop for LabAffinity {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // It was allowed before, so it is now.
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
}
