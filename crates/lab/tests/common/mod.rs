//! Experiments with the fakes of `examples/fakes`, which cargo builds before the tests.

pub(crate) mod records;
pub(crate) mod stories;

use std::path::{Path, PathBuf};

use twinring_lab::analysis::{CellSummary, Check, Effect, Summary};
use twinring_lab::record::RunRecord;
use twinring_lab::result::Bundle;
use twinring_lab::{Experiment, LabError, Outcome, RunOptions, Stop};

/// The executable of the fakes, beside the directory of the test binaries.
pub(crate) fn fakes() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its path");
    let target = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    let fakes = target.join("examples/fakes");
    assert!(
        fakes.exists(),
        "{} is missing: cargo builds it with all tests of the crate; for one of them alone, first run \
         `cargo build -p twinring-lab --example fakes`",
        fakes.display()
    );
    fakes
}

/// The window of a sketch. The fakes have pauses, so that a third of a second is enough on a busy machine.
const WINDOW_S: f64 = 0.3;

/// A short experiment of the clean server against `others`.
pub(crate) struct Sketch<'a> {
    pub(crate) clean: &'a str,
    pub(crate) others: &'a [&'a str],
    pub(crate) connections: u32,
    pub(crate) pairs: usize,
    pub(crate) net: &'a str,
    pub(crate) client_fault: &'a str,
    pub(crate) window_s: f64,
}

impl Default for Sketch<'_> {
    fn default() -> Self {
        Sketch {
            clean: "echo",
            others: &[],
            connections: 4,
            pairs: 1,
            net: "lo",
            client_fault: "",
            window_s: WINDOW_S,
        }
    }
}

impl Sketch<'_> {
    pub(crate) fn text(&self) -> String {
        let subject = |mode: &str| {
            let ready = if matches!(mode, "foreign" | "forks") { "tcp" } else { "json" };
            format!(
                "[[subjects]]\nname = \"{mode}\"\nready = \"{ready}\"\n\
                 command = [\"{{twinring}}\", \"server\", \"{mode}\", \"{{addr}}\"]\n"
            )
        };
        let Sketch { clean, others, connections, pairs, net, client_fault, window_s } = self;
        let subjects: String = [clean].into_iter().chain(*others).copied().map(subject).collect();
        format!(
            "schema = \"twinring.lab.experiment/4\"\nname = \"sketch\"\npairs = {pairs}\n\
             net = \"{net}\"\nwarmup_s = 0.1\nwindow_s = {window_s}\n\
             [tcp]\nconnections = [{connections}]\nmessage_bytes = [128]\n\
             load = [\"{{twinring}}\", \"client\", \"{{addr}}\", \"{{connections}}\", \
             \"{{message_bytes}}\", \"{{depth}}\", \"{{warmup_ms}}\", \"{{window_ms}}\", \
             \"{client_fault}\"]\n{subjects}"
        )
    }

    pub(crate) fn run(&self, out: &Path) -> Result<Outcome, LabError> {
        self.run_with(out, &Stop::new())
    }

    pub(crate) fn run_with(&self, out: &Path, stop: &Stop) -> Result<Outcome, LabError> {
        run_text(&self.text(), out, stop)
    }
}

/// Runs an experiment, and takes out of its records what the machine did beside it.
pub(crate) fn run_text(text: &str, out: &Path, stop: &Stop) -> Result<Outcome, LabError> {
    let mut outcome = run_as_it_is(text, out, stop)?;
    outcome.bundle = calm(&outcome.directory);
    Ok(outcome)
}

/// Runs an experiment whose runs may all be excluded, as other tests use the CPUs.
pub(crate) fn run_as_it_is(text: &str, out: &Path, stop: &Stop) -> Result<Outcome, LabError> {
    let experiment = Experiment::from_toml(text, "sketch")?;
    twinring_lab::run(&options(experiment, out), stop)
}

/// A short UDP experiment: the clean reflector against `others`, each by the mode of its server.
pub(crate) struct UdpSketch<'a> {
    pub(crate) others: &'a [&'a str],
    pub(crate) pairs: usize,
    pub(crate) net: &'a str,
    pub(crate) client_fault: &'a str,
    pub(crate) window_s: f64,
}

impl Default for UdpSketch<'_> {
    fn default() -> Self {
        UdpSketch { others: &[], pairs: 1, net: "lo", client_fault: "", window_s: WINDOW_S }
    }
}

impl UdpSketch<'_> {
    /// The first subject's load generator is truthful, the others' have the fault.
    pub(crate) fn text(&self) -> String {
        let UdpSketch { others, pairs, net, client_fault, window_s } = self;
        let subject = |mode: &str, name: &str, fault: &str| {
            let ready = if mode == "foreign" { "" } else { "ready = \"json\"\n" };
            format!(
                "[[subjects]]\nname = \"{name}\"\n{ready}load_arguments = [\"{fault}\"]\n\
                 command = [\"{{twinring}}\", \"udp-server\", \"{mode}\", \"{{addr}}\"]\n"
            )
        };
        let others =
            others.iter().map(|mode| subject(mode, &format!("other-{mode}"), client_fault));
        let subjects: String =
            [subject("reflect", "clean", "")].into_iter().chain(others).collect();
        format!(
            "schema = \"twinring.lab.experiment/4\"\nname = \"sketch\"\npairs = {pairs}\n\
             net = \"{net}\"\nwarmup_s = 0.1\nwindow_s = {window_s}\n\
             [udp]\nstreams = [20]\npackets_per_s = [50]\nmessage_bytes = [172]\n\
             under_test = \"both\"\nkeeps_up = {{ missing_ratio = 0.001, lateness_us_p99_9 = 25000.0 }}\n\
             load = [\"{{twinring}}\", \"udp-client\", \"{{addr}}\", \"{{streams}}\", \
             \"{{packets_per_s}}\", \"{{message_bytes}}\", \"{{warmup_ms}}\", \
             \"{{window_ms}}\"]\n{subjects}"
        )
    }

    pub(crate) fn run(&self, out: &Path) -> Result<Outcome, LabError> {
        run_text(&self.text(), out, &Stop::new())
    }
}

/// A short HTTP experiment: the clean server of files against `others`, each by its mode.
pub(crate) struct HttpSketch<'a> {
    pub(crate) others: &'a [&'a str],
    pub(crate) connections: u32,
    pub(crate) pairs: usize,
    pub(crate) client_fault: &'a str,
    pub(crate) window_s: f64,
    /// Further lines of the section of HTTP.
    pub(crate) grid: &'a str,
    /// Further subjects.
    pub(crate) more: &'a str,
}

impl Default for HttpSketch<'_> {
    fn default() -> Self {
        HttpSketch {
            others: &[],
            connections: 4,
            pairs: 1,
            client_fault: "",
            window_s: WINDOW_S,
            grid: "",
            more: "",
        }
    }
}

impl HttpSketch<'_> {
    pub(crate) fn text(&self) -> String {
        let subject = |mode: &str| {
            let ready = if mode == "foreign" { "" } else { "ready = \"json\"\n" };
            format!(
                "[[subjects]]\nname = \"{mode}\"\n{ready}command = [\"{{twinring}}\", \
                 \"http-server\", \"{mode}\", \"{{addr}}\", \"{{root}}\"]\n"
            )
        };
        let HttpSketch { others, connections, pairs, client_fault, window_s, grid, more } = self;
        let subjects: String = ["files"].iter().chain(*others).copied().map(subject).collect();
        format!(
            "schema = \"twinring.lab.experiment/4\"\nname = \"sketch\"\npairs = {pairs}\n\
             net = \"lo\"\nwarmup_s = 0.1\nwindow_s = {window_s}\n\
             [http]\nconnections = [{connections}]\nfile_bytes = [1000]\n{grid}\n\
             load = [\"{{twinring}}\", \"http-client\", \"{{urls}}\", \
             \"{{root}}/{{file_bytes}}.bin\", \"{{connections}}\", \"{{depth}}\", \
             \"{{warmup_ms}}\", \"{{window_ms}}\", \"{client_fault}\"]\n{subjects}{more}"
        )
    }

    pub(crate) fn run(&self, out: &Path) -> Result<Outcome, LabError> {
        run_text(&self.text(), out, &Stop::new())
    }
}

/// The records of an experiment's runs, in the order of time.
pub(crate) fn runs(outcome: &Outcome) -> Vec<RunRecord> {
    let text = std::fs::read_to_string(outcome.directory.join("runs.jsonl")).expect("the runs");
    text.lines().map(|line| serde_json::from_str(line).expect("a run")).collect()
}

/// Takes the machine's other work out of a bundle's records: tests are about what the two programs of a
/// run did. The hypervisor may have moved the CPUs meanwhile, too.
pub(crate) fn calm(bundle: &Path) -> Bundle {
    let path = bundle.join("runs.jsonl");
    let calm = |line: &str| {
        let mut run: RunRecord = serde_json::from_str(line).expect("a run");
        run.others = None;
        run.distance = None;
        for cpu in run.cpu.iter_mut() {
            cpu.sample_delay_us = [0.0, 0.0];
            cpu.server_cpu.steal_coarse_s = 0.0;
            cpu.client_cpu.iter_mut().for_each(|it| it.steal_coarse_s = 0.0);
        }
        serde_json::to_string(&run).expect("a run") + "\n"
    };
    let runs: String =
        std::fs::read_to_string(&path).expect("the runs").lines().map(calm).collect();
    std::fs::write(path, runs).expect("room");
    twinring_lab::rerender(bundle).expect("a bundle")
}

/// The first cell.
pub(crate) fn first_cell(outcome: &Outcome) -> CellSummary {
    summary(outcome).cells[0].clone()
}

pub(crate) fn options(experiment: Experiment, out: &Path) -> RunOptions {
    RunOptions {
        experiment,
        out: out.to_owned(),
        seed: Some(5),
        binary: fakes(),
        helper: vec![fakes().into(), "helper".into()],
        peers: None,
        prices: false,
        // Other tests use the CPUs.
        excluded_max: usize::MAX,
        command: vec!["test".to_owned()],
    }
}

pub(crate) fn summary(outcome: &Outcome) -> &Summary {
    outcome.bundle.summary.as_ref().expect("an experiment that ended has a summary")
}

/// The rules that voided a subject.
pub(crate) fn voids(cell: &CellSummary, subject: &str) -> Vec<Check> {
    let of_subject = |finding: &&twinring_lab::analysis::Finding| {
        finding.subject == subject && finding.effect == Effect::Void
    };
    cell.findings.iter().filter(of_subject).map(|finding| finding.check).collect()
}

/// Waits for something that happens beside the test, half a minute at most.
pub(crate) fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The bundle in a directory of bundles, once there is one.
pub(crate) fn bundle_in(out: &Path) -> Option<PathBuf> {
    let directories = std::fs::read_dir(out).unwrap().flatten().map(|entry| entry.path());
    directories.into_iter().find(|path| path.join("runs.jsonl").exists())
}

/// The names of what is in a directory.
pub(crate) fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
