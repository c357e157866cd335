//! An [`Advice`] for people: a page for the terminal, and the same as HTML.

use maud::{Markup, html};

use super::{Advice, Choice, Effect, EngineFigures, Row, Saving, Workload};
use crate::experiment::{NetKind, Protocol};
use crate::page::page;
use crate::report::{Style, align};

/// Columns of the terminal page.
const WIDTH: usize = 96;

/// The answer in one sentence.
fn answer(advice: &Advice) -> String {
    if advice.local.refused.is_some() {
        return "Use epoll: io_uring cannot run here.".to_owned();
    }
    let saved = |effect| {
        let rows = advice.asked.iter().filter(move |row| row.effect == effect);
        let savings = rows.filter_map(|row| Some((row.net, row.saving?.percent.abs())));
        savings.map(|(net, percent)| format!("{percent:.0} % on {}", network(net))).collect()
    };
    let saved = |effect| -> String { joined(saved(effect)) };
    match advice.choice {
        Choice::IoUring => {
            format!("Use io_uring: it saves server CPU, {}.", saved(Effect::IoUring))
        }
        Choice::Epoll => format!("Use epoll: it saves server CPU, {}.", saved(Effect::Epoll)),
        Choice::Either => {
            "Use either: they differ by less than 3 % of the server's CPU. epoll needs less of the \
             kernel."
                .to_owned()
        }
        Choice::Depends => format!(
            "It depends on your network. io_uring saves {}; epoll saves {}.",
            saved(Effect::IoUring),
            saved(Effect::Epoll)
        ),
        Choice::Unknown => {
            "No answer: the measurements were too noisy, or neither engine did this work. Repeat \
             with more --minutes, with nothing else running, or with a lower --rate."
                .to_owned()
        }
    }
}

fn joined(parts: Vec<String>) -> String {
    match parts.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        parts => parts.concat(),
    }
}

/// What a network stands for, in words for somebody who has not read the method.
fn network(net: NetKind) -> &'static str {
    match net {
        NetKind::Rps => "a network that interrupts the server (rps)",
        NetKind::Napi => "a network that the server polls (napi)",
        NetKind::Lo => "loopback (lo)",
        NetKind::Hosts => "this network",
    }
}

fn in_words(workload: &Workload) -> String {
    let Workload { protocol, connections, bytes, rate_per_s, tls, .. } = workload;
    let what = match (protocol, tls) {
        (Protocol::Tcp, _) => format!("TCP echo, {connections} connections, messages"),
        (Protocol::Udp, _) => format!("UDP, {connections} streams, datagrams"),
        (Protocol::Http, false) => format!("HTTP, {connections} connections, files"),
        (Protocol::Http, true) => format!("HTTPS, {connections} connections, files"),
    };
    let rate = match rate_per_s {
        0 if *protocol == Protocol::Udp => "50 packets/s each".to_owned(),
        0 => "as many requests as one worker can answer".to_owned(),
        rate => format!("{rate} requests/s per worker"),
    };
    format!("{what} of {bytes} bytes, {rate}")
}

fn saving(saving: Option<Saving>) -> String {
    match saving {
        Some(Saving { percent, low: Some(low), high: Some(high) }) => {
            format!("{percent:.0} % [{low:.0}, {high:.0}]")
        }
        Some(Saving { percent, .. }) => format!("{percent:.0} %"),
        None => "-".to_owned(),
    }
}

fn cores(figures: Option<EngineFigures>) -> String {
    figures.map_or("-".to_owned(), |it| format!("{:.1}", it.cores_per_million_per_s))
}

fn latency(figures: Option<EngineFigures>) -> String {
    figures
        .map_or("-".to_owned(), |it| format!("{:.0} / {:.0}", it.latency_us_p50, it.latency_us_p99))
}

const HEAD: [&str; 7] = [
    "network",
    "CPU saved by io_uring",
    "cores: epoll",
    "io_uring",
    "p50 / p99 us: epoll",
    "io_uring",
    "what follows",
];

fn follows(row: &Row) -> String {
    match row.effect {
        Effect::IoUring => "io_uring".to_owned(),
        Effect::Epoll => "epoll".to_owned(),
        Effect::Same => "either".to_owned(),
        Effect::Unclear if row.verdict.starts_with("void") => "void".to_owned(),
        Effect::Unclear => "unclear".to_owned(),
    }
}

/// The cells of a row; its first is the network, or with the workload if it is a neighbour.
fn cells(row: &Row, is_neighbour: bool) -> [String; 7] {
    let name = match is_neighbour {
        true => format!("{}, {}", row.workload, row.net),
        false => row.net.to_string(),
    };
    [
        name,
        saving(row.saving),
        cores(row.epoll),
        cores(row.io_uring),
        latency(row.epoll),
        latency(row.io_uring),
        follows(row),
    ]
}

/// Sentences about the figures of the table.
fn remarks(advice: &Advice) -> Vec<String> {
    if advice.asked.is_empty() {
        return Vec::new();
    }
    let mut remarks = vec![
        "Cores are what a million requests/s take, interrupts and softirq included. Both engines \
         gather their sends. In brackets the 95 % interval."
            .to_owned(),
    ];
    let at_once: Vec<String> = advice
        .asked
        .iter()
        .filter(|row| row.saving_at_once.is_some())
        .map(|row| format!("{} on {}", saving(row.saving_at_once), row.net))
        .collect();
    if !at_once.is_empty() {
        remarks.push(format!(
            "Most programs use epoll otherwise: they send each answer at once. Against that, \
             io_uring saves {}. epoll saves a part of that by gathering its sends.",
            joined(at_once)
        ));
    }
    let unclear = advice.asked.iter().filter(|row| row.effect == Effect::Unclear);
    remarks.extend(unclear.map(|row| format!("On {}: {}.", row.net, row.verdict)));
    if advice.workload.rate_per_s == 0 && advice.workload.protocol != Protocol::Udp {
        remarks.push(
            "Without a rate, the load is as high as it goes. At a low rate wake-ups cost more than requests do: give \
             --rate if your servers are not busy."
                .to_owned(),
        );
    }
    remarks
}

/// What speaks against io_uring, or why it cannot run.
fn objections(advice: &Advice) -> Vec<String> {
    let local = &advice.local;
    let mut list: Vec<String> = local.refused.iter().cloned().collect();
    list.extend(local.against.iter().cloned());
    if list.is_empty() {
        list.push("nothing known of this kernel or container".to_owned());
    }
    list
}

/// What would change the answer: neighbours with another effect, and what was not looked at.
fn changes(advice: &Advice) -> Vec<String> {
    let other = |row: &&Row| {
        let same_net = advice.asked.iter().find(|asked| asked.net == row.net);
        row.effect != Effect::Unclear && same_net.is_some_and(|asked| asked.effect != row.effect)
    };
    let mut list: Vec<String> = advice
        .neighbours
        .iter()
        .filter(other)
        .map(|row| {
            let what = match row.effect {
                Effect::IoUring => "io_uring",
                Effect::Epoll => "epoll",
                Effect::Same | Effect::Unclear => "either",
            };
            format!("{} on {}: {what} ({} saved)", row.workload, row.net, saving(row.saving))
        })
        .collect();
    if let Some(bundle) = &advice.bundle {
        if list.is_empty() && !advice.neighbours.is_empty() {
            list.push("none of the other connections and sizes in the table".to_owned());
        }
        list.push(format!(
            "a machine with other prices of calls and interrupts: `twinring lab show --price \
             interrupt=0.5us {bundle}` predicts it"
        ));
    }
    list
}

fn switches(advice: &Advice) -> Vec<String> {
    let mut list = vec![advice.command.clone()];
    let uses_ring = advice.choice != Choice::Epoll && advice.local.refused.is_none();
    if let Some(features) = advice.local.features.as_ref().filter(|_| uses_ring) {
        list.push(format!("io_uring takes: {features}"));
    }
    list
}

/// The page for a terminal.
pub fn text(advice: &Advice, style: Style) -> String {
    let mut all = String::new();
    let mut line = |text: &str| {
        all.push_str(text.trim_end());
        all.push('\n');
    };
    for part in textwrap::wrap(&answer(advice), WIDTH) {
        line(&style.paint("1", &part));
    }
    line("");
    line(&format!("workload  {}", in_words(&advice.workload)));
    if !advice.machine.is_empty() {
        line(&format!("machine   {}", advice.machine.join(", ")));
    }
    let mut table = |title: &str, rows: &[Row], is_neighbour: bool| {
        if rows.is_empty() {
            return;
        }
        let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
        lines[0][0] = title.to_owned();
        lines.extend(rows.iter().map(|row| cells(row, is_neighbour).to_vec()));
        line("");
        align(&lines).iter().for_each(|text| line(text));
    };
    table("network", &advice.asked, false);
    table("close to it", &advice.neighbours, true);
    let mut list = |title: &str, items: Vec<String>| {
        if items.is_empty() {
            return;
        }
        line("");
        if !title.is_empty() {
            line(&style.paint("1", title));
        }
        let indent = if title.is_empty() { ["", ""] } else { ["  - ", "    "] };
        for item in items {
            let options = textwrap::Options::new(WIDTH)
                .initial_indent(indent[0])
                .subsequent_indent(indent[1])
                .break_words(false)
                .word_splitter(textwrap::WordSplitter::NoHyphenation);
            textwrap::wrap(&item, options).iter().for_each(|part| line(part));
        }
    };
    list("", remarks(advice));
    list("What speaks against io_uring here", objections(advice));
    list("What would change the answer", changes(advice));
    list("Switches", switches(advice));
    if let Some(bundle) = &advice.bundle {
        line("");
        line(&format!("Raw data and report: {bundle}"));
    }
    all
}

/// The page as HTML that needs nothing else.
pub fn html(advice: &Advice) -> String {
    let table = |rows: &[Row], is_neighbour: bool| -> Markup {
        html! {
            div.scroll {
                table {
                    thead { tr { @for head in HEAD { th { (head) } } } }
                    tbody {
                        @for row in rows {
                            tr { @for cell in cells(row, is_neighbour) { td { (cell) } } }
                        }
                    }
                }
            }
        }
    };
    let list = |title: &str, items: Vec<String>| -> Markup {
        html! { h2 { (title) } ul { @for item in items { li { (item) } } } }
    };
    let body = html! {
        h1 { (answer(advice)) }
        p { (in_words(&advice.workload)) }
        p.soft { (advice.machine.join(", ")) }
        @if !advice.asked.is_empty() { (table(&advice.asked, false)) }
        @for remark in remarks(advice) { p.soft { (remark) } }
        (list("What speaks against io_uring here", objections(advice)))
        (list("What would change the answer", changes(advice)))
        @if !advice.neighbours.is_empty() { (table(&advice.neighbours, true)) }
        h2 { "Switches" }
        @for switch in switches(advice) { p { code { (switch) } } }
        @if let Some(bundle) = &advice.bundle {
            p.soft { "Raw data and report: " code { (bundle) } }
        }
    };
    page("Twinring: io_uring or epoll?", &body)
}
