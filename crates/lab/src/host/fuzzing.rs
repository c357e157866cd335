//! What a lab and an agent make of the lines of the other, for the fuzz targets of `fuzz/`.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::local::Interface;
use super::protocol::{self, Ended, FromAgent, ToAgent};
use crate::accounting::{
    BackgroundLoad, ClientWindow, KernelMemory, ProcessMemory, SideSample, Sides,
    cpu_use_between_hosts,
};
use crate::clock::Offset;
use crate::machine::Fingerprint;
use crate::machine::Program;
use crate::site::{Site, nginx};

/// The most lines that are looked at.
const LINES_MAX: usize = 64;

/// Answers that are counted with.
#[derive(Default)]
struct Answers {
    clocks: Vec<u64>,
    sides: Vec<SideSample>,
    background: Vec<BackgroundLoad>,
}

/// Reads `input` as either end of a connection does, and computes what the lab computes from the
/// answers.
///
/// # Panics
/// When what was read is written as something else.
pub fn check_lines(input: &[u8]) {
    let (mut rest, mut answers) = (input, Answers::default());
    for _ in 0..LINES_MAX {
        let Ok(Some(line)) = protocol::read_line(&mut rest) else { break };
        check::<ToAgent>(&line);
        if let Some(FromAgent::Reply { result: Ok(value), .. }) = check::<FromAgent>(&line) {
            answers.take(&value);
        }
    }
    answers.count();
}

impl Answers {
    /// Reads an answer as each of the kinds that there are.
    fn take(&mut self, value: &Value) {
        let text = value.to_string();
        check::<Ended>(&text);
        check::<Fingerprint>(&text);
        check::<KernelMemory>(&text);
        check::<Option<Interface>>(&text);
        check::<Option<String>>(&text);
        check::<ProcessMemory>(&text);
        check::<Result<nginx::Installed, String>>(&text);
        check::<Site>(&text);
        check::<Vec<(String, String)>>(&text);
        check::<Vec<Program>>(&text);
        self.clocks.extend(check::<u64>(&text));
        self.sides.extend(check::<SideSample>(&text));
        self.background.extend(check::<BackgroundLoad>(&text));
    }

    fn count(&self) {
        for pair in self.background.windows(2) {
            let others = pair[0].until(&pair[1]);
            assert!(others.cpu_s >= 0.0 && others.span_s >= 0.0, "{others:?}");
        }
        let mut told = self.clocks.iter().copied();
        let mut own = 0..;
        let mut ask = || {
            // As when the connection is lost.
            let lost = || crate::LabError::Machine { why: "no more answers".to_owned() };
            Offset::measure(|| own.next().ok_or_else(lost), || told.next().ok_or_else(lost))
        };
        let (Ok(before), Ok(after)) = (ask(), ask()) else { return };
        let clock = Offset::between(before, after);
        let [a, b, c, d, ..] = self.sides.as_slice() else { return };
        let window = ClientWindow {
            window_ns: [b.at_ns, d.at_ns],
            samples: [(a, b), (c, d)]
                .map(|(server, client)| Sides { server: server.clone(), client: client.clone() }),
            clock,
        };
        if let Ok(cpu) = cpu_use_between_hosts(&[window], &[Offset::NONE]) {
            assert!(cpu.window_s >= 0.0 && cpu.server_cpu.busy_s >= 0.0, "{cpu:?}");
        }
    }
}

/// Reads a value; one that is read is written so that it is read as the same again.
fn check<T: DeserializeOwned + Serialize + Debug>(text: &str) -> Option<T> {
    let read: T = serde_json::from_str(text).ok()?;
    let mut line = Vec::new();
    protocol::write(&mut line, &read).expect("all of it can be written");
    let mut input = line.as_slice();
    let again = protocol::read_line(&mut input).expect("no error in memory").expect("a line");
    assert!(input.is_empty(), "more than one line: {again}");
    let same: T = serde_json::from_str(&again).unwrap_or_else(|error| panic!("{error}: {again}"));
    assert_eq!(format!("{same:?}"), format!("{read:?}"), "{text}");
    Some(read)
}
