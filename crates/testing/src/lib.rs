//! A test harness for suites whose tests may need more than a kernel and an ordinary user.
//!
//! A suite is a program with `harness = false` whose `main` lists its tests; a function that is not listed is dead
//! code, which the lints deny. A test says what it needs where it needs it, with [`needs_root`], [`needs_program`]
//! and so on. Where the machine does not have it, the test ends there and counts as ignored, with the reason.
//!
//! `TWINRING_TESTS` changes that:
//!
//! | value | a test that lacks something |
//! |---|---|
//! | unset | is ignored |
//! | `note:FILE` | is ignored, and added to the file as a line `SUITE<TAB>TEST` |
//! | `complete` | fails |
//! | `complete:FILE` | fails; only the tests in the file run |
//!
//! The last two together run each test once: first as an ordinary user, then as root those that were left out.

use futures_channel::oneshot;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::Display;
use std::future::poll_fn;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::process::{Command, ExitCode, Output};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

/// The variable that changes what happens to tests that lack something.
const VARIABLE: &str = "TWINRING_TESTS";

/// Descriptors that the tests of a suite which run at once may use each.
const DESCRIPTORS_EACH: u64 = 500;

/// A test of a list made by [`tests!`], [`engine_tests!`] or [`long_tests!`].
#[derive(Clone, Copy)]
pub struct Test {
    /// Begins with the name of the crate.
    pub name: &'static str,
    /// What it does.
    pub body: Body,
    /// Runs only with `--include-ignored`.
    pub long: bool,
}

/// What a test does.
#[derive(Clone, Copy)]
pub enum Body {
    /// Runs once.
    Once(fn()),
    /// Two tests: called with "io_uring" and with "epoll".
    EachEngine(fn(&'static str)),
}

impl Test {
    fn cases(self) -> Vec<Case> {
        let name = self.name.split_once("::").map_or(self.name, |(_crate, name)| name);
        match self.body {
            Body::Once(body) => vec![Case::new(name, self.long, body)],
            Body::EachEngine(body) => ["io_uring", "epoll"]
                .map(|engine| {
                    Case::new(&format!("{name}::{engine}"), self.long, move || {
                        if engine == "io_uring" {
                            needs_io_uring();
                        }
                        body(engine);
                    })
                })
                .into(),
        }
    }
}

/// Tests of this module: `tests![a, b; engines: c, d]` lists the functions `fn a()` and `fn b()`, which run once, and
/// `fn c(engine: &str)` and `fn d(engine: &str)`, which run on each engine.
#[macro_export]
macro_rules! tests {
    (@$body:ident $long:literal $($test:ident),*) => {
        &[$($crate::tests!(=$body $long $test)),*]
    };
    (=$body:ident $long:literal $test:ident) => {
        $crate::Test {
            name: concat!(module_path!(), "::", stringify!($test)),
            body: $crate::Body::$body($test),
            long: $long,
        }
    };
    ($($once:ident),*; engines: $($each:ident),* $(,)?) => {
        &[
            $($crate::tests!(=Once false $once),)*
            $($crate::tests!(=EachEngine false $each)),*
        ]
    };
    ($($test:ident),* $(,)?) => { $crate::tests!(@Once false $($test),*) };
}

/// Tests that run on each engine: the functions are `fn(engine: &str)`.
#[macro_export]
macro_rules! engine_tests {
    ($($test:ident),* $(,)?) => { $crate::tests!(@EachEngine false $($test),*) };
}

/// Tests that take minutes. They run only with `--include-ignored`.
#[macro_export]
macro_rules! long_tests {
    ($($test:ident),* $(,)?) => { $crate::tests!(@Once true $($test),*) };
}

/// One test as it runs, for suites that make their own list.
pub struct Case {
    name: String,
    long: bool,
    body: Box<dyn FnOnce() + Send>,
}

impl Case {
    /// A test with this name; a `long` one runs only with `--include-ignored`.
    pub fn new(name: &str, long: bool, body: impl FnOnce() + Send + 'static) -> Case {
        Case { name: name.to_owned(), long, body: Box::new(body) }
    }
}

/// Runs the tests of these lists. The whole of a suite's `main`.
pub fn run(lists: &[&[Test]]) -> ExitCode {
    run_cases(lists.iter().flat_map(|list| list.iter().copied()).flat_map(Test::cases).collect())
}

/// Runs these tests.
pub fn run_cases(mut cases: Vec<Case>) -> ExitCode {
    let descriptors = raise_descriptor_limit();
    let mut arguments = Arguments::from_args();
    let asked = std::env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    let most = usize::try_from(descriptors / DESCRIPTORS_EACH).unwrap_or(usize::MAX).max(1);
    arguments.test_threads =
        arguments.test_threads.or(asked).map(|threads: usize| threads.min(most));

    if let Mode::Only(listed) = &*MODE {
        cases.retain(|case| listed.contains(&(suite(), case.name.clone())));
    }
    keep_panics();
    let trials = cases.into_iter().map(trial).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let left_out = LEFT_OUT.lock().expect("no test panics with this lock");
    if !left_out.is_empty() {
        let parts = left_out.iter().map(|(what, count)| format!("{what} ({count})"));
        println!(
            "not tested for lack of: {}\nto test all, where the machine has it: {VARIABLE}=complete cargo test --test {}\n",
            parts.collect::<Vec<_>>().join(", "),
            suite()
        );
    }
    conclusion.exit_code()
}

fn trial(Case { name, long, body }: Case) -> Trial {
    let (noted, thread) = (name.clone(), name.clone());
    let run = move || {
        let since = Instant::now();
        CURRENT.set(noted.clone());
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(()) => Ok(Completion::Completed),
            Err(panic) => match panic.downcast::<Lack>() {
                Ok(lack) => lack.conclude(&noted),
                Err(panic) => Err(Failed::from(report(&*panic, &noted, since))),
            },
        }
    };
    let run_apart = move || {
        if is_rerun() {
            return run();
        }
        // By the name of its thread a test draws the same seeded faults, whichever run beside it.
        let thread = std::thread::Builder::new().name(thread).spawn(run).expect("a thread");
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    };
    Trial::ignorable_test(name, run_apart).with_ignored_flag(long)
}

/// The last panics of this process: when, in which test if that is known, and what the standard library would have
/// printed.
static PANICS: Mutex<VecDeque<(Instant, String, String)>> = Mutex::new(VecDeque::new());

/// How many panics a report shows.
const PANICS_MAX: usize = 20;

/// Keeps panics for the report of a test that fails. Many tests panic on purpose, on threads of their own.
fn keep_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
        if panics.len() == PANICS_MAX {
            panics.pop_front();
        }
        let test = CURRENT.try_with(|current| current.borrow().clone()).unwrap_or_default();
        panics.push_back((Instant::now(), test, panic.to_string()));
    }));
}

/// The panic that ended a test, after those of other threads since it began: one of them may be the cause.
fn report(panic: &(dyn Any + Send), name: &str, since: Instant) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    let meanwhile =
        panics.iter().filter(|(when, test, _)| *when >= since && (test.is_empty() || test == name));
    let mut lines: Vec<&str> = meanwhile.map(|(_, _, panic)| &**panic).collect();
    if let Some(text) = text.filter(|text| !lines.iter().any(|line| line.contains(text))) {
        lines.push(text);
    }
    lines.join("\n")
}

/// What tests lacked, and how many.
static LEFT_OUT: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

/// What a test needs and the machine lacks; the payload with which it ends.
struct Lack {
    what: String,
    why: String,
}

impl Lack {
    fn conclude(self, test: &str) -> Result<Completion, Failed> {
        let Lack { what, why } = self;
        match &*MODE {
            Mode::Complete | Mode::Only(_) => {
                return Err(format!("it needs {what}, and {VARIABLE} asks for all: {why}").into());
            }
            Mode::Note(file) => {
                let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
                let line = format!("{}\t{test}\n", suite());
                opened.and_then(|mut file| file.write_all(line.as_bytes())).map_err(|error| {
                    Failed::from(format!("cannot add to {}: {error}", file.display()))
                })?;
            }
            Mode::Ignore => {}
        }
        let mut left_out = LEFT_OUT.lock().expect("no test panics with this lock");
        *left_out.entry(what.clone()).or_insert(0) += 1;
        Ok(Completion::ignored_with(format!("needs {what}: {why}")))
    }
}

enum Mode {
    Ignore,
    Note(PathBuf),
    Complete,
    Only(HashSet<(String, String)>),
}

static MODE: LazyLock<Mode> = LazyLock::new(|| {
    let Ok(value) = std::env::var(VARIABLE) else { return Mode::Ignore };
    match value.split_once(':') {
        None if value == "complete" => Mode::Complete,
        Some(("note", file)) => Mode::Note(file.into()),
        Some(("complete", file)) => {
            let text = std::fs::read_to_string(file);
            let text = text.unwrap_or_else(|error| panic!("cannot read {file}: {error}"));
            let pair =
                |line: &str| line.split_once('\t').map(|(a, b)| (a.to_owned(), b.to_owned()));
            Mode::Only(text.lines().filter_map(pair).collect())
        }
        _ => panic!("{VARIABLE} is {value:?}; it may be note:FILE, complete or complete:FILE"),
    }
});

/// The name that cargo gives the suite: that of the program without the hash.
fn suite() -> String {
    let path = std::env::current_exe().expect("/proc is mounted");
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(&*name, |(name, _hash)| name).to_owned()
}

/// Raises the soft limit of descriptors to the hard one, which is returned.
pub fn raise_descriptor_limit() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Without rights to do so nothing changes, and a test that opens many says what it needs.
    let _unchanged = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Ends the test, because the machine lacks `what`; `why` says how that was found.
pub fn needs(what: impl Display, why: impl Display) -> ! {
    resume_unwind(Box::new(Lack { what: what.to_string(), why: why.to_string() }))
}

/// Ends the test unless this is root.
pub fn needs_root(what_for: &str) {
    if !rustix::process::geteuid().is_root() {
        needs("root", what_for);
    }
}

/// Ends the test unless a program of this name is in PATH.
pub fn needs_program(name: &str) {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&directories).any(|directory| directory.join(name).is_file()) {
        needs(name, "not in PATH");
    }
}

/// Ends the test unless the engine io_uring runs here.
pub fn needs_io_uring() {
    static REFUSAL: LazyLock<Option<String>> = LazyLock::new(|| {
        // The flags are those of Linux 6.1, which our engine needs.
        let mut builder = io_uring::IoUring::<io_uring::squeue::Entry>::builder();
        let ring = builder.setup_single_issuer().setup_defer_taskrun().build(8);
        ring.err().map(|error| error.to_string())
    });
    if let Some(refusal) = &*REFUSAL {
        needs("io_uring", refusal);
    }
}

/// Ends the test unless the loopback interface has an IPv6 address.
pub fn needs_ipv6() {
    if let Err(error) = std::net::TcpListener::bind("[::1]:0") {
        needs("IPv6", error);
    }
}

/// Ends the test unless a process may open so many descriptors.
pub fn needs_descriptors(count: u64) {
    let limit = raise_descriptor_limit();
    if limit < count {
        needs(format_args!("{count} descriptors"), format_args!("the limit is {limit}"));
    }
}

/// Ends the test unless the name `localhost` is known, which a minimal chroot without /etc/hosts does not know.
pub fn needs_localhost() {
    if let Err(error) = std::net::ToSocketAddrs::to_socket_addrs("localhost:0") {
        needs("the name localhost", error);
    }
}

/// Ends the test unless this process may use so many CPUs.
pub fn needs_cpus(count: usize) {
    let usable = std::thread::available_parallelism().map_or(1, |usable| usable.get());
    if usable < count {
        needs(format_args!("{count} CPUs"), format_args!("this process may use {usable}"));
    }
}

/// Runs the rest of a test as root: at once if this is root, and otherwise in a process of its own, in a user namespace
/// in which it is root. Ends the test where the kernel refuses that.
pub fn as_root_of_a_namespace(test: impl FnOnce()) {
    if rustix::process::geteuid().is_root() {
        return test();
    }
    static REFUSAL: LazyLock<Option<String>> =
        LazyLock::new(|| match namespace().arg("true").output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(format!("unshare: {error}")),
        });
    if let Some(refusal) = &*REFUSAL {
        needs("root or user namespaces", refusal);
    }
    let output = rerun(namespace()).expect("it was tried before");
    if let Some((_, why)) = String::from_utf8_lossy(&output.stdout).split_once("needs ") {
        needs(why.lines().next().unwrap_or_default(), "in a user namespace");
    }
    assert_passed(&output);
}

/// A command that is root of namespaces of its own.
fn namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--"]);
    command
}

/// Set in the process that [`rerun`] starts.
const RERUN: &str = "TWINRING_TEST_RERUN";

/// True in a process that [`rerun`] started.
pub fn is_rerun() -> bool {
    std::env::var_os(RERUN).is_some()
}

/// Runs this test in a process of its own, by a command that executes its arguments.
pub fn rerun(mut command: Command) -> std::io::Result<Output> {
    let name = CURRENT.with_borrow(String::clone);
    assert!(!name.is_empty(), "only the thread of a test may ask for that");
    command.arg(std::env::current_exe()?).args(["--exact", &name, "--include-ignored"]);
    // On the main thread, whose memory comes from one mapping.
    command.arg("--test-threads=1");
    command.env(RERUN, "1").env_remove(VARIABLE).output()
}

/// Fails unless the test that was [run again](rerun) passed.
pub fn assert_passed(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in a process of its own:\n{said}\n{complained}");
    assert!(said.contains("1 passed"), "the test did not run:\n{said}");
}

/// Polls `future` once; `None` if it was not ready. It is then dropped, pending.
pub async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// What a thread will return.
pub type Outcome<T> = Pin<Box<dyn Future<Output = T>>>;

/// Runs blocking code, usually a peer's, on a thread of its own. Awaiting the result exercises
/// wakes from other threads; a panic in there is passed on.
pub fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    let (running, over) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        // Dropped at the end, by a panic too, which wakes the other side.
        let _running = running;
        work()
    });
    Box::pin(async move {
        let _canceled = over.await;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

thread_local! {
    /// The test that this thread runs.
    static CURRENT: RefCell<String> = const { RefCell::new(String::new()) };
}
