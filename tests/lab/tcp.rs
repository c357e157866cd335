//! TCP experiments from one end to the other: our own server, load generator and lab together.

use crate::measured::Measured;
use crate::support::*;
use nix::sched::{CpuSet, sched_getaffinity};

pub(crate) const TESTS: &[Test] = tests![
    a_share_of_what_can_be_served_is_one_rate_for_everybody,
    workers_have_a_cpu_each_and_all_of_them_count,
    connections_come_and_go,
    features_of_a_subject_are_really_changed,
    a_command_may_start_several_load_generators_and_each_has_a_result
];

/// All runs of one short pair of everything.
fn runs(arguments: &[&str]) -> Vec<Value> {
    Measured::take(arguments, "0.5").runs
}

const SMALL: [&str; 6] =
    ["quick", "--protocol", "tcp", "--set", "connections=10", "--set=message_bytes=128"];

fn a_share_of_what_can_be_served_is_one_rate_for_everybody() {
    testing::needs_io_uring();
    let runs = runs(&[&SMALL[..], &["--set", "load_percent=20,0"]].concat());
    let (calibration, runs): (Vec<_>, Vec<_>) =
        runs.into_iter().partition(|run| run["calibration"] == true);
    // Three windows of each subject, taken in turn.
    let subjects: Vec<&str> = calibration.iter().flat_map(|it| it["subject"].as_str()).collect();
    assert_eq!(subjects.len(), 6, "{subjects:?}");
    assert!(subjects.chunks(2).all(|turn| turn[0] != turn[1]), "{subjects:?}");
    let cell = |percent: Option<u64>| {
        let is_it = move |run: &&Value| run["cell"]["load_percent"].as_u64() == percent;
        runs.iter().filter(is_it).collect::<Vec<_>>()
    };
    let (paced, saturated) = (cell(Some(20)), cell(None));
    assert!(paced.len() >= 2 && saturated.len() >= 2, "{runs:?}");
    let rate = &paced[0]["rate_per_s"];
    assert!(rate.as_u64() > Some(0) && paced.iter().all(|run| run["rate_per_s"] == *rate));
    for run in paced {
        let load = &run["loads"][0];
        assert_eq!(load["settings"]["rate_per_s"], *rate);
        assert_eq!(load["latency_from"], "intended");
    }
    for run in saturated {
        let load = &run["loads"][0];
        assert!(load["settings"]["mode"] == "closed" && load["latency_from"] == "send", "{load}");
        assert!(run.get("rate_per_s").is_none());
    }
}

fn workers_have_a_cpu_each_and_all_of_them_count() {
    testing::needs_io_uring();
    testing::needs_cpus(2);
    let mine = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|it| mine.is_set(*it) == Ok(true)).collect();
    let [one, other] = [cpus[0], cpus[1]];
    // Load generator and server share them here, so that two CPUs are enough.
    let both = format!("{one},{other}");
    let scaling = ["scaling", "--protocol", "tcp", "--set", "rate_per_s=2000"];
    for net in ["lo", "auto"] {
        let arguments = ["--set", "workers=1,2", "--net", net];
        let cpus = ["--server-cpu", &both, "--client-cpu", &both];
        let runs = runs(&[&scaling[..], &arguments, &cpus].concat());
        for run in &runs {
            let workers = run["cell"]["workers"].as_u64().unwrap_or(1);
            let (command, busy) = (&run["server_command"], &run["cpu"]["server_cpu"]);
            let command: Vec<&str> =
                command.as_array().unwrap().iter().flat_map(Value::as_str).collect();
            let of_option =
                |option| *command.iter().skip_while(|it| **it != option).nth(1).unwrap();
            let (expected, list) = match workers {
                1 => (Value::from(one), one.to_string()),
                _ => (Value::from(vec![one, other]), both.clone()),
            };
            assert_eq!(
                (of_option("--workers"), of_option("--pin")),
                (&*workers.to_string(), &*list)
            );
            assert_eq!(busy["cpu"], expected);
            let each = busy["busy_each_s"].as_array().map_or(1, Vec::len) as u64;
            assert_eq!(each, workers, "{run}");
            let busy_s = busy["busy_s"].as_f64().unwrap();
            assert!(busy_s <= workers as f64 * run["cpu"]["window_s"].as_f64().unwrap(), "{run}");
        }
        let of = |workers| runs.iter().filter(move |it| it["cell"]["workers"].as_u64() == workers);
        assert!(of(None).count() >= 2 && of(Some(2)).count() >= 2, "{runs:?}");
    }
}

fn connections_come_and_go() {
    let runs = runs(&["churn", "--set", "churn=1,10", "--set", "connections=10"]);
    for churn in [1, 10] {
        let mut of_cell = runs.iter().filter(|run| run["cell"]["churn"] == churn);
        let replaced = of_cell.any(|run| {
            let load = &run["loads"][0];
            load["settings"]["churn"] == churn
                && load["connections"]["reconnects"].as_u64() > Some(0)
        });
        assert!(replaced, "{runs:?}");
    }
}

fn features_of_a_subject_are_really_changed() {
    testing::needs_io_uring();
    let axes = ["--set", "load_percent=0"];
    let subjects = ["--subject", "io_uring", "--subject", "single=io_uring:multishot=off"];
    for run in runs(&[&SMALL[..], &axes, &subjects].concat()) {
        let multishot = run["subject"] == "io_uring";
        assert_eq!(run["ready"]["features"]["multishot"], multishot, "{run}");
    }
}

fn a_command_may_start_several_load_generators_and_each_has_a_result() {
    // The commands that it starts take the usual engine for load.
    testing::needs_io_uring();
    // It stands for ssh or srun: it starts as many load generators on this machine as it is told.
    let via = "sh -c 'for i in $(seq 2); do \"$@\" & done; wait' sh";
    let run = |announced: &str| {
        let axes = ["--set", "load_percent=0", "--subject", "epoll", "--subject", "again=epoll"];
        let places = ["--via", via, "--generators", announced, "--address", "127.0.0.1"];
        let program = ["--via-program", TWINRING, "--lead", "1"];
        let arguments = [&SMALL[..], &axes, &places, &program].concat();
        match announced {
            "2" => Measured::take(&arguments, "0.5").runs,
            _ => Measured::once(&arguments, "0.5").runs,
        }
    };
    for run in run("2") {
        let loads = run["loads"].as_array().unwrap();
        assert_eq!((loads.len(), &run["failures"]), (2, &serde_json::json!([])), "{run}");
        assert!(loads.iter().all(|load| load["settings"]["connections"] == 5), "{run}");
    }
    for run in run("5") {
        let failures = run["failures"].to_string();
        assert!(failures.contains("2 results of 5 load generators"), "{run}");
    }
}
