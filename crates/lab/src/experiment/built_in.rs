//! The experiments that come with the program.

use crate::error::LabError;

/// A name that differs from another by as many letters is taken for a typing error.
const EDITS_MAX: usize = 2;

/// Names and texts of the experiments that come with the program.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("quick", include_str!("../../experiments/quick.toml")),
    ("aa", include_str!("../../experiments/aa.toml")),
    ("grid", include_str!("../../experiments/grid.toml")),
    ("schedule", include_str!("../../experiments/schedule.toml")),
    ("load-curve", include_str!("../../experiments/load-curve.toml")),
    ("scaling", include_str!("../../experiments/scaling.toml")),
    ("churn", include_str!("../../experiments/churn.toml")),
    ("ablation", include_str!("../../experiments/ablation.toml")),
    ("udp-streams", include_str!("../../experiments/udp-streams.toml")),
    ("http", include_str!("../../experiments/http.toml")),
    ("peers", include_str!("../../experiments/peers.toml")),
    ("published-frevib", include_str!("../../experiments/published-frevib.toml")),
    ("published-joakimthun", include_str!("../../experiments/published-joakimthun.toml")),
    ("published-go-uring", include_str!("../../experiments/published-go-uring.toml")),
    ("published-nginx", include_str!("../../experiments/published-nginx.toml")),
    ("published-asyncudp", include_str!("../../experiments/published-asyncudp.toml")),
];

/// The text of a built-in experiment.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

pub(super) fn unknown(name: &str) -> LabError {
    let known: Vec<&str> = BUILT_IN.iter().map(|(known, _)| *known).collect();
    let like = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), *known)).min();
    let like = like.filter(|(edits, _)| *edits <= EDITS_MAX);
    let suggestion = like.map_or(String::new(), |(_, it)| format!(", did you mean `{it}`?"));
    LabError::unknown(format!(
        "no experiment `{name}`{suggestion}; built in are: {}; or give the path of a TOML file",
        known.join(", ")
    ))
}
