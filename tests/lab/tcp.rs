//! TCP experiments from one end to the other: our own server, load generator and lab together.

use crate::support::Measured;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use twinring_lab::{Experiment, Subject};

/// All runs of one short pair of everything.
fn runs(arguments: &[&str]) -> Vec<Value> {
    Measured::take(arguments, "0.5").runs
}

#[test]
fn a_rate_is_a_schedule_and_its_latency_counts_from_there() {
    let runs = runs(&["open-loop", "--rates", "0,2000", "--connections", "10"]);
    for engine in ["epoll", "io_uring"] {
        let of = |rate: Option<u64>| {
            let is_it = |run: &&Value| {
                run["subject"] == engine && run["cell"]["rate_per_s"].as_u64() == rate
            };
            &runs.iter().find(is_it).expect("a run of each cell")["load"]
        };
        assert_eq!(of(Some(2000))["settings"]["rate_per_s"], 2000);
        assert_eq!(of(Some(2000))["latency_from"], "intended");
        assert_eq!(of(None)["settings"]["mode"], "closed");
        assert_eq!(of(None)["latency_from"], "send");
    }
}

#[test]
fn a_share_of_what_can_be_served_is_one_rate_for_everybody() {
    let runs = runs(&["quick", "--protocol", "tcp", "--load-percent", "20,0", "--sizes", "128"]);
    let cell = |percent: Option<u64>| {
        let is_it = move |run: &&Value| run["cell"]["load_percent"].as_u64() == percent;
        runs.iter().filter(is_it).collect::<Vec<_>>()
    };
    let (paced, saturated) = (cell(Some(20)), cell(None));
    assert!(paced.len() >= 2 && saturated.len() >= 2, "{runs:?}");
    let rate = paced[0]["rate_per_s"].as_u64().expect("a rate was found");
    assert!(rate > 0 && paced.iter().all(|run| run["rate_per_s"] == rate));
    for run in paced {
        assert_eq!(run["load"]["settings"]["rate_per_s"], rate);
    }
    for run in saturated {
        assert_eq!(
            (&run["load"]["settings"]["mode"], run.get("rate_per_s")),
            (&"closed".into(), None)
        );
    }
}

#[test]
fn workers_have_a_cpu_each_and_all_of_them_count() {
    let mine = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|it| mine.is_set(*it) == Ok(true)).collect();
    let [one, other, ..] = cpus[..] else {
        println!("SKIPPED: this process has a single CPU");
        return;
    };
    // Load generator and server share them here, so that two CPUs are enough.
    let both = format!("{one},{other}");
    for net in ["lo", "auto"] {
        let arguments = ["scaling", "--protocol", "tcp", "--workers", "1,2", "--net", net];
        let cpus = ["--server-cpu", &both, "--client-cpu", &both, "--rates", "2000"];
        let runs = runs(&[&arguments[..], &cpus].concat());
        for run in &runs {
            let workers = run["cell"]["workers"].as_u64().unwrap_or(1);
            let (command, busy) = (&run["server_command"], &run["cpu"]["server_cpu"]);
            let command: Vec<&str> =
                command.as_array().unwrap().iter().flat_map(Value::as_str).collect();
            let of_option = |option| command.iter().skip_while(|it| **it != option).nth(1).unwrap();
            let (expected, list) = match workers {
                1 => (Value::from(one), one.to_string()),
                _ => (Value::from(vec![one, other]), both.clone()),
            };
            assert_eq!(
                (*of_option("--workers"), *of_option("--pin")),
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
    // With one CPU for the server there is nothing to compare with, and that is said.
    let one = one.to_string();
    let arguments = ["scaling", "--protocol", "tcp", "--net", "lo", "--server-cpu", &one];
    let measured = Measured::take(&arguments, "0.2");
    assert!(
        measured.said.contains("every cell with 2, 4, 8, 16 workers is left out"),
        "{}",
        measured.said
    );
    assert!(measured.runs.iter().all(|run| run["cell"].get("workers").is_none()));
    let refused = crate::support::lab(&["run", "scaling", "--net", "napi"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("several workers on napi"));
}

#[test]
fn connections_come_and_go() {
    let runs = runs(&["churn", "--churn", "1,10", "--connections", "10"]);
    let come_and_go = |runs: &Vec<Value>| {
        [1, 10].iter().all(|churn| {
            let mut of_cell = runs.iter().filter(|run| run["cell"]["churn"] == *churn);
            of_cell.any(|run| {
                run["load"]["settings"]["churn"] == *churn
                    && run["load"]["connections"]["reconnects"].as_u64() > Some(0)
            })
        })
    };
    assert!(come_and_go(&runs), "{runs:?}");
}

/// The key of a feature in the ready line, and its value there.
fn as_told(key: &str, value: &str) -> (String, Value) {
    let told = match (key, value) {
        ("trigger", value) => return ("edge_triggered".to_owned(), Value::from(value == "edge")),
        ("split", value) => Value::from(value),
        (_, "on") => Value::from(true),
        (_, "off") => Value::from(false),
        (_, value) => value.parse::<u64>().map_or(Value::from(value), Value::from),
    };
    (key.to_owned(), told)
}

/// The features in the ready line of a subject, started as the lab would.
fn features_of(subject: &Subject) -> Value {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpu = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap()).unwrap().to_string();
    let cell = r#"{"net":"lo","connections":1,"message_bytes":1}"#;
    let mut words = subject.command_template(&serde_json::from_str(cell).unwrap());
    for (name, value) in [
        ("{twinring}", env!("CARGO_BIN_EXE_twinring")),
        ("{addr}", "127.0.0.1:0"),
        ("{server_cpus}", &cpu),
        ("{workers}", "1"),
    ] {
        words.iter_mut().for_each(|word| *word = word.replace(name, value));
    }
    let mut command = Command::new(&words[0]);
    let mut server = command.args(&words[1..]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let read = BufReader::new(server.stdout.take().unwrap()).read_line(&mut line);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(read.is_ok() && !line.is_empty(), "{} said nothing: {read:?}", subject.name);
    serde_json::from_str::<Value>(&line).unwrap()["features"].take()
}

#[test]
fn whatever_an_ablation_changes_is_really_changed() {
    let experiment = Experiment::find("ablation").unwrap();
    let mut changed = 0;
    for subject in &experiment.subjects {
        let Some(change) = &subject.features else { continue };
        let features = features_of(subject);
        for feature in change.split(',') {
            let (key, value) = feature.split_once('=').unwrap();
            let (key, value) = as_told(key, value);
            assert_eq!(features[&key], value, "{}: {features}", subject.name);
            changed += 1;
        }
    }
    println!("{changed} changes of {} subjects were taken", experiment.subjects.len());
}
