//! A site of bundles: their reports, and an index that says what each shows.

use std::fs;
use std::path::{Path, PathBuf};

use maud::{Markup, html};

use crate::error::LabError;
use crate::page::page;
use crate::report;
use crate::result::Bundle;
use crate::verify::recompute;
use crate::warnings::warnings;

/// The most bundles on one index.
pub const GALLERY_BUNDLES_MAX: usize = 1000;

/// A bundle on the index.
struct Shown {
    /// The file of its report, beside the index.
    file: String,
    bundle: Bundle,
    runs: usize,
}

/// Writes the report of each bundle, and `index.html`, into a directory, which is made if there is
/// none. Every bundle is verified first, and its report is rendered from the raw data. Returns the
/// path of the index.
///
/// # Errors
/// [`LabError::NotABundle`] for one that fails verification, or whose directory has the name of
/// another's; otherwise when something cannot be read or written. Nothing is written before every
/// bundle is verified.
pub fn gallery(bundles: &[PathBuf], out: &Path) -> Result<PathBuf, LabError> {
    if let Some(one_more) = bundles.get(GALLERY_BUNDLES_MAX) {
        let why = format!("an index shows at most {GALLERY_BUNDLES_MAX} bundles");
        return Err(LabError::not_a_bundle(one_more, &why));
    }
    let mut pages: Vec<(Shown, String)> = Vec::new();
    for directory in bundles {
        let (found, stored, summary) = recompute(directory)?;
        if let Some(problem) = found.problems.first() {
            return Err(LabError::not_a_bundle(directory, problem));
        }
        let mut bundle = stored.bundle;
        bundle.summary = Some(summary);
        bundle.warnings = warnings(&bundle);
        let file = format!("{}.html", name_of(directory));
        if pages.iter().any(|(other, _)| other.file == file) {
            return Err(LabError::not_a_bundle(directory, "another bundle has the same name"));
        }
        let report = report::html(&bundle, &stored.runs);
        pages.push((Shown { file, bundle, runs: stored.runs.len() }, report));
    }
    fs::create_dir_all(out).map_err(|error| LabError::write(out, error))?;
    let write = |name: &str, text: &str| {
        let path = out.join(name);
        fs::write(&path, text).map_err(|error| LabError::write(&path, error)).map(|()| path)
    };
    for (shown, report) in &pages {
        write(&shown.file, report)?;
    }
    let shown: Vec<&Shown> = pages.iter().map(|(shown, _)| shown).collect();
    write("index.html", &page("Twinring: measurements", &index(&shown)))
}

/// The last part of a path, of letters that need no quoting in a link.
fn name_of(directory: &Path) -> String {
    let name = directory.file_name().unwrap_or(directory.as_os_str()).to_string_lossy();
    let kept = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    match name.chars().map(kept).collect::<String>() {
        // The index has this name.
        name if name == "index" => "index-".to_owned(),
        name => name,
    }
}

fn index(shown: &[&Shown]) -> Markup {
    html! {
        h1 { "Measurements of io_uring and epoll" }
        p {
            "Each report was rendered from the raw data of its bundle, which was verified. Ratios are of "
            "server CPU per request unless a report says otherwise."
        }
        @for Shown { file, bundle, runs } in shown {
            article {
                h2 { a href=(file) { (file.trim_end_matches(".html")) } }
                p { (bundle.experiment.about) }
                @for sentence in report::headline(bundle) { p { strong { (sentence) } } }
                p.soft {
                    (bundle.started) ", " (runs) " runs, Linux " (bundle.machine.kernel)
                    ", " (bundle.machine.cpu_model)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_reports_need_no_quoting() {
        for (directory, expected) in
            [("a/tcp-grid", "tcp-grid"), ("x y\"z", "x-y-z"), ("index", "index-"), ("..", "..")]
        {
            assert_eq!(name_of(Path::new(directory)), expected);
        }
    }

    #[test]
    fn what_is_no_bundle_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("site");
        assert!(gallery(&[place.path().to_owned()], &out).is_err());
        assert!(!out.exists());
    }
}
