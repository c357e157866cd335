use super::*;

fn quick() -> Experiment {
    Experiment::find("quick").unwrap()
}

#[test]
fn the_built_in_experiments_are_valid_and_quick_has_three_cells() {
    for (name, _) in BUILT_IN {
        let experiment = Experiment::find(name).unwrap();
        assert_eq!(experiment.name, *name);
        assert!(experiment.pairs >= MIN_PAIRS && !experiment.about.is_empty());
        for published in &experiment.published {
            let known = experiment.subjects.iter().any(|it| it.name == published.subject);
            assert!(known, "{name}: {}", published.subject);
        }
    }
    let names: Vec<_> = quick().cells(&[NetKind::Veth]).iter().map(Cell::to_string).collect();
    let expected =
        ["100 x 128 B on veth", "100 x 16 KB on veth", "1000 streams x 50/s x 172 B on veth"];
    assert_eq!(names, expected);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        assert_eq!(quick().subjects_of(protocol), [0, 1]);
    }
    assert_eq!(quick().subjects[0].name, "epoll");
}

#[test]
fn an_error_names_file_line_and_expectation() {
    let text = BUILT_IN[0].1.replace("pairs = 8", "pairs = \"many\"");
    let error = Experiment::from_toml(&text, "mine.toml").unwrap_err().to_string();
    assert!(error.starts_with("mine.toml:8: "), "{error}");
    let text = BUILT_IN[0].1.replace("pairs = 8", "pears = 8");
    let error = Experiment::from_toml(&text, "mine.toml").unwrap_err().to_string();
    assert!(error.contains("mine.toml:8") && error.contains("pears"), "{error}");
}

#[test]
fn nonsense_is_refused_with_exit_code_2() {
    let none = Overrides::default();
    let command = |text: &str| vec![Subject::parse(text).unwrap()];
    for overrides in [
        Overrides { pairs: Some(0), ..none.clone() },
        Overrides { window_s: Some(f64::NAN), ..none.clone() },
        Overrides { warmup_s: Some(-1.0), ..none.clone() },
        Overrides { connections: Some(vec![]), ..none.clone() },
        Overrides { message_bytes: Some(vec![0]), ..none.clone() },
        Overrides { streams: Some(vec![0]), ..none.clone() },
        Overrides { protocol: Some(Protocol::Udp), connections: Some(vec![1]), ..none.clone() },
        Overrides { subjects: command("a=cat"), ..none.clone() },
        Overrides { subjects: command("../a=cat {addr}"), ..none.clone() },
        Overrides { protocol: Some(Protocol::Udp), subjects: command("a=cat {addr}"), ..none },
    ] {
        let error = quick().with(&overrides).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{overrides:?}: {error}");
    }
    assert_eq!(Experiment::find("nothing-like-it").unwrap_err().exit_code(), 2);
}

#[test]
fn a_load_may_follow_the_subject_only_if_both_sides_are_under_test() {
    let refused = |from: &str, to: &str| {
        let text = BUILT_IN[0].1.replacen(from, to, 1);
        assert_ne!(text, BUILT_IN[0].1);
        Experiment::from_toml(&text, "mine.toml").unwrap_err().to_string()
    };
    assert!(refused("under_test = \"both\"", "").contains("depends on the subject"));
    let tcp = refused("\"--engine\", \"io_uring\"", "\"--engine\", \"{engine}\"");
    assert!(tcp.contains("[tcp]"), "{tcp}");
}

#[test]
fn a_command_speaks_the_first_protocol_and_leaves_the_others_out() {
    let both = ["ours=io_uring", "theirs=serve {addr}"].map(|it| Subject::parse(it).unwrap());
    let compare = |name: &str| {
        let overrides = Overrides { subjects: both.to_vec(), ..Overrides::default() };
        Experiment::find(name).unwrap().with(&overrides).unwrap()
    };
    let tcp = compare("quick");
    assert_eq!((tcp.protocols().collect::<Vec<_>>(), tcp.udp), (vec![Protocol::Tcp], None));
    let udp = compare("udp-streams");
    assert_eq!(udp.subjects_of(Protocol::Udp), [0, 1]);
    let engines = ["a=io_uring", "b=epoll"].map(|it| Subject::parse(it).unwrap()).to_vec();
    let overrides = Overrides { subjects: engines, ..Overrides::default() };
    assert_eq!(quick().with(&overrides).unwrap().protocols().count(), 2);
}

#[test]
fn one_window_for_all_can_be_asked_for() {
    let overrides = Overrides { window_s: Some(0.5), ..Overrides::default() };
    let quick = quick().with(&overrides).unwrap();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        assert_eq!(quick.pace_s(protocol).1, 0.5);
    }
}

#[test]
fn experiments_of_the_first_version_are_read() {
    let old = "schema = \"twinring.lab.experiment/1\"\nname = \"old\"\npairs = 8\nwarmup_s = 0.1\n\
               window_s = 1.0\n[axes]\nconnections = [1, 2]\nmessage_bytes = [128]\n[load]\n\
               command = [\"load\", \"{addr}\"]\n[[subjects]]\nname = \"epoll\"\nengine = \"epoll\"\n";
    let read = Experiment::from_toml(old, "old.toml").unwrap();
    assert_eq!(read.cells(&[NetKind::Veth]).len(), 2);
    assert_eq!(read.schema, EXPERIMENT_SCHEMA);
    let wrong = old.replace("window_s", "windows");
    let error = Experiment::from_toml(&wrong, "old.toml").unwrap_err().to_string();
    assert!(error.starts_with("old.toml:5"), "{error}");
}
