//! The comparison on the admin service: `/engines`, `/engines.json`, and metrics.

use super::{Live, verdict};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::sync::Arc;
use twinring_services::Stage;
use twinring_services::http::{Exposition, Pages};
use twinring_wire::engines::{Adaptive, EngineSide, Engines};

/// The pages of a service, and those of its comparison if it has one.
pub(crate) struct WithEngines<P> {
    pub(crate) pages: P,
    pub(crate) live: Option<Arc<Live>>,
}

impl<P: Pages> Pages for WithEngines<P> {
    fn stage(&self) -> Stage {
        self.pages.stage()
    }

    fn metrics(&self) -> String {
        let engines = self.live.as_ref().map(|live| metrics(&live.engines()));
        self.pages.metrics() + &engines.unwrap_or_default()
    }

    fn page(&self, path: &str) -> Option<(&'static str, String)> {
        let live = self.live.as_ref()?;
        match path {
            "/engines" => Some(("text/html; charset=utf-8", page(&live.engines()))),
            "/engines.json" => {
                let line = serde_json::to_string(&live.engines()).ok()?;
                Some(("application/json", line + "\n"))
            }
            _ => None,
        }
    }
}

/// Without a script, and readable on 400 pixels.
const STYLE: &str = "\
    :root{color-scheme:light dark}\
    body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:0 auto;padding:1rem}\
    table{border-collapse:collapse;width:100%}\
    th,td{text-align:right;padding:.25rem .4rem;border-bottom:1px solid GrayText}\
    th:first-child,td:first-child{text-align:left}\
    td{font-variant-numeric:tabular-nums}";

fn page(engines: &Engines) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="refresh" content="5";
                title { "Engines · twinring" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Engines" }
                p { strong { (verdict(engines)) } }
                (table(engines))
                @if let Some(adaptive) = &engines.adaptive { (trials(adaptive)) }
                p {
                    (engines.slices_compared) " slices of " (engines.slice_s) " s were compared, "
                    (engines.slices_left_out) " were left out, because an engine did fewer than "
                    (engines.units_min) " units."
                }
                @if !engines.cautions.is_empty() {
                    ul { @for caution in &engines.cautions { li { (caution) } } }
                }
                p {
                    small {
                        "CPU time is that of the workers' threads. Softirq work on other CPUs is not "
                        "in it. The interval covers the slices of time, not other connections."
                    }
                }
            }
        }
    };
    page.into_string()
}

/// A row of the table: its name, and its value for an engine, if there is one.
type Row = (String, fn(&EngineSide) -> Option<f64>);

fn number(value: f64) -> String {
    match value {
        value if value.fract() == 0.0 || value >= 1000.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}

fn table(engines: &Engines) -> Markup {
    let unit = &engines.unit;
    let rows: [Row; 10] = [
        (format!("CPU per {unit}, us"), |side| side.cpu_us_per_unit),
        ("CPU in user mode, s".to_owned(), |side| Some(side.cpu_user_s)),
        ("CPU in the kernel, s".to_owned(), |side| Some(side.cpu_system_s)),
        ("busy time of its CPUs, s".to_owned(), |side| side.cpu_busy_s),
        (format!("units ({unit})"), |side| Some(side.units)),
        (format!("bytes per {unit}"), |side| side.bytes_per_unit),
        ("mean latency, us".to_owned(), |side| side.latency_us_mean),
        ("workers".to_owned(), |side| Some(side.workers as f64)),
        ("connections".to_owned(), |side| Some(side.connections as f64)),
        ("open now".to_owned(), |side| Some(side.open as f64)),
    ];
    html! {
        table {
            tr { th { "" } th { "io_uring" } th { "epoll" } }
            @for (name, value) in &rows {
                tr {
                    td { (name) }
                    @for side in [&engines.io_uring, &engines.epoll] {
                        td { (value(side).map_or("–".to_owned(), number)) }
                    }
                }
            }
        }
    }
}

fn trials(adaptive: &Adaptive) -> Markup {
    html! {
        p {
            "New connections go to "
            (adaptive.new_connections_to.as_deref().unwrap_or("both engines")) ". Trials: "
            (adaptive.trials) ", decided: " (adaptive.decided) ", moves: " (adaptive.moves)
            ". Evidence for io_uring " (number(adaptive.evidence_io_uring)) ", for epoll "
            (number(adaptive.evidence_epoll)) ", of " (adaptive.evidence_needed) " needed."
        }
        @if let Some(why) = &adaptive.not_steered {
            p { "Connections cannot be steered: " (why) "." }
        }
    }
}

fn metrics(engines: &Engines) -> String {
    let mut text = Exposition::default();
    let sides = [("io_uring", &engines.io_uring), ("epoll", &engines.epoll)];
    let mut family = |name: &str, help: &str, kind: &str, value: fn(&EngineSide) -> f64| {
        let name = format!("twinring_engine_{name}");
        text.family(&name, help, kind);
        for (engine, side) in sides {
            text.sample(&name, &[&format!("engine=\"{engine}\"")], value(side));
        }
    };
    family("workers", "Workers of the engine.", "gauge", |side| side.workers as f64);
    family("cpu_user_seconds_total", "CPU of its workers in user mode.", "counter", |side| {
        side.cpu_user_s
    });
    family("cpu_system_seconds_total", "CPU of its workers in the kernel.", "counter", |side| {
        side.cpu_system_s
    });
    family("units_total", "Units of work of the engine.", "counter", |side| side.units);
    family("bytes_total", "Bytes received and sent.", "counter", |side| side.bytes as f64);
    family("connections_total", "Connections of the engine.", "counter", |side| {
        side.connections as f64
    });
    family("connections_open", "Its open connections.", "gauge", |side| side.open as f64);
    let (name, help) = ("twinring_engine_slices_total", "Slices of time, by their use.");
    text.family(name, help, "counter");
    text.sample(name, &["result=\"compared\""], engines.slices_compared);
    text.sample(name, &["result=\"left_out\""], engines.slices_left_out);
    if let Some(ratio) = engines.ratio {
        let help = "CPU per unit on epoll, divided by that on io_uring.";
        text.single("twinring_engine_cpu_ratio", help, "gauge", ratio);
    }
    if let Some([low, high]) = engines.interval {
        let help = "The lower end of the 95 % interval of the ratio.";
        text.single("twinring_engine_cpu_ratio_low", help, "gauge", low);
        let help = "The upper end of the 95 % interval of the ratio.";
        text.single("twinring_engine_cpu_ratio_high", help, "gauge", high);
    }
    if let Some(adaptive) = &engines.adaptive {
        let name = "twinring_engine_gets_new_connections";
        text.family(name, "1 if the engine gets new connections.", "gauge");
        for (engine, _) in sides {
            let gets = adaptive.new_connections_to.as_deref().is_none_or(|only| only == engine);
            text.sample(name, &[&format!("engine=\"{engine}\"")], u8::from(gets));
        }
        let help = "Trials of both engines.";
        text.single("twinring_engine_trials_total", help, "counter", adaptive.trials);
        let help = "Times that the chosen engine changed.";
        text.single("twinring_engine_moves_total", help, "counter", adaptive.moves);
    }
    text.into_text()
}
