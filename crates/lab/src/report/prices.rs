//! What the machine charges, and what of the differences that explains: tables and sentences.

use super::model::{Part, Section, apart};

use super::numbers::{NOTHING, interval, short, whole};
use super::table::{self, Style};
use crate::error::LabError;
use crate::prices::{
    Error, Explained, Explanation, OtherPrices, PRICES, Predicted, Price, TERMS, predict,
};
use crate::result::Bundle;

pub(super) const TITLE: &str = "What explains the differences";

/// How to read the tables.
pub(super) const NOTE: &str = "In ns of the server's CPU per request or packet: subject less baseline, so that less \
    than 0 is a saving. User time is what the kernel sampled; every other part is a count times its price. Rows whose \
    cell the prices were fitted to say so; the others are predictions.";

/// The prices: by the machine's list, and by the fit.
pub(super) fn prices(explanation: &Explanation<'_>) -> Vec<Vec<String>> {
    let titles = ["server's CPU pays, ns", "by the price list", "by the fit"];
    let ns = |price: Option<f64>| price.map_or(NOTHING.to_owned(), short);
    let row = |term: &usize| {
        let title = TERMS[*term].title.to_owned();
        vec![title, ns(explanation.measured[*term]), ns(explanation.fitted(*term))]
    };
    let rows = explanation.terms.iter().map(row);
    [titles.map(str::to_owned).to_vec()].into_iter().chain(rows).collect()
}

/// What is known of the prices, and how well they predict.
pub(super) fn sentences(bundle: &Bundle, explanation: &Explanation<'_>) -> Vec<String> {
    let mut sentences = Vec::new();
    let unavailable = |why: &str| format!("No price was measured: {why}.");
    match &bundle.prices {
        None => sentences.push(unavailable("the lab of this bundle did not")),
        Some(record) => sentences.extend(record.unavailable.as_deref().map(unavailable)),
    }
    match &explanation.errors {
        Some(errors) => sentences.push(judged(errors, explanation)),
        None => sentences.push(
            "The cells are too few to fit prices on half of them and judge by the others."
                .to_owned(),
        ),
    }
    for alike in explanation.alike() {
        sentences.push(format!(
            "These cells cannot tell {} apart: they have one factor on the prices that were measured, or all of it is \
             with the first.",
            alike.join(" and ")
        ));
    }
    let constant = explanation.constant();
    if !constant.is_empty() {
        let constant = constant.join(", ");
        sentences.push(format!("Hardly different between the sides, and not fitted: {constant}."));
    }
    if explanation.left_out > 0 {
        let left_out = explanation.left_out;
        sentences.push(format!("Left out for want of counts: {left_out} comparisons."));
    }
    sentences
}

fn judged(errors: &[Error; 3], explanation: &Explanation<'_>) -> String {
    let fitted = explanation.differences.iter().filter(|it| it.was_fitted).count();
    let predicted = explanation.differences.len() - fitted;
    let off = |error: &Error| {
        let Error { median_ns, largest_ns, median_percent, largest_percent } = error;
        format!(
            "{} ns ({median_percent:.1} % of the baseline's CPU) in the median and {} ns ({largest_percent:.1} %) at most",
            whole(*median_ns),
            whole(*largest_ns)
        )
    };
    let [nothing, measured, by_fit] = errors;
    let known = explanation.measured.iter().any(Option::is_some);
    let at_list =
        if known { format!("; at the price list by {}", off(measured)) } else { String::new() };
    format!(
        "Prices were fitted to {fitted} differences in half of the cells, drawn by the seed. They predict the other \
         {predicted} wrong by {}{at_list}. Without prices, saying that the sides do not differ is wrong by {}.",
        off(by_fit),
        off(nothing)
    )
}

/// A table for each two that were compared: a title row, then a row for each cell.
pub(super) fn tables(explanation: &Explanation<'_>) -> Vec<Vec<Vec<String>>> {
    let mut contests: Vec<Vec<&Explained<'_>>> = Vec::new();
    for it in &explanation.differences {
        let names =
            |it: &Explained<'_>| [it.comparison.subject.clone(), it.comparison.baseline.clone()];
        match contests.iter_mut().find(|contest| names(contest[0]) == names(it)) {
            Some(contest) => contest.push(it),
            None => contests.push(vec![it]),
        }
    }
    contests.iter().map(|contest| table(explanation, contest)).collect()
}

fn table(explanation: &Explanation<'_>, contest: &[&Explained<'_>]) -> Vec<Vec<String>> {
    let mut titles: Vec<String> = contest
        .iter()
        .take(1)
        .map(|it| format!("{} less {}", it.comparison.subject, it.comparison.baseline))
        .collect();
    titles.extend(["difference", "user time"].map(str::to_owned));
    titles.extend(explanation.parts().iter().map(|term| TERMS[*term].title.to_owned()));
    titles.extend(["unexplained", "prices"].map(str::to_owned));
    let row = |it: &&Explained<'_>| {
        let mut row = vec![it.cell.cell.to_string(), signed(it.difference_ns), signed(it.user_ns)];
        row.extend(explanation.parts().iter().map(|term| signed(it.parts_ns[*term])));
        row.push(signed(it.unexplained_ns));
        row.push(source(explanation, it).to_owned());
        row
    };
    [titles].into_iter().chain(contest.iter().map(row)).collect()
}

/// Where the prices of a row are from.
fn source(explanation: &Explanation<'_>, it: &Explained<'_>) -> &'static str {
    match (&explanation.errors, it.was_fitted) {
        (None, _) => "list",
        (Some(_), true) => "fitted",
        (Some(_), false) => "predicted",
    }
}

/// Nanoseconds with their sign.
fn signed(ns: f64) -> String {
    match ns.round() {
        0.0 => "0".to_owned(),
        rounded if rounded > 0.0 => format!("+{}", whole(rounded)),
        rounded => format!("-{}", whole(rounded.abs())),
    }
}

/// Every row of the tables as comma-separated values.
pub(super) fn csv(explanation: &Explanation<'_>) -> String {
    let mut text = String::from("cell,subject,baseline,difference_ns,user_ns");
    for term in &explanation.terms {
        text.extend([",", &*TERMS[*term].title.replace(' ', "_"), "_ns"]);
    }
    text.push_str(",unexplained_ns,prices\r\n");
    for it in &explanation.differences {
        let names = [&it.cell.cell.to_string(), &it.comparison.subject, &it.comparison.baseline];
        let quoted = names.map(|name| format!("\"{}\"", name.replace('"', "\"\"")));
        let parts = explanation.terms.iter().map(|term| it.parts_ns[*term]);
        let figures = [it.difference_ns, it.user_ns].into_iter().chain(parts);
        let figures = figures.chain([it.unexplained_ns]).map(|ns| ns.to_string());
        let mut fields: Vec<String> = quoted.into_iter().chain(figures).collect();
        fields.push(source(explanation, it).to_owned());
        text.extend([&*fields.join(","), "\r\n"]);
    }
    text
}

/// The explanation of a bundle for the terminal; with prices of another machine, what these would make of its
/// ratios.
///
/// # Errors
/// When the bundle explains nothing, or does not know the price of something that a price is given for.
pub fn explain(
    bundle: &Bundle,
    other: Option<&OtherPrices>,
    style: Style,
) -> Result<String, LabError> {
    let explanation = Explanation::of(bundle).ok_or_else(|| LabError::BadExperiment {
        place: bundle.experiment.name.clone(),
        problem: "this bundle has neither prices nor cells enough to find them".to_owned(),
        expected: "a bundle with prices (`twinring lab run prices`)".to_owned(),
    })?;
    let predicted = other.map(|other| predict(&explanation, other)).transpose()?;
    let tables = [list(bundle), prices(&explanation)].into_iter().chain(tables(&explanation));
    let predictions = predicted.as_deref().map(predictions);
    let mut told = sentences(bundle, &explanation);
    told.push(NOTE.to_owned());
    told.extend(predicted.map(|_| prediction_note(&explanation)));
    let tables = apart(TITLE, tables.chain(predictions));
    let told = told.into_iter().map(Part::plain).collect();
    let title = Section::new(Some((2, TITLE)), Vec::new());
    let sections = [title, Section::new(None, tables), Section::new(None, told)];
    Ok(table::sections(&sections, style))
}

/// The price list of the machine.
fn list(bundle: &Bundle) -> Vec<Vec<String>> {
    let mut rows = vec![["price list, ns", "median", "95 %", "of"].map(str::to_owned).to_vec()];
    for (name, about) in PRICES {
        match bundle.prices.as_ref().and_then(|it| it.list.get(name)) {
            Some(Price::Measured { median, low, high }) => {
                let ends = format!("[{}, {}]", short(*low), short(*high));
                rows.push(vec![name.to_owned(), short(*median), ends, about.to_owned()]);
            }
            Some(Price::Unavailable { unavailable }) => {
                let why = crate::error::shortened(unavailable, 60);
                rows.push(vec![name.to_owned(), NOTHING.to_owned(), NOTHING.to_owned(), why]);
            }
            None => {}
        }
    }
    rows
}

fn predictions(predicted: &[Predicted<'_>]) -> Vec<Vec<String>> {
    let titles = ["PREDICTION, times better", "measured here", "at the other prices", "error"];
    let row = |it: &Predicted<'_>| {
        let Explained { cell, comparison, .. } = it.of;
        let number = |value: Option<f64>, sign: &str| {
            value.map_or(NOTHING.to_owned(), |value| format!("{sign}{value:.2}"))
        };
        vec![
            format!("{} : {}, {}", comparison.subject, comparison.baseline, cell.cell),
            interval(it.of.ratio()),
            number(it.ratio, ""),
            number(it.error, "± "),
        ]
    };
    [titles.map(str::to_owned).to_vec()].into_iter().chain(predicted.iter().map(row)).collect()
}

fn prediction_note(explanation: &Explanation<'_>) -> String {
    let error = match &explanation.errors {
        Some(_) => {
            "The error is what predictions of this machine's own cells were off by, in the median"
        }
        None => "The error is not known: no cell was predicted here",
    };
    format!(
        "The ratios at the other prices are a PREDICTION and no measurement: counts and everything that has no price \
         are taken to be as they were here, although a machine on which something costs more may well make less of it. \
         {error}; that it is no larger elsewhere is not known either."
    )
}
