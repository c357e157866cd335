//! When a cell has been measured often enough.

use crate::common::{Sketch, run_text, tried};
use twinring_lab::Stop;
use twinring_lab::audit::Severity;

#[test]
fn a_cell_is_measured_until_its_interval_is_narrow_enough() {
    let sketch = Sketch { others: &["foreign"], pairs: 8, window_s: 0.05, ..Default::default() };
    let runs_with = |until: &str| {
        let text = sketch.text().replace("net = ", &format!("until = {until}\nnet = "));
        let attempt = || {
            let out = tempfile::tempdir().unwrap();
            let outcome = run_text(&text, out.path(), &Stop::new()).unwrap();
            let cell = outcome.bundle.summary.unwrap().cells.remove(0);
            let void = cell.findings.iter().any(|it| it.severity == Severity::Void);
            (cell.subjects[0].runs, void)
        };
        // Who got no CPU in one of the short windows is void, and not measured any more.
        tried(attempt, |(_, void)| !void).0
    };
    // Wider than any interval, unless the machine is so noisy that there are too few pairs for one.
    let enough = runs_with("{ interval_percent = 1000.0, max_pairs = 12 }");
    assert!((8..=12).contains(&enough), "{enough}");
    // Narrower than any machine is quiet: two blocks more at a time, up to the bound.
    assert_eq!(runs_with("{ interval_percent = 0.1, max_pairs = 11 }"), 12);
}
