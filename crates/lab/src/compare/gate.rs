//! The words of `--fail-if`.
//!
//! ```text
//! gate    = [ "possibly" ] [ "relative" ] FIGURE limit { where }
//!         | "verdict" "changed" { where }
//! limit   = ">" PERCENT "%" | "<" PERCENT "%"
//! where   = "of" SUBJECT | "in" CELL
//! ```
//!
//! `SUBJECT` and `CELL` are words, or stand in quotes. A cell is written as reports write it, with
//! its network or without.

use std::fmt;
use std::str::FromStr;

use crate::summary::{METRICS, Metric};

/// A condition under which a comparison fails.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    pub(super) condition: Condition,
    /// The only subject it is about.
    pub(super) subject: Option<String>,
    /// The only cell it is about.
    pub(super) cell: Option<String>,
}

/// What a gate looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Condition {
    Change(Limit),
    VerdictChanged,
}

/// A limit on the change of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limit {
    pub(super) metric: Metric,
    /// Of the ratio to the baseline, not of the figure itself.
    pub(super) relative: bool,
    /// Breached as soon as that cannot be excluded, not only when it is proven.
    pub(super) possibly: bool,
    pub(super) side: LimitSide,
    /// Above 0 or 0 for [`LimitSide::Above`], below or 0 for the other.
    pub(super) percent: f64,
}

/// On which side of a limit a change breaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitSide {
    Above,
    Below,
}

/// What is wrong with a gate, where, and what was expected there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateError {
    text: String,
    /// Characters before the place.
    at: usize,
    problem: String,
    expected: String,
}

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GateError { text, at, problem, expected } = self;
        write!(f, "{problem}; expected {expected}\n  {text}\n  {}^", " ".repeat(*at))
    }
}

impl std::error::Error for GateError {}

const LIMITS: &str = "`> 3%` for an increase or `< -3%` for a decrease";
const WHERES: &str = "`of SUBJECT`, `in CELL`, or the end";
const NAME: &str = "a name, in quotes if there are blanks in it";

impl Gate {
    /// The metric that it is about, if it is about one.
    pub(super) fn metric(&self) -> Option<Metric> {
        match self.condition {
            Condition::Change(limit) => Some(limit.metric),
            Condition::VerdictChanged => None,
        }
    }
}

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Gate, GateError> {
        let mut parser = Parser { text, tokens: tokens(text)?, next: 0 };
        let condition = parser.condition()?;
        let mut gate = Gate { condition, subject: None, cell: None };
        while let Some(token) = parser.take() {
            let place = match token.word() {
                Some("of") => &mut gate.subject,
                Some("in") => &mut gate.cell,
                _ => return Err(parser.unexpected(&token, WHERES)),
            };
            if place.is_some() {
                return Err(parser.unexpected(&token, "each of `of` and `in` once"));
            }
            *place = Some(parser.name()?);
        }
        // As cells were called before there was a third network.
        for (old, new) in [(" on veth", " on rps"), (" on loopback", " on lo")] {
            if let Some(point) = gate.cell.as_deref().and_then(|it| it.strip_suffix(old)) {
                gate.cell = Some(format!("{point}{new}"));
            }
        }
        Ok(gate)
    }
}

/// A piece of a gate, and where it begins, in characters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    at: usize,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Word(String),
    Quoted(String),
    /// One of [`SIGNS`].
    Sign(char),
}

const SIGNS: &str = "<>%";

impl Token {
    fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Word(text) | Kind::Quoted(text) => write!(f, "`{text}`"),
            Kind::Sign(sign) => write!(f, "`{sign}`"),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, GateError> {
    let mut tokens = Vec::new();
    let mut rest = text.chars().enumerate().peekable();
    while let Some((at, first)) = rest.next() {
        let kind = match first {
            blank if blank.is_whitespace() => continue,
            sign if SIGNS.contains(sign) => Kind::Sign(sign),
            quote @ ('"' | '\'') => {
                let mut quoted = String::new();
                loop {
                    match rest.next() {
                        Some((_, end)) if end == quote => break Kind::Quoted(quoted),
                        Some((_, inner)) => quoted.push(inner),
                        None => {
                            return Err(GateError {
                                text: text.to_owned(),
                                at,
                                problem: "a quote is not closed".to_owned(),
                                expected: format!("another {quote}"),
                            });
                        }
                    }
                }
            }
            first => {
                let mut word = String::from(first);
                let goes_on = |(_, c): &(usize, char)| is_bare(*c);
                while let Some((_, c)) = rest.next_if(goes_on) {
                    word.push(c);
                }
                Kind::Word(word)
            }
        };
        tokens.push(Token { at, kind });
    }
    Ok(tokens)
}

/// Whether a character needs no quotes.
fn is_bare(c: char) -> bool {
    !c.is_whitespace() && !SIGNS.contains(c) && c != '"' && c != '\''
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    next: usize,
}

impl Parser<'_> {
    fn take(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.next).cloned();
        self.next += 1;
        token
    }

    /// Takes the next word if it is this one.
    fn take_if(&mut self, word: &str) -> bool {
        let is_it = self.tokens.get(self.next).and_then(Token::word) == Some(word);
        self.next += usize::from(is_it);
        is_it
    }

    fn error(&self, at: usize, problem: String, expected: &str) -> GateError {
        GateError { text: self.text.to_owned(), at, problem, expected: expected.to_owned() }
    }

    fn unexpected(&self, token: &Token, expected: &str) -> GateError {
        self.error(token.at, token.to_string(), expected)
    }

    /// The next token, whatever it is.
    fn expect(&mut self, expected: &str) -> Result<Token, GateError> {
        let end = self.text.chars().count();
        self.take().ok_or_else(|| self.error(end, "it ends".to_owned(), expected))
    }

    fn condition(&mut self) -> Result<Condition, GateError> {
        if self.take_if("verdict") {
            let token = self.expect("`changed`")?;
            return match token.word() {
                Some("changed") => Ok(Condition::VerdictChanged),
                _ => Err(self.unexpected(&token, "`changed`")),
            };
        }
        let possibly = self.take_if("possibly");
        let relative = self.take_if("relative");
        let headlines: Vec<&str> =
            METRICS.iter().filter(|it| it.is_headline()).map(|it| it.name()).collect();
        let figures = format!(
            "a figure: {}, or another field of `figures`, as notifications or server.user_ns",
            headlines.join(", ")
        );
        let expected = match (possibly, relative) {
            (false, false) => format!("{figures}; or `verdict changed`"),
            _ => figures,
        };
        let token = self.expect(&expected)?;
        let metric = token.word().and_then(Metric::named);
        let metric = metric.ok_or_else(|| self.unexpected(&token, &expected))?;
        let (side, percent) = self.limit()?;
        Ok(Condition::Change(Limit { metric, relative, possibly, side, percent }))
    }

    fn limit(&mut self) -> Result<(LimitSide, f64), GateError> {
        let token = self.expect(LIMITS)?;
        let side = match token.kind {
            Kind::Sign('>') => LimitSide::Above,
            Kind::Sign('<') => LimitSide::Below,
            _ => return Err(self.unexpected(&token, LIMITS)),
        };
        let number = self.expect("a number")?;
        let percent = number.word().and_then(|word| word.parse::<f64>().ok());
        let percent = percent.filter(|percent| percent.is_finite());
        let percent = percent.ok_or_else(|| self.unexpected(&number, "a number"))?;
        match self.expect("`%`")? {
            Token { kind: Kind::Sign('%'), .. } => {}
            other => return Err(self.unexpected(&other, "`%`")),
        }
        // A limit on the other side of nothing would be breached by no change at all.
        let is_on_its_side = match side {
            LimitSide::Above => percent >= 0.0,
            LimitSide::Below => (-100.0..=0.0).contains(&percent),
        };
        if !is_on_its_side {
            return Err(self.unexpected(&number, LIMITS));
        }
        Ok((side, percent))
    }

    fn name(&mut self) -> Result<String, GateError> {
        let token = self.expect(NAME)?;
        match token.kind {
            Kind::Word(name) | Kind::Quoted(name) if !name.is_empty() => Ok(name),
            _ => Err(self.unexpected(&token, NAME)),
        }
    }
}

/// The shortest way to write it.
impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.condition {
            Condition::VerdictChanged => f.write_str("verdict changed")?,
            Condition::Change(Limit { metric, relative, possibly, side, percent }) => {
                f.write_str(if possibly { "possibly " } else { "" })?;
                f.write_str(if relative { "relative " } else { "" })?;
                let sign = if side == LimitSide::Above { '>' } else { '<' };
                write!(f, "{metric} {sign} {percent}%")?;
            }
        }
        for (word, name) in [("of", &self.subject), ("in", &self.cell)] {
            let Some(name) = name else { continue };
            match name {
                bare if bare.chars().all(is_bare) => write!(f, " {word} {bare}")?,
                // What was read has at most one kind of quote in it.
                name if name.contains('"') => write!(f, " {word} '{name}'")?,
                name => write!(f, " {word} \"{name}\"")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Gate {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn gates_are_read() {
        let limit = |metric, side, percent| Limit {
            metric,
            relative: false,
            possibly: false,
            side,
            percent,
        };
        let plain = limit(Metric::ServerCpuNs, LimitSide::Above, 3.0);
        for (text, condition, subject, cell) in [
            ("server_cpu > 3%", Condition::Change(plain), None, None),
            ("server_cpu>3 %", Condition::Change(plain), None, None),
            (
                "throughput < -5% of io_uring in \"100 x 128 B\"",
                Condition::Change(limit(Metric::RequestsPerS, LimitSide::Below, -5.0)),
                Some("io_uring"),
                Some("100 x 128 B"),
            ),
            (
                "possibly relative p99.9 > 10% in '100 x 128 B on veth' of \"our own\"",
                Condition::Change(Limit {
                    relative: true,
                    possibly: true,
                    ..limit(Metric::LatencyUsP99_9, LimitSide::Above, 10.0)
                }),
                Some("our own"),
                Some("100 x 128 B on rps"),
            ),
            ("verdict changed of io_uring", Condition::VerdictChanged, Some("io_uring"), None),
        ] {
            let gate = read(text);
            assert_eq!(gate.condition, condition, "{text}");
            assert_eq!((gate.subject.as_deref(), gate.cell.as_deref()), (subject, cell), "{text}");
            assert_eq!(read(&gate.to_string()), gate);
        }
    }

    #[test]
    fn errors_point_at_the_place_and_say_what_was_expected() {
        for (text, at, expected) in [
            ("", 0, "a figure"),
            ("speed > 3%", 0, "server_cpu, both_cpus"),
            ("possibly verdict changed", 9, "a figure"),
            ("verdict differs", 8, "`changed`"),
            ("p99 10%", 4, "`> 3%`"),
            ("p99 > ten%", 6, "a number"),
            ("p99 > nan%", 6, "a number"),
            ("p99 > 10", 8, "`%`"),
            ("p99 > 10 in x", 9, "`%`"),
            ("p99 > -10%", 6, "`> 3%`"),
            ("throughput < 5%", 13, "`< -3%`"),
            ("throughput < -101%", 13, "`< -3%`"),
            ("p99 > 10% for x", 10, "`of SUBJECT`"),
            ("p99 > 10% of", 12, "a name"),
            ("p99 > 10% of \"\"", 13, "a name"),
            ("p99 > 10% of a of b", 15, "once"),
            ("p99 > 10% in \"100 x", 13, "another \""),
        ] {
            let error = text.parse::<Gate>().unwrap_err();
            assert_eq!(error.at, at, "{text}: {error}");
            assert!(error.expected.contains(expected), "{text}: {error}");
            let shown = error.to_string();
            let caret = shown.lines().last().unwrap().strip_prefix("  ").unwrap();
            assert_eq!(caret.chars().position(|c| c == '^'), Some(at), "{shown}");
        }
    }

    fn name() -> impl Strategy<Value = Option<String>> {
        prop::option::of(
            "[^\"]{1,12}".prop_filter("no text of blanks only", |text| !text.is_empty()),
        )
    }

    proptest! {
        #[test]
        fn whatever_is_read_it_is_a_gate_or_an_error_inside_the_text(text in ".{0,60}") {
            match text.parse::<Gate>() {
                Ok(gate) => prop_assert_eq!(read(&gate.to_string()), gate),
                Err(error) => prop_assert!(error.at <= text.chars().count()),
            }
        }

        #[test]
        fn words_in_any_order_never_surprise(
            words in prop::collection::vec(prop::sample::select(vec![
                "possibly", "relative", "server_cpu", "p99.9", "verdict", "changed", ">", "<", "%",
                "3", "-3", "of", "in", "x", "\"a b\"", "'", "\"",
            ]), 0..12),
        ) {
            let text = words.join(" ");
            match text.parse::<Gate>() {
                Ok(gate) => prop_assert_eq!(read(&gate.to_string()), gate),
                Err(error) => prop_assert!(error.at <= text.chars().count()),
            }
        }

        #[test]
        fn every_gate_is_read_as_it_is_written(
            metric in prop::sample::select(METRICS),
            relative: bool,
            possibly: bool,
            above: bool,
            size in 0.0..100.0_f64,
            subject in name(),
            cell in name(),
        ) {
            let (side, percent) =
                if above { (LimitSide::Above, size) } else { (LimitSide::Below, -size) };
            let condition =
                Condition::Change(Limit { metric, relative, possibly, side, percent });
            let gate = Gate { condition, subject, cell };
            prop_assert_eq!(read(&gate.to_string()), gate);
        }
    }
}
