//! Bundles of several occasions: how they are joined, and what is said of them.

use std::fs;
use std::path::Path;

use crate::common::records::{bundle, experiment, pairs};
use serde_json::Value;
use twinring_lab::summary::{Comparison, Metric, Verdict};
use twinring_lab::{LabError, add, markdown, merge, rerender, verify};

/// A bundle with this ratio, in a directory of this name.
fn occasion(parent: &Path, name: &str, ratio: f64) -> std::path::PathBuf {
    occasion_of(parent, name, pairs(8, ratio), |_| ())
}

fn occasion_of(
    parent: &Path,
    name: &str,
    runs: Vec<Value>,
    change: impl FnOnce(&mut Value),
) -> std::path::PathBuf {
    let directory = parent.join(name);
    fs::create_dir(&directory).unwrap();
    let mut bundle = serde_json::to_value(bundle(experiment(), runs.clone())).unwrap();
    // A summary and warnings are made below.
    bundle["summary"] = Value::Null;
    bundle["networks"] = serde_json::json!([{"kind": "rps", "server_ip": "10.0.0.1",
        "server_rps": "1", "client_rps": "2", "settings": []}]);
    change(&mut bundle);
    fs::write(directory.join("bundle.json"), bundle.to_string()).unwrap();
    let lines: String = runs.iter().map(|run| format!("{run}\n")).collect();
    fs::write(directory.join("runs.jsonl"), lines).unwrap();
    rerender(&directory).unwrap();
    directory
}

fn only(bundle: &twinring_lab::result::Bundle) -> Comparison {
    bundle.summary.as_ref().unwrap().cells[0].comparisons[0].clone()
}

#[test]
fn the_interval_of_three_occasions_holds_their_spread() {
    let place = tempfile::tempdir().unwrap();
    let three = [("a", 1.15), ("b", 1.25), ("c", 1.35)];
    let three = three.map(|(name, ratio)| occasion(place.path(), name, ratio));
    let joined = merge(&place.path().join("all"), &three).unwrap();
    let found = verify(&place.path().join("all")).unwrap();
    assert!(found.holds(), "{found}");
    let comparison = only(&joined);
    assert_eq!((joined.occasions.len(), comparison.pairs), (3, 24));
    let interval = comparison.ratio(Metric::ServerCpuNs).unwrap();
    let ends = interval.ends.unwrap();
    // Each occasion by itself is known to a percent; the next one may be far from it.
    assert!((interval.ratio - 1.25).abs() < 0.02, "{interval:?}");
    assert!(ends.low < 1.06 && ends.high > 1.45, "{ends:?}");
    let each: Vec<f64> = comparison.occasions.iter().map(|it| it.ratio.ratio).collect();
    assert!((each[0] - 1.15).abs() < 0.02 && (each[2] - 1.35).abs() < 0.02, "{each:?}");
    assert!((comparison.spread.unwrap().percent - 17.4).abs() < 2.0, "{:?}", comparison.spread);
    assert!(matches!(comparison.verdict, Verdict::Ahead { .. }), "{:?}", comparison.verdict);
    let report = markdown(&joined);
    assert!(report.contains("3 occasions, 17"), "{report}");
    assert!(report.contains("3 occasions on one machine"), "{report}");
}

#[test]
fn occasions_that_disagree_take_a_verdict_back() {
    let place = tempfile::tempdir().unwrap();
    let three = [("a", 0.97), ("b", 1.05), ("c", 1.12)];
    let three = three.map(|(name, ratio)| occasion(place.path(), name, ratio));
    let alone = rerender(&three[2]).unwrap();
    assert!(matches!(only(&alone).verdict, Verdict::Ahead { .. }));
    assert!(markdown(&alone).contains("one occasion"));
    let joined = merge(&place.path().join("all"), &three).unwrap();
    assert!(matches!(only(&joined).verdict, Verdict::NoDifference { .. }), "{:?}", only(&joined));
}

#[test]
fn two_occasions_are_shown_and_not_pooled() {
    let place = tempfile::tempdir().unwrap();
    let two = [("a", 1.2), ("b", 1.3)].map(|(name, ratio)| occasion(place.path(), name, ratio));
    let joined = merge(&place.path().join("both"), &two).unwrap();
    let comparison = only(&joined);
    assert_eq!(comparison.verdict, Verdict::TooFewOccasions { occasions: 2 });
    assert_eq!(
        (comparison.occasions.len(), comparison.ratio(Metric::ServerCpuNs).unwrap().ends),
        (2, None)
    );
    assert!(verify(&place.path().join("both")).unwrap().holds());
}

#[test]
fn an_occasion_is_added_on_the_same_machine_only() {
    let place = tempfile::tempdir().unwrap();
    let first = occasion(place.path(), "a", 1.2);
    let other = occasion_of(place.path(), "b", pairs(8, 1.3), |bundle| {
        bundle["machine"]["cpu_model"] = "another".into();
    });
    let error = add(&first, &other).unwrap_err();
    assert!(matches!(&error, LabError::CannotJoin { .. }), "{error}");
    assert!(error.to_string().contains("lab merge"), "{error}");
    assert!(other.exists() && verify(&first).unwrap().holds());
    for (name, ratio) in [("c", 1.22), ("d", 1.21)] {
        let next = occasion(place.path(), name, ratio);
        add(&first, &next).unwrap();
        assert!(!next.exists());
    }
    let found = verify(&first).unwrap();
    assert!(found.holds() && found.runs == 48, "{found}");
    let joined = rerender(&first).unwrap();
    assert_eq!(joined.occasions.len(), 3);
    assert!(matches!(only(&joined).verdict, Verdict::Ahead { .. }));
}

#[test]
fn other_experiments_are_not_joined() {
    let place = tempfile::tempdir().unwrap();
    let first = occasion(place.path(), "a", 1.2);
    let other = occasion_of(place.path(), "b", pairs(8, 1.2), |bundle| {
        bundle["experiment"]["pairs"] = 9.into();
    });
    let out = place.path().join("out");
    let error = merge(&out, &[&first, &other]).unwrap_err();
    assert!(error.to_string().contains("another experiment"), "{error}");
    assert!(!out.exists());
    assert!(merge(&first, &[&first, &first]).unwrap_err().to_string().contains("already"));
}
