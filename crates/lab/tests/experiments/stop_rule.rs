//! When a cell has been measured often enough.

use crate::common::{Sketch, run_text};
use twinring_lab::Stop;

#[test]
fn a_cell_is_measured_until_its_interval_is_narrow_enough() {
    let sketch = Sketch { others: &["foreign"], pairs: 8, window_s: 0.1, ..Default::default() };
    let runs_with = |until: &str| {
        let text = sketch.text().replace("net = ", &format!("until = {until}\nnet = "));
        let out = tempfile::tempdir().unwrap();
        let outcome = run_text(&text, out.path(), &Stop::new()).unwrap();
        outcome.bundle.summary.unwrap().cells.remove(0).subjects[0].runs
    };
    // Wider than any interval, unless the machine is so noisy that there are too few pairs for one.
    let enough = runs_with("{ interval_percent = 1000.0, max_pairs = 12 }");
    assert!((8..=12).contains(&enough), "{enough}");
    // Narrower than any machine is quiet: two blocks more at a time, up to the bound.
    assert_eq!(runs_with("{ interval_percent = 0.1, max_pairs = 11 }"), 12);
}
