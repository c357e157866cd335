use super::*;
use crate::machine::sha256;
use serde_json::{Value, json};

fn quick() -> Experiment {
    Experiment::find("quick").unwrap()
}

/// `quick` with some of its text replaced.
fn quick_with(from: &str, to: &str) -> Result<Experiment, LabError> {
    let text = BUILT_IN[0].1.replacen(from, to, 1);
    assert_ne!(text, BUILT_IN[0].1);
    Experiment::from_toml(&text, "mine.toml")
}

/// `quick` with a change.
fn changed(change: impl FnOnce(&mut Experiment)) -> Result<Experiment, LabError> {
    let mut quick = quick();
    change(&mut quick);
    quick.checked()
}

fn subjects(texts: &[&str]) -> Vec<Subject> {
    texts.iter().map(|text| Subject::parse(text).unwrap()).collect()
}

#[test]
fn the_built_in_experiments_are_valid_and_quick_has_six_cells() {
    for (name, _) in BUILT_IN {
        let experiment = Experiment::find(name).unwrap();
        assert_eq!(experiment.name, *name);
        assert!(experiment.pairs >= 8 && !experiment.about.is_empty());
        for published in &experiment.published {
            let known = |name: &str| experiment.subjects.iter().any(|it| it.name == name);
            let here = published.against.iter().flat_map(|against| &against.here).flatten();
            for subject in here.chain([&published.subject]).chain(&published.itself) {
                assert!(known(subject), "{name}: {subject}");
            }
        }
        if name.starts_with("published-") {
            assert!(!experiment.published.is_empty() && experiment.not_reproduced.len() >= 4);
        }
        // Once stored and read back it is still the same.
        let stored = serde_json::to_string(&experiment).unwrap();
        let read: Experiment = serde_json::from_str(&stored).unwrap();
        assert_eq!((read.check_stored(), read), (Ok(()), experiment));
    }
    let names: Vec<_> = quick().cells(&[NetKind::Rps]).iter().map(Cell::to_string).collect();
    let expected = [
        "TCP 128 B x 100 at 25 % on rps",
        "TCP 128 B x 100 on rps",
        "TCP 16 KB x 100 at 25 % on rps",
        "TCP 16 KB x 100 on rps",
        "UDP 172 B x 1000 at 50/s on rps",
        "HTTP 1 KB x 100 at 25 % on rps",
    ];
    assert_eq!(names, expected);
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Http] {
        assert_eq!(quick().subjects_of(protocol), [0, 1]);
    }
}

#[test]
fn what_makes_no_sense_is_named_with_its_line_and_what_is_expected() {
    for (from, to, expected) in [
        ("pairs = 8", "pairs = \"many\"", "invalid type"),
        ("pairs = 8", "pairs = 0", "1 to 1000 pairs"),
        ("window_s = 0.5", "window_s = -1.0", "0.05 to 300 seconds"),
        ("message_bytes = [128, 16384]", "message_bytes = [0]", "numbers from 1 to"),
        ("message_bytes = [128, 16384]", "message_bytes = []", "numbers from 1 to"),
        ("message_bytes = [128, 16384]", "message_bytes = [-1]", "a whole number"),
        // Either cell had the runs of the other, and the bundle failed verification.
        ("connections = [100]", "connections = [100, 100]", "64 different numbers"),
        ("connections = [100]", "conections = [100]", "connections"),
        ("load_percent = [25, 0]", "load_percent = [25]\nrate_per_s = [9000]", "one of them"),
        ("load_percent = [25, 0]", "load_percent = [101]", "numbers from 0 to 100"),
        ("load_percent = [25, 0]", "load = [\"program\"]", "{addr}"),
        ("load_percent = [25, 0]", "load = [\"p\", \"{addr}\", \"{engine}\"]", "under_test"),
        (
            "file_bytes = [1024]",
            "file_bytes = [1024]\nkeepalive = [false]\ndepth = [2]",
            "keepalive",
        ),
        ("file_bytes = [1024]", "file_bytes = [60_000_000]\nfiles = [1000]", "at most 4 GiB"),
        ("name = \"epoll\"", "name = \"a b\"", "1-40 letters"),
        ("engine = \"epoll\"", "engine = \"kqueue\"", "io_uring or epoll"),
        ("engine = \"epoll\"", "engine = \"epoll\"\nagainst = [\"apache\"]", "another subject"),
        ("engine = \"epoll\"", "peer = \"tokyo\"", "one of tokio, monoio"),
        ("engine = \"epoll\"", "peer = \"nginx\"\nprotocol = \"tcp\"", "a peer speaks one"),
        ("engine = \"epoll\"", "engine = \"epoll\"\npeer = \"tokio\"", "one of engine"),
        ("engine = \"epoll\"", "engine = \"epoll\"\nload_arguments = [\"x\"]", "under_test"),
        ("engine = \"epoll\"", "command = [\"cat\"]", "{addr}"),
        ("net = \"auto\"", "net = \"auto\"\npin = { sever_cpu = 3 }", "server_cpu"),
    ] {
        let error = quick_with(from, to).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let said = error.to_string();
        assert!(said.starts_with("mine.toml:"), "{to}: {said}");
        assert!(said.contains(expected), "{to}: {said}");
    }
    let line = BUILT_IN[0].1.lines().position(|line| line.contains("pairs = 8")).unwrap() + 1;
    let said = quick_with("pairs = 8", "pairs = 0").unwrap_err().to_string();
    assert!(said.starts_with(&format!("mine.toml:{line}: ")), "{said}");
}

#[test]
fn options_that_make_no_sense_are_refused_with_exit_code_2() {
    for error in [
        changed(|it| it.set_pace(None, Some(f64::NAN))).unwrap_err(),
        changed(|it| it.set_axis("connections", &[]).unwrap()).unwrap_err(),
        // A file of 1 KB took all memory.
        changed(|it| {
            let values: Vec<u32> = (1..=64).collect();
            ["connections", "bytes", "depth", "rate_per_s", "churn"]
                .into_iter()
                .for_each(|axis| it.set_axis(axis, &values).unwrap());
        })
        .unwrap_err(),
        quick().set_axis("topics", &[1]).unwrap_err(),
        changed(|it| {
            it.set_subjects(subjects(&["a=cat {addr}"]));
            it.keep_protocols(|protocol| protocol == Protocol::Udp);
        })
        .unwrap_err(),
    ] {
        assert_eq!(error.exit_code(), 2, "{error}");
    }
    let error = Experiment::find("quikc").unwrap_err();
    assert!(
        error.exit_code() == 2 && error.to_string().contains("did you mean `quick`"),
        "{error}"
    );
}

#[test]
fn options_replace_axes_windows_and_subjects() {
    let slow = changed(|it| it.set_pace(None, Some(0.7))).unwrap();
    assert!(Protocol::ALL.iter().all(|protocol| slow.pace_s(*protocol).1 == 0.7));
    // Of rate and share of the load, the one that is given replaces the other.
    let by_rate = changed(|it| it.set_axis("rate_per_s", &[500]).unwrap()).unwrap();
    let points: Vec<Point> = by_rate.cells(&[NetKind::Lo]).iter().map(|it| it.point).collect();
    assert!(points.iter().all(|it| it.load_percent() == 0));
    assert!(points.iter().filter(|it| it.rate_per_s() == 500).count() == 3);
    // A command speaks the first protocol, nginx HTTP; what not all speak is left out.
    for (texts, kept) in [
        (["ours=io_uring", "theirs=serve {addr}"], vec![Protocol::Tcp]),
        (["ours=epoll", "nginx"], vec![Protocol::Http]),
        (["io_uring", "epoll"], Protocol::ALL.to_vec()),
    ] {
        let left = changed(|it| it.set_subjects(subjects(&texts))).unwrap();
        assert_eq!(left.protocols().collect::<Vec<_>>(), kept, "{texts:?}");
    }
    for (text, kinds, again) in [
        ("auto", &[NetKind::Rps][..], "auto"),
        ("lo,rps", &[NetKind::Rps, NetKind::Lo], "rps,lo"),
        ("lo, rps,napi", &[NetKind::Rps, NetKind::Lo, NetKind::Napi], "all"),
    ] {
        let choice: NetChoice = text.parse().unwrap();
        assert_eq!((choice.kinds(), &*String::from(choice.clone())), (kinds, again));
    }
    for wrong in ["eth0", "", "lo,", "auto,lo"] {
        assert!(wrong.parse::<NetChoice>().unwrap_err().contains("lo,rps"), "{wrong}");
    }
}

#[test]
fn load_generators_elsewhere_get_equal_parts_or_are_refused() {
    let via = |generators, only| {
        changed(|it| {
            it.via = Some(Via {
                command: vec!["srun".to_owned()],
                generators,
                address: "10.0.0.1".parse().unwrap(),
                program: "twinring".to_owned(),
                lead_s: 3.0,
            });
            it.keep_protocols(|protocol| protocol == only);
        })
    };
    assert_eq!(via(20, Protocol::Tcp).unwrap().networks(), [NetKind::Hosts]);
    for (wrong, expected) in [
        (via(16, Protocol::Tcp), "100 connections cannot be divided among 16"),
        (via(0, Protocol::Tcp), "1 to 1024"),
        // Their CPU is not measured.
        (via(10, Protocol::Udp), "under_test"),
    ] {
        let error = wrong.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// They were compared with the tables as printed, row by row: no digit may change since.
#[test]
fn the_published_tables_are_as_they_were_printed() {
    let digest = |name: &str| {
        let published = Experiment::find(&format!("published-{name}")).unwrap().published;
        let figures = published.iter().map(|it| json!([it.program, it.measured, it.datagrams]));
        sha256(Value::from_iter(figures).to_string().as_bytes())
    };
    for (name, expected) in [
        ("frevib", "b7c9d2f103fdd939"),
        ("joakimthun", "ac497c206edf2910"),
        ("go-uring", "717e15a5a18d97cb"),
        ("nginx", "01c62dc8d8ee1c2e"),
        ("asyncudp", "ec415c47dafd4a6f"),
    ] {
        assert_eq!(digest(name)[..16], *expected, "{name}");
    }
}

#[test]
fn the_schedule_experiment_asks_for_gathering_and_interface_on_three_networks() {
    let schedule = Experiment::find("schedule").unwrap();
    let name = |position: usize| schedule.subjects[position].name.as_str();
    let contests = schedule.contests(Protocol::Tcp);
    let contests: Vec<_> = contests.into_iter().map(|(a, b)| (name(a), name(b))).collect();
    let wanted = [("epoll-at-once", "epoll"), ("epoll-at-once", "io_uring"), ("epoll", "io_uring")];
    assert_eq!(contests, wanted);
    // Twins are compared with each other only.
    let aa = Experiment::find("aa").unwrap();
    assert_eq!(aa.contests(Protocol::Tcp), [(0, 1), (2, 3)]);
}
