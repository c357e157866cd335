//! Whether an experiment makes sense.

use super::http::SET_BYTES_MAX;
use super::{
    EXPERIMENT_SCHEMA, Experiment, HttpGrid, Protocol, Published, PublishedDatagrams,
    PublishedRequests, Subject, UnderTest,
};
use crate::error::LabError;

/// The most pairs, subjects, published figures and points of an axis that are accepted.
const MAX_PAIRS: usize = 1000;
const MAX_SUBJECTS: usize = 64;
const MAX_PUBLISHED: usize = 64;
const MAX_POINTS: usize = 64;

/// The longest window and warm-up, which with the limits above bounds every run.
const MAX_SECONDS: f64 = 300.0;

/// Refuses with what was found and what was expected.
struct Check<'a> {
    place: &'a str,
}

impl Check<'_> {
    fn unless(&self, right: bool, problem: String, expected: &str) -> Result<(), LabError> {
        if right {
            return Ok(());
        }
        let (place, expected) = (self.place.to_owned(), expected.to_owned());
        Err(LabError::BadExperiment { place, problem, expected })
    }

    fn name(&self, what: &str, name: &str) -> Result<(), LabError> {
        let problem = format!("{what} \"{name}\"");
        self.unless(is_name(name), problem, "1-40 letters, digits, `-`, `_`, `.`")
    }

    fn seconds(&self, name: &str, seconds: f64, least: f64) -> Result<(), LabError> {
        self.unless(
            (least..=MAX_SECONDS).contains(&seconds),
            format!("{name} = {seconds}"),
            &format!("{least} to {MAX_SECONDS} seconds"),
        )
    }

    fn axes(&self, axes: &[(&str, &[u32], u32)]) -> Result<(), LabError> {
        for &(axis, points, most) in axes {
            self.unless(
                (1..=MAX_POINTS).contains(&points.len())
                    && points.iter().all(|point| (1..=most).contains(point)),
                format!("{axis} = {points:?}"),
                &format!("1 to {MAX_POINTS} numbers from 1 to {most}"),
            )?;
        }
        Ok(())
    }

    fn load(&self, command: &[String], target: &str) -> Result<(), LabError> {
        self.unless(
            command.iter().any(|word| word.contains(target)),
            format!("the load's command has no {target}"),
            &format!("a program and arguments, with {target} where the server's address goes"),
        )
    }

    fn http(&self, http: &HttpGrid) -> Result<(), LabError> {
        self.axes(&http.axes())?;
        for (flag, points) in [("keepalive", &http.keepalive), ("tls", &http.tls)] {
            let right = matches!(points[..], [_]) || matches!(points[..], [a, b] if a != b);
            let problem = format!("{flag} = {points:?}");
            self.unless(right, problem, "[true], [false], or both")?;
        }
        let per_request = http.keepalive.contains(&false);
        self.unless(
            !per_request || http.depth == [1],
            format!("depth = {:?} with a connection for each request", http.depth),
            "depth = [1] with keepalive = [false]",
        )?;
        let most = |axis: &[u32]| axis.iter().copied().max().map_or(0, u64::from);
        let set_bytes = most(&http.files) * most(&http.file_bytes);
        self.unless(
            set_bytes <= SET_BYTES_MAX,
            format!("{set_bytes} bytes in files of one size"),
            "at most 4 GiB: fewer or smaller files",
        )?;
        self.load(&http.load, "{urls}")
    }
}

impl Experiment {
    /// # Errors
    /// [`LabError::BadExperiment`] for the first thing that is wrong.
    pub(super) fn check(&self, place: &str) -> Result<(), LabError> {
        let check = Check { place };
        let problem = format!("schema = \"{}\"", self.schema);
        check.unless(self.schema == EXPERIMENT_SCHEMA, problem, EXPERIMENT_SCHEMA)?;
        check.name("name =", &self.name)?;
        check.unless(
            (1..=MAX_PAIRS).contains(&self.pairs) && self.spare_pairs <= MAX_PAIRS,
            format!("pairs = {}, spare_pairs = {}", self.pairs, self.spare_pairs),
            "1 to 1000 pairs (8 or more for a verdict) and at most 1000 to spare",
        )?;
        check.unless(
            self.protocols().next().is_some(),
            "no cells are left".to_owned(),
            "[tcp], [udp] or [http] with its axes, and subjects that all speak it",
        )?;
        for protocol in self.protocols() {
            let (warmup_s, window_s) = self.pace_s(protocol);
            check.seconds("warmup_s", warmup_s, 0.0)?;
            check.seconds("window_s", window_s, 0.05)?;
        }
        if let Some(tcp) = &self.tcp {
            check.axes(&tcp.axes())?;
            check.load(&tcp.load, "{addr}")?;
        }
        if let Some(udp) = &self.udp {
            check.axes(&udp.axes())?;
            check.load(&udp.load, "{addr}")?;
        }
        if let Some(http) = &self.http {
            check.http(http)?;
        }
        self.check_under_test(&check)?;
        self.check_subjects(&check)?;
        self.check_published(&check)
    }

    fn check_under_test(&self, check: &Check<'_>) -> Result<(), LabError> {
        let follows = |command: &[String]| command.iter().any(|word| word.contains("{engine}"));
        let tcp = self.tcp.as_ref().map(|grid| ("tcp", &grid.load));
        let http = self.http.as_ref().map(|grid| ("http", &grid.load));
        for (section, load) in [tcp, http].into_iter().flatten() {
            check.unless(
                !follows(load),
                format!("the load of [{section}] has {{engine}}"),
                "a fixed engine: the load generator never follows the server's",
            )?;
        }
        let Some(udp) = &self.udp else { return Ok(()) };
        check.unless(
            (0.0..=1.0).contains(&udp.keeps_up.missing_ratio)
                && udp.keeps_up.lateness_us_p99_9 > 0.0,
            format!("{:?}", udp.keeps_up),
            "missing_ratio from 0 to 1 and lateness_us_p99_9 above 0",
        )?;
        let differs = follows(&udp.load)
            || self.subjects.iter().any(|subject| !subject.load_arguments.is_empty());
        check.unless(
            udp.under_test == UnderTest::Both || !differs,
            "the load of [udp] depends on the subject".to_owned(),
            "under_test = \"both\", or neither {engine} nor load_arguments",
        )
    }

    fn check_subjects(&self, check: &Check<'_>) -> Result<(), LabError> {
        for protocol in self.protocols() {
            let speakers = self.subjects_of(protocol).len();
            check.unless(
                (1..=MAX_SUBJECTS).contains(&speakers),
                format!("{speakers} subjects that speak {protocol}"),
                "1 to 64 subjects, the first of them the baseline",
            )?;
        }
        for (index, subject) in self.subjects.iter().enumerate() {
            let Subject { name, engine, command, features, server_arguments, .. } = subject;
            let known = self.subjects[..index].iter().any(|other| other.name == *name);
            let problem = format!("two subjects named `{name}`");
            check.unless(!known, problem, "a name of its own for each")?;
            check.name("subject name", name)?;
            let engine_known = engine.as_deref().is_none_or(|e| matches!(e, "io_uring" | "epoll"));
            check.unless(engine_known, format!("engine = {engine:?}"), "io_uring or epoll")?;
            let only_for_engines = features.is_some() || !server_arguments.is_empty();
            let ways = [engine.is_some(), command.is_some(), subject.nginx.is_some()];
            check.unless(
                ways.iter().filter(|given| **given).count() == 1
                    && (engine.is_some() || !only_for_engines),
                format!("subject `{name}` has engine {engine:?} and command {command:?}"),
                "one of engine (with features and server_arguments), command and nginx",
            )?;
            check_subject(check, subject)?;
            for other in &subject.against {
                let is_other = self.subjects.iter().any(|it| it.name == *other && other != name);
                let problem = format!("subject `{name}` is to be compared with `{other}`");
                check.unless(is_other, problem, "the name of another subject")?;
            }
        }
        Ok(())
    }

    fn check_published(&self, check: &Check<'_>) -> Result<(), LabError> {
        check.unless(
            self.published.len() <= MAX_PUBLISHED,
            format!("{} published figures", self.published.len()),
            "at most 64",
        )?;
        for published in &self.published {
            let positive = match published {
                Published::Datagrams(PublishedDatagrams { cpu_percent, calls, .. }) => {
                    let counted = |call: &super::PublishedCall| {
                        call.time_s > 0.0
                            && call.count > 0
                            && call.run_percent > 0.0
                            && call.max_ms >= 0.0
                    };
                    *cpu_percent > 0.0 && calls.iter().all(counted)
                }
                Published::Requests(PublishedRequests { measured, .. }) => {
                    measured.iter().all(|it| it.requests_per_s > 0.0 && it.mean_ms > 0.0)
                }
            };
            let problem = format!("a figure of {} is not positive", published.source());
            check.unless(positive, problem, "figures above 0")?;
        }
        Ok(())
    }
}

/// Whether its command says where to listen, and nginx only what nginx can do.
fn check_subject(check: &Check<'_>, subject: &Subject) -> Result<(), LabError> {
    let name = &subject.name;
    if let Some(nginx) = &subject.nginx {
        check.unless(
            subject.protocol.is_none_or(|only| only == Protocol::Http),
            format!("subject `{name}` is nginx and is to speak another protocol than HTTP"),
            "no protocol, or \"http\"",
        )?;
        for directive in &nginx.directives {
            let ends = directive.trim_end().ends_with([';', '}']);
            check.unless(ends, format!("directive `{directive}`"), "a semicolon at its end")?;
        }
        return Ok(());
    }
    let listens = |word: &String| word.contains("{addr}") || word.contains("{port}");
    check.unless(
        subject.command_template(Protocol::Tcp).iter().any(listens),
        format!("the command of `{name}` has no {{addr}}"),
        "{addr}, or {ip} and {port}, where the listen address goes",
    )
}

/// Whether a name can be used in file names, tables and HTML without surprises.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=40).contains(&name.chars().count()) && name.chars().all(plain) && !name.starts_with('.')
}
