//! The diffs of CONTRIBUTING.md are true for this tree.

use std::path::Path;

#[test]
fn the_added_lines_of_each_example_are_in_their_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name));
    let contributing = read("CONTRIBUTING.md").expect("it is in the checkout");
    let diffs = contributing.split("```diff\n").skip(1).map(|rest| rest.split("```").next());
    let diffs: Vec<&str> = diffs.map(|diff| diff.expect("a split has a part")).collect();
    assert_eq!(diffs.len(), 4, "a protocol, a figure, an operation, a peer");
    for file in diffs.iter().flat_map(|diff| diff.split("+++ ").skip(1)) {
        let (name, lines) = file.split_once('\n').expect("a file has lines");
        let text = read(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let here: Vec<&str> = text.lines().map(str::trim).collect();
        let added: Vec<_> = lines.lines().filter_map(|line| line.strip_prefix('+')).collect();
        assert!(!added.is_empty(), "{name}: nothing is added");
        for line in added {
            assert!(here.contains(&line.trim()), "{name} does not have this line: {line}");
        }
    }
}
