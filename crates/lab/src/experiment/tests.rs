use super::*;
use crate::cpus::CpuList;
use crate::workload::Axis;

fn quick() -> Experiment {
    Experiment::find("quick").unwrap()
}

#[test]
fn the_built_in_experiments_are_valid_and_quick_has_six_cells() {
    for (name, _) in BUILT_IN {
        let experiment = Experiment::find(name).unwrap();
        assert_eq!(experiment.name, *name);
        assert!(experiment.pairs >= crate::statistics::MIN_PAIRS && !experiment.about.is_empty());
        for published in &experiment.published {
            let known = |name: &str| experiment.subjects.iter().any(|it| it.name == name);
            let here = published.against().into_iter().flat_map(|against| &against.here).flatten();
            for subject in published.subjects().chain(here.map(String::as_str)) {
                assert!(known(subject), "{name}: {subject}");
            }
        }
    }
    let names: Vec<_> = quick().cells(&[NetKind::Rps]).iter().map(Cell::to_string).collect();
    let expected = [
        "100 x 128 B at 25 % load on rps",
        "100 x 128 B on rps",
        "100 x 16 KB at 25 % load on rps",
        "100 x 16 KB on rps",
        "1000 streams x 50/s x 172 B on rps",
        "100 connections x 1 KB at 25 % load over HTTP on rps",
    ];
    assert_eq!(names, expected);
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Http] {
        assert_eq!(quick().subjects_of(protocol), [0, 1]);
    }
    assert_eq!(quick().subjects[0].name, "epoll");
}

#[test]
fn an_error_names_file_line_and_expectation() {
    let text = BUILT_IN[0].1.replace("pairs = 8", "pairs = \"many\"");
    let error = Experiment::from_toml(&text, "mine.toml").unwrap_err().to_string();
    assert!(error.starts_with("mine.toml:9: "), "{error}");
    let text = BUILT_IN[0].1.replace("pairs = 8", "pears = 8");
    let error = Experiment::from_toml(&text, "mine.toml").unwrap_err().to_string();
    assert!(error.contains("mine.toml:9") && error.contains("pears"), "{error}");
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
    assert!(tcp.contains("tcp.load"), "{tcp}");
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
    assert_eq!(quick().with(&overrides).unwrap().protocols().count(), 3);
}

#[test]
fn one_window_for_all_can_be_asked_for() {
    let overrides = Overrides { window_s: Some(0.5), ..Overrides::default() };
    let quick = quick().with(&overrides).unwrap();
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Http] {
        assert_eq!(quick.pace_s(protocol).1, 0.5);
    }
}

#[test]
fn http_cells_are_written_for_people_and_read_back() {
    let names = |name: &str| -> Vec<String> {
        let cells = Experiment::find(name).unwrap().cells(&[NetKind::Lo]);
        for cell in &cells {
            let json = serde_json::to_string(cell).unwrap();
            assert_eq!(serde_json::from_str::<Cell>(&json).unwrap(), *cell);
        }
        cells.iter().map(Cell::to_string).collect()
    };
    assert_eq!(names("http-tls")[0], "100 connections x 1 KB over HTTPS on lo");
    let http2 = "50 connections x 1 KB x depth 8 at 25 % load over HTTP/2 with TLS on lo";
    assert_eq!(names("http2")[0], http2);
    let churn = "10 connections x 512 B over HTTP, a connection per request on lo";
    assert_eq!(names("http-churn")[0], churn);
    let many = "100 connections x 16 KB of 10000 files over HTTP on lo";
    assert_eq!(names("http-many"), [many]);
    assert_eq!(names("http-map")[1], "1 connection x 512 B over HTTP on lo");
    assert_eq!((names("published-nginx").len(), names("http-map").len()), (8, 48));
}

#[test]
fn nonsense_about_http_is_refused() {
    let (_, text) = BUILT_IN.iter().find(|(name, _)| *name == "http-churn").unwrap();
    let refused = |from: &str, to: &str| {
        let text = text.replacen(from, to, 1);
        Experiment::from_toml(&text, "mine.toml").unwrap_err().to_string()
    };
    for (from, to, said) in [
        ("file_bytes = [512, 10_240]", "file_bytes = [0]", "file_bytes = [0]"),
        ("keepalive = [false]", "keepalive = []", "keepalive = []"),
        ("keepalive = [false]", "keepalive = [false]\ndepth = [2]", "depth = [2]"),
        ("keepalive = [false]", "keepalive = [false]\nhttp2 = [true]", "http2 = [true]"),
        ("keepalive = [false]", "http2 = [true, true]", "http2 = [true, true]"),
        ("keepalive = [false]", "files = [1000000]\nfile_bytess = [1]", "file_bytess"),
        ("[512, 10_240]", "[60_000_000]\nfiles = [1000]", "60000000000 bytes"),
        ("\"{urls}\", ", "", "no {urls}"),
        ("\"--engine\", \"io_uring\"", "\"--engine\", \"{engine}\"", "http.load has {engine}"),
        ("against = [\"nginx\"]", "against = [\"apache\"]", "`apache`"),
        ("against = [\"nginx\"]", "against = [\"io_uring\"]", "`io_uring`"),
        ("sendfile = true }", "sendfile = true, directives = [\"gzip on\"] }", "`gzip on`"),
        ("sendfile = true }", "sendfile = true }\nprotocol = \"tcp\"", "another protocol"),
        ("sendfile = true }", "send_file = true }", "send_file"),
        ("nginx = {", "engine = \"epoll\"\nnginx = {", "engine Some"),
    ] {
        let error = refused(from, to);
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn a_second_load_generator_doubles_the_cells() {
    let both = Experiment::find("second-opinion").unwrap();
    let points = both.grid(Protocol::Tcp).unwrap().points();
    let generators: Vec<_> = points.iter().map(|it| it.on(Axis::Generator)).collect();
    assert_eq!(generators, [0, 1].repeat(4).into_iter().map(Some).collect::<Vec<_>>());
    assert_eq!(points[1].load().to_string(), "100 x 128 B, second generator");
    let [first, second] = &both.load_templates(Protocol::Tcp, &both.subjects[0])[..] else {
        panic!("two commands");
    };
    assert_eq!((&*first[0], &*second[0]), ("{twinring}", "{plain-load}"));
    let http = both.load_templates(Protocol::Http, &both.subjects[0]);
    assert_eq!(http.iter().map(|it| &*it[0]).collect::<Vec<_>>(), ["{twinring}", "{h2load}"]);
    // It sends the same requests to both servers.
    let text = built_in("second-opinion").unwrap();
    let follows = text.replacen("{plain-load}\", ", "{plain-load}\", \"--engine={engine}\", ", 1);
    let error = Experiment::from_toml(&follows, "mine.toml").unwrap_err().to_string();
    assert!(error.contains("tcp.second_load has {engine}"), "{error}");
    assert_eq!(quick().load_templates(Protocol::Tcp, &quick().subjects[0]).len(), 1);
}

#[test]
fn nginx_speaks_http_only() {
    let overrides = Overrides {
        subjects: ["ours=epoll", "theirs=nginx"].map(|it| Subject::parse(it).unwrap()).to_vec(),
        ..Overrides::default()
    };
    let left = quick().with(&overrides).unwrap();
    assert_eq!(left.protocols().collect::<Vec<_>>(), [Protocol::Http]);
    assert_eq!(left.subjects_of(Protocol::Http), [0, 1]);
}

/// `quick` with some of its text replaced.
fn quick_with(from: &str, to: &str) -> Result<Experiment, LabError> {
    let text = BUILT_IN[0].1.replacen(from, to, 1);
    assert_ne!(text, BUILT_IN[0].1);
    Experiment::from_toml(&text, "mine.toml")
}

fn line_of(text: &str) -> usize {
    BUILT_IN[0].1.lines().position(|line| line.contains(text)).unwrap() + 1
}

#[test]
fn what_makes_no_sense_is_named_with_its_line_too() {
    for (from, to, expected) in [
        ("pairs = 8", "pairs = 0", "1 to 1000 pairs"),
        ("window_s = 0.5", "window_s = -1.0", "0.05 to 300 seconds"),
        ("message_bytes = [128, 16384]", "message_bytes = [0]", "numbers from 1 to"),
        ("name = \"epoll\"", "name = \"a b\"", "1-40 letters"),
        ("engine = \"epoll\"", "engine = \"kqueue\"", "io_uring or epoll"),
    ] {
        let error = quick_with(from, to).unwrap_err().to_string();
        let line = line_of(from);
        assert!(error.starts_with(&format!("mine.toml:{line}: ")), "{to}: {error}");
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn a_rate_is_given_once_and_reaches_the_load_generator() {
    let with = |from: &str, to: &str| {
        let text = built_in("tcp-grid").unwrap().replacen(from, to, 1);
        Experiment::from_toml(&text, "mine.toml")
    };
    for (from, to, expected) in [
        ("load_percent = [25, 0]", "load_percent = [25]\nrate_per_s = [9000]", "one of them"),
        ("load_percent = [25, 0]", "load_percent = [101]", "numbers from 0 to 100"),
        ("\"{addr}\", \"{options}\",", "\"{addr}\",", "\"{options}\""),
    ] {
        let error = with(from, to).unwrap_err().to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
    let quarter = with("load_percent = [25, 0]", "load_percent = [25]").unwrap();
    let points = quarter.grid(Protocol::Tcp).unwrap().points();
    assert!(points.iter().all(|it| it.load_percent() == 25 && it.saturated().load_percent() == 0));
    assert_eq!(points[0].load().to_string(), "1 x 128 B at 25 % load");
    // Of the two options, the one that is given replaces what the experiment says by the other.
    let rates = Overrides { rate_per_s: Some(vec![500]), ..Overrides::default() };
    let by_rate = quarter.with(&rates).unwrap();
    let points = by_rate.grid(Protocol::Tcp).unwrap().points();
    assert!(points.iter().all(|it| it.load_percent() == 0 && it.rate_per_s() == 500));
    let load = Overrides { load_percent: Some(vec![50]), ..Overrides::default() };
    let points = by_rate.with(&load).unwrap().grid(Protocol::Tcp).unwrap().points();
    assert!(points.iter().all(|it| it.load_percent() == 50 && it.rate_per_s() == 0));
}

#[test]
fn a_subject_may_be_another_one_with_a_change() {
    let subjects = "[[subjects]]\nname = \"base\"\nengine = \"io_uring\"\n\
                    features = \"multishot=off,split=on\"\nserver_arguments = [\"--backlog\", \"9\"]\n\
                    [[subjects]]\nname = \"more\"\nfrom = \"base\"\n\
                    change = \"multishot=on,bundle=on\"\n";
    let experiment = quick_with(
        "[[subjects]]\nname = \"epoll\"",
        &format!("{subjects}[[subjects]]\nname = \"epoll\""),
    );
    let experiment = experiment.unwrap();
    let more = &experiment.subjects[1];
    assert_eq!(more.features.as_deref(), Some("split=on,multishot=on,bundle=on"));
    let command = more.command_template(Protocol::Tcp).join(" ");
    assert!(command.ends_with("--uring split=on,multishot=on,bundle=on --backlog 9"), "{command}");
    // Once stored and read back it is still the same.
    let stored = serde_json::to_value(&experiment).unwrap();
    assert_eq!(Experiment::from_stored(&stored).unwrap(), experiment);

    let refused = |from: &str, to: &str| {
        let changed = subjects.replacen(from, to, 1);
        assert_ne!(changed, subjects);
        let text = format!("{changed}[[subjects]]\nname = \"epoll\"");
        quick_with("[[subjects]]\nname = \"epoll\"", &text).unwrap_err().to_string()
    };
    assert!(refused("from = \"base\"", "from = \"bass\"").contains("`bass`"));
    assert!(refused("from = \"base\"", "from = \"more\"").contains("engine of its own"));
    assert!(refused("from = \"base\"\n", "").contains("nothing to change"));
    assert!(refused("from", "engine = \"epoll\"\nfrom").contains("of its own"));
}

#[test]
fn a_stop_rule_has_bounds() {
    let until =
        |text: &str| quick_with("net = \"auto\"", &format!("net = \"auto\"\nuntil = {text}"));
    let good = until("{ interval_percent = 3.0, max_pairs = 40 }").unwrap();
    assert_eq!(good.until, Some(Until { interval_percent: 3.0, max_pairs: 40 }));
    for (bad, expected) in [
        ("{ interval_percent = 0.0, max_pairs = 40 }", "0.1 to 1000 percent"),
        ("{ interval_percent = 3.0, max_pairs = 4 }", "8 (pairs) to 1000"),
        ("{ interval_percent = 3.0 }", "max_pairs"),
    ] {
        let error = until(bad).unwrap_err().to_string();
        assert!(error.contains(expected), "{bad}: {error}");
    }
    let narrow = Overrides { until_percent: Some(2.0), ..Overrides::default() };
    assert_eq!(quick().with(&narrow).unwrap().until.unwrap().max_pairs, 1000);
}

/// What is in a table of an experiment, as `connections x bytes` and requests per second.
fn printed(experiment: &Experiment, program: &str) -> Vec<(u32, u32, Option<f64>)> {
    let published = experiment.published.iter().find(|it| it.program() == program).unwrap();
    let entry = |it: Printed<'_>| (it.connections, it.bytes, it.requests_per_s);
    published.printed().into_iter().map(entry).collect()
}

/// Every number of the published tables, copied from them row by row and independently of the
/// experiment files.
#[test]
fn the_published_tables_are_as_they_were_printed() {
    let frevib = Experiment::find("published-frevib").unwrap();
    let uring = [
        [13093, 147078, 190054, 216637, 211280, 173343],
        [13140, 150444, 193019, 203360, 194701, 156880],
        [14024, 140248, 178638, 200853, 183845, 143810],
    ];
    let epoll = [
        [13177, 139863, 152561, 145517, 125402, 108380],
        [13190, 135973, 147153, 142518, 124584, 107257],
        [13172, 131773, 142481, 131748, 123287, 102474],
    ];
    for (program, rows) in [("io_uring with IORING_FEAT_FAST_POLL", uring), ("epoll", epoll)] {
        let mut expected = Vec::new();
        for (bytes, row) in [128, 512, 1000].into_iter().zip(rows) {
            for (clients, number) in [1, 50, 150, 300, 500, 1000].into_iter().zip(row) {
                expected.push((clients, bytes, Some(f64::from(number))));
            }
        }
        assert_eq!(printed(&frevib, program), expected);
    }
    let joakimthun = Experiment::find("published-joakimthun").unwrap();
    let row = |numbers: [Option<f64>; 4]| {
        let clients = [1, 256, 512, 1024].into_iter();
        clients.zip(numbers).map(|(clients, number)| (clients, 1024, number)).collect::<Vec<_>>()
    };
    let uring = [176402.0, 421246.0, 354244.0, 353988.0].map(Some);
    assert_eq!(printed(&joakimthun, "io_uring"), row(uring));
    let epoll = [Some(169021.0), Some(421010.0), Some(405133.0), None];
    assert_eq!(printed(&joakimthun, "epoll"), row(epoll));
    let stuck = joakimthun.published[1].printed()[3];
    assert!(stuck.note.starts_with(":("), "{stuck:?}");
    let go_uring = Experiment::find("published-go-uring").unwrap();
    for (program, numbers) in [
        ("io_uring-echo-server (C lang)", [235356, 224783, 173670, 155477, 149407, 139987]),
        ("echo-server", [227884, 222709, 169001, 150275, 143664, 128783]),
        ("echo-server + amd64_atomic tag", [232395, 223299, 169428, 151311, 143884, 136978]),
    ] {
        // The second column is headed `c: 50 bytes: 1024`.
        let heads = [(100, 128), (50, 1024), (500, 128), (500, 1024), (1000, 128), (1000, 1024)];
        let entry = |((clients, bytes), number)| (clients, bytes, Some(f64::from(number)));
        let expected: Vec<_> = heads.into_iter().zip(numbers).map(entry).collect();
        assert_eq!(printed(&go_uring, program), expected);
    }
    let noted = |published: &Published| published.printed()[1].note.contains("c: 50 bytes: 1024");
    assert!(go_uring.published.iter().all(noted));
}

#[test]
fn the_published_tables_of_nginx_and_datagrams_are_as_they_were_printed() {
    let nginx = Experiment::find("published-nginx").unwrap();
    let sums = |program: &str| {
        let published = nginx.published.iter().find(|it| it.program() == program).unwrap();
        let all = published.printed();
        let mean_us = |it: &Printed<'_>| (it.mean_ms.unwrap() * 1e3).round() as u64;
        let number = |it: &Printed<'_>| it.requests_per_s.unwrap() as u64;
        (all.len(), all.iter().map(number).sum::<u64>(), all.iter().map(mean_us).sum::<u64>())
    };
    // 212477 + 208237 + 188917 + 113141 + 218831 + 216274 + 189472 + 111582 requests/s, and
    // 462 + 471 + 520 + 870 + 5610 + 5580 + 6420 + 10720 us.
    assert_eq!(sums("nginx on io_uring"), (8, 1_458_931, 30_653));
    // 138144 + 141272 + 137676 + 104349 + 132630 + 136815 + 133514 + 101716, and
    // 722 + 706 + 724 + 950 + 42390 + 36040 + 41980 + 49090.
    assert_eq!(sums("nginx on epoll"), (8, 1_026_116, 172_602));

    let datagrams = Experiment::find("published-asyncudp").unwrap();
    let mut cpu_percent = Vec::new();
    let (mut calls, mut time_us) = (0, 0);
    for published in &datagrams.published {
        let Published::Datagrams(published) = published else { panic!("{published:?}") };
        cpu_percent.push(published.cpu_percent);
        calls += published.calls.iter().map(|call| call.count).sum::<u64>();
        let time = published.calls.iter().map(|call| (call.time_s * 1e6).round() as u64);
        time_us += time.sum::<u64>();
    }
    assert_eq!(cpu_percent, [110.0, 81.7, 113.4, 110.6, 72.0]);
    // 193503 + 241453 + 38048 + 45588 + 5256 + 5276 + 3426 + 3632 calls, and the sum of their
    // times: 4.50182 + 4.32691 + 3.33066 + 5.87482 + 8.20975 + 0.089418 + 11.2935 + 0.210859 s.
    assert_eq!((calls, time_us), (536_182, 37_837_737));
}

#[test]
fn every_published_document_says_what_could_not_be_reproduced() {
    let mut documents = 0;
    for (name, _) in BUILT_IN.iter().filter(|(name, _)| name.starts_with("published-")) {
        let experiment = Experiment::find(name).unwrap();
        documents += 1;
        assert!(!experiment.published.is_empty(), "{name}");
        assert!(experiment.not_reproduced.len() >= 4, "{name}");
    }
    assert_eq!(documents, 5);
}

#[test]
fn experiments_are_found_by_the_names_they_had_first() {
    for (alias, name) in ALIASES {
        assert_eq!(Experiment::find(alias).unwrap().name, *name);
        assert_eq!(built_in(alias), built_in(name));
    }
    assert!(built_in("nothing-like-it").is_none());
}

#[test]
fn the_peers_are_compared_with_both_of_our_engines() {
    let peers = Experiment::find("peers").unwrap();
    assert_eq!(peers.subjects[0].name, "epoll");
    for subject in &peers.subjects[2..] {
        assert_eq!(subject.against, ["io_uring"], "{}", subject.name);
    }
    let names = |protocol| {
        let speakers = peers.subjects_of(protocol).into_iter();
        speakers.map(|it| peers.subjects[it].name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(names(Protocol::Http), ["epoll", "io_uring", "nginx"]);
    assert_eq!(names(Protocol::Tcp).len(), 11);
}

#[test]
fn wrong_peers_and_published_figures_are_refused_with_their_line() {
    let text = built_in("peers").unwrap();
    let refused = |text: &str| Experiment::from_toml(text, "mine.toml").unwrap_err().to_string();
    let unknown = refused(&text.replace("peer = \"tokio\"", "peer = \"tokyo\""));
    assert!(unknown.contains("tokyo") && unknown.contains("one of tokio, monoio"), "{unknown}");
    let udp = refused(&text.replace("peer = \"tokio\"", "peer = \"tokio\"\nprotocol = \"http\""));
    assert!(udp.contains("another protocol"), "{udp}");
    let two = text.replace("peer = \"tokio\"", "peer = \"tokio\"\nengine = \"epoll\"");
    assert!(refused(&two).contains("one of engine"));
    let words = text.replacen("engine = \"epoll\"", "engine = \"epoll\"\narguments = [\"x\"]", 1);
    assert!(refused(&words).contains("server_arguments"));
    let text = built_in("published-joakimthun").unwrap();
    let alone = refused(&text.replace("program = \"epoll\", here", "program = \"kqueue\", here"));
    assert!(alone.contains("another entry") && alone.starts_with("mine.toml:"), "{alone}");
    let silent = refused(&text.replace(", note = \":( (stuck at 100 % CPU)\"", ""));
    assert!(silent.contains("a note instead"), "{silent}");
}

#[test]
fn an_experiment_may_have_its_cpus_and_options_may_change_them() {
    let pinned = quick_with("net = \"auto\"", "net = \"auto\"\npin = { server_cpu = 3 }").unwrap();
    assert_eq!(pinned.pin, Pin { server_cpu: Some(CpuList::one(3)), client_cpu: None });
    let options = Overrides { client_cpu: Some(CpuList::one(5)), ..Overrides::default() };
    let both = Pin { server_cpu: Some(CpuList::one(3)), client_cpu: Some(CpuList::one(5)) };
    assert_eq!(pinned.with(&options).unwrap().pin, both);
    let error =
        quick_with("net = \"auto\"", "net = \"auto\"\npin = { sever_cpu = 3 }").unwrap_err();
    assert!(error.to_string().contains("server_cpu"), "{error}");
}

/// Files and bundles have the names that networks had while there were two.
#[test]
fn networks_are_known_by_their_old_names_too() {
    let quick = include_str!("../../experiments/quick.toml");
    for (old, new, kinds) in [
        ("veth", "rps", &[NetKind::Rps][..]),
        ("loopback", "lo", &[NetKind::Lo]),
        ("napi", "napi", &[NetKind::Napi]),
        ("both", "both", &[NetKind::Rps, NetKind::Lo]),
        ("all", "all", &[NetKind::Rps, NetKind::Lo, NetKind::Napi]),
    ] {
        let text = quick.replace("net = \"auto\"", &format!("net = \"{old}\""));
        let experiment = Experiment::from_toml(&text, "quick").unwrap();
        assert_eq!(experiment.net, old.parse().unwrap());
        assert_eq!(serde_json::to_value(experiment.net).unwrap(), new);
        assert_eq!(experiment.net.kinds(), kinds);
    }
    assert!("eth0".parse::<NetChoice>().unwrap_err().contains("auto, lo, rps, napi, all"));
}

#[test]
fn the_schedule_experiment_asks_for_gathering_and_interface_on_three_networks() {
    let schedule = Experiment::find("schedule").unwrap();
    let name = |position: usize| schedule.subjects[position].name.as_str();
    let contests = schedule.contests(Protocol::Tcp);
    let contests: Vec<_> = contests.into_iter().map(|(a, b)| (name(a), name(b))).collect();
    let wanted = [("epoll-at-once", "epoll"), ("epoll-at-once", "io_uring"), ("epoll", "io_uring")];
    assert_eq!(contests, wanted);
    let estimate = crate::estimate::Estimate::of(&schedule);
    assert!(estimate.runs == 3 * 8 * 3 * 12 && estimate.seconds_most < 1200.0, "{estimate:?}");
    let comparisons = 3 * schedule.cells(schedule.net.kinds()).len();
    assert_eq!(crate::estimate::too_few_pairs(&schedule, comparisons), None);
}
