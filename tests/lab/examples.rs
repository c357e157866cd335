//! The examples of CONTRIBUTING.md are where it says.

use std::path::Path;

/// The parts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_places_of_each_example_have_its_word() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name));
    let contributing = read("CONTRIBUTING.md").expect("it is in the checkout");
    let mut examples = Vec::new();
    for row in contributing.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let &["", example, word, _, places, ""] = cells.as_slice() else { continue };
        let Some(word) = quoted(word).next() else { continue };
        for place in quoted(places) {
            let text = read(place).unwrap_or_else(|error| panic!("{example}: {place}: {error}"));
            assert!(text.contains(word), "{example}: there is no `{word}` in {place}");
        }
        examples.push(example);
    }
    assert_eq!(examples, ["protocol", "figure", "operation", "peer"]);
}
