//! What the placeholders of commands stand for.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::experiment::Arrivals;
use crate::host::Host;
use crate::site::Site;

/// Where a command runs.
pub(crate) struct Place<'a> {
    pub(crate) host: &'a Host,
    /// The files of HTTP on this host.
    pub(crate) site: Option<&'a Site>,
    /// The server's address.
    pub(crate) address: SocketAddr,
    /// Requests per second that the load generator is to send; 0 is a closed loop.
    pub(crate) rate_per_s: u32,
    /// How the requests of a schedule follow each other.
    pub(crate) arrivals: Arrivals,
    /// The command, placeholders still in it.
    pub(crate) template: &'a [String],
}

impl Place<'_> {
    /// The options of the load generator for its schedule; none for a closed loop.
    pub(crate) fn pace_options(&self) -> impl Iterator<Item = String> {
        let arrivals: &[&str] = match self.arrivals {
            Arrivals::Poisson if self.rate_per_s != 0 => &["--arrivals", "poisson"],
            _ => &[],
        };
        let arrivals = arrivals.iter().map(|word| (*word).to_owned());
        option_unless_zero("--rate", self.rate_per_s).chain(arrivals)
    }
}

pub(crate) fn option_unless_zero(option: &str, value: u32) -> impl Iterator<Item = String> {
    let words = (value != 0).then(|| [option.to_owned(), value.to_string()]);
    words.into_iter().flatten()
}

/// What the placeholders of commands stand for in a run.
pub(crate) struct Values {
    /// Parts of words.
    texts: BTreeMap<String, String>,
    /// Whole words that stand for any number of words.
    lists: BTreeMap<&'static str, Vec<String>>,
}

impl Values {
    pub(crate) fn none() -> Values {
        Values { texts: BTreeMap::new(), lists: BTreeMap::new() }
    }

    pub(crate) fn text(&mut self, name: &str, value: String) {
        self.texts.insert(name.to_owned(), value);
    }

    pub(crate) fn list(&mut self, name: &'static str, words: Vec<String>) {
        self.lists.insert(name, words);
    }

    /// The command with its placeholders filled in.
    pub(crate) fn fill(&self, template: &[String]) -> Vec<String> {
        let fill_word = |word: &String| {
            self.texts.iter().fold(word.clone(), |word, (name, value)| word.replace(name, value))
        };
        let words = template.iter().flat_map(|word| match self.lists.get(word.as_str()) {
            Some(words) => words.clone(),
            None => vec![fill_word(word)],
        });
        words.collect()
    }
}
