//! One question as an experiment: which of these servers needs less CPU for this workload?

use crate::error::LabError;
use crate::experiment::{Experiment, NetChoice, Overrides, Protocol, Subject, UnderTest};
use crate::statistics::{family_level, least_pairs};

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// Its name, and the beginning of the bundle's.
    pub name: String,
    /// TCP is an echo of messages, HTTP static files, UDP streams that are reflected.
    pub protocol: Protocol,
    /// Who is compared, the first with each of the others.
    pub subjects: Vec<Subject>,
    /// Connections, or streams of UDP.
    pub clients: u32,
    /// Bytes of a message, a file or a datagram's payload.
    pub bytes: u32,
    /// HTTP over TLS.
    pub tls: bool,
    /// The loads. UDP always has a schedule.
    pub loads: Vec<Load>,
    /// The network.
    pub net: NetChoice,
    /// Pairs; by default as many as show a difference, and two to spare.
    pub pairs: Option<usize>,
}

/// How much a server has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// A share, in percent, of what the slowest can serve.
    Percent(u32),
    /// As much as each can serve: a closed loop.
    Max,
    /// Requests or packets per second of all connections.
    Rate(u32),
}

impl std::str::FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Load, String> {
        if text == "max" {
            return Ok(Load::Max);
        }
        let expected =
            || format!("`{text}`: expected a share such as 25%, max, or a rate such as 5000");
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim().parse().ok().filter(|it| (1..=95).contains(it));
                percent.map(Load::Percent).ok_or_else(expected)
            }
            None => {
                let rate = twinring_input::quantity::rate(text).map_err(|_| expected())?;
                u32::try_from(rate).ok().filter(|it| *it > 0).map(Load::Rate).ok_or_else(expected)
            }
        }
    }
}

const PAIRS_MIN: usize = 8;

/// Packets per second of one stream of UDP; 50 is a telephone call.
const PACKETS_PER_S: u32 = 50;

impl Question {
    /// The experiment: that of `quick` for this protocol, with what is asked for.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`] when a number is out of range, or a subject cannot serve this.
    pub fn experiment(&self) -> Result<Experiment, LabError> {
        let comparisons = self.subjects.len().saturating_sub(1) * self.loads.len().max(1);
        let pairs = self
            .pairs
            .unwrap_or_else(|| (least_pairs(family_level(comparisons)) + 2).max(PAIRS_MIN));
        let only = Overrides { protocol: Some(self.protocol), ..Overrides::default() };
        let mut experiment = Experiment::find("quick")?.with(&only)?;
        experiment.name.clone_from(&self.name);
        experiment.about = "which server needs less CPU for one workload".to_owned();
        experiment.grids_mut().for_each(|(_, grid)| grid.under_test = UnderTest::Server);
        experiment.with(&Overrides {
            pairs: Some(pairs),
            spare_pairs: Some(pairs),
            warmup_s: Some(0.25),
            axes: self.axes()?,
            net: Some(self.net.clone()),
            subjects: self.subjects.clone(),
            ..Overrides::default()
        })
    }

    fn axes(&self) -> Result<Vec<(String, Vec<u32>)>, LabError> {
        let of = |pick: fn(&Load) -> Option<u32>| -> Vec<u32> {
            self.loads.iter().filter_map(pick).collect()
        };
        let shares = of(|load| if let Load::Percent(share) = load { Some(*share) } else { None });
        let rates = of(|load| if let Load::Rate(rate) = load { Some(*rate) } else { None });
        let closed = of(|load| (*load == Load::Max).then_some(0));
        let mut axes = vec![("bytes", vec![self.bytes])];
        if self.protocol == Protocol::Udp {
            let each = |rate: &u32| (rate / self.clients.max(1)).max(1);
            let rates = if rates.is_empty() {
                vec![PACKETS_PER_S]
            } else {
                rates.iter().map(each).collect()
            };
            axes.extend([("streams", vec![self.clients]), ("packets_per_s", rates)]);
        } else {
            if !shares.is_empty() && !rates.is_empty() {
                return Err(LabError::BadExperiment {
                    place: "--load".to_owned(),
                    problem: "shares and rates together".to_owned(),
                    expected: "either of them, and max".to_owned(),
                });
            }
            let axis = if rates.is_empty() { "load_percent" } else { "rate_per_s" };
            axes.push((axis, [shares, rates, closed].concat()));
            axes.push(("connections", vec![self.clients]));
        }
        if self.protocol == Protocol::Http {
            axes.push(("tls", vec![u32::from(self.tls)]));
        }
        Ok(axes.into_iter().map(|(key, values)| (key.to_owned(), values)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Axis, NetKind};

    fn question(protocol: Protocol, subjects: &[&str], loads: &[Load]) -> Question {
        Question {
            name: "compare".to_owned(),
            protocol,
            subjects: subjects.iter().map(|text| Subject::parse(text).unwrap()).collect(),
            clients: 100,
            bytes: 128,
            tls: false,
            loads: loads.to_vec(),
            net: "lo".parse().unwrap(),
            pairs: None,
        }
    }

    #[test]
    fn a_question_is_an_experiment_with_enough_pairs() {
        let both = [Load::Percent(25), Load::Max];
        let experiment = question(Protocol::Tcp, &["epoll", "io_uring", "mine=./a {addr}"], &both)
            .experiment()
            .unwrap();
        let cells = experiment.cells(&[NetKind::Lo]);
        let percents: Vec<_> = cells.iter().map(|cell| cell.point.on(Axis::LoadPercent)).collect();
        assert_eq!(percents, [Some(25), Some(0)]);
        // Four comparisons take 8 pairs.
        assert_eq!((experiment.pairs, experiment.contests(Protocol::Tcp).len()), (10, 2));
        let udp = question(Protocol::Udp, &["epoll", "io_uring"], &[Load::Rate(20_000)])
            .experiment()
            .unwrap();
        assert_eq!(udp.cells(&[NetKind::Lo])[0].point.on(Axis::PacketsPerS), Some(200));
        let http = question(Protocol::Http, &["epoll", "nginx"], &[Load::Rate(5000)])
            .experiment()
            .unwrap();
        assert_eq!(http.cells(&[NetKind::Lo])[0].point.on(Axis::RatePerS), Some(5000));
        // Only the first rate was measured, and `max` beside it was not.
        let loads = [Load::Rate(5000), Load::Max, Load::Rate(20_000)];
        let rates = question(Protocol::Tcp, &["epoll", "io_uring"], &loads).experiment().unwrap();
        let cells = rates.cells(&[NetKind::Lo]);
        let rates: Vec<_> = cells.iter().map(|cell| cell.point.on(Axis::RatePerS)).collect();
        assert_eq!(rates, [Some(5000), Some(20_000), Some(0)]);
        let mixed = [Load::Percent(25), Load::Rate(5000)];
        assert!(question(Protocol::Tcp, &["epoll", "io_uring"], &mixed).experiment().is_err());
        let none = Question { clients: 0, ..question(Protocol::Tcp, &["epoll"], &both) };
        assert!(none.experiment().is_err());
    }

    #[test]
    fn loads_are_read_from_the_command_line() {
        for (text, load) in [
            ("25%", Load::Percent(25)),
            ("max", Load::Max),
            ("5000", Load::Rate(5000)),
            ("5k", Load::Rate(5000)),
        ] {
            assert_eq!(text.parse(), Ok(load));
        }
        for wrong in ["", "0%", "100%", "0", "-1", "much"] {
            assert!(wrong.parse::<Load>().is_err(), "{wrong}");
        }
    }
}
