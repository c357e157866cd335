//! Bundles whose files were compressed by `zstd` are read as they lie, and no file fills the memory.

use std::fs;
use std::path::Path;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use twinring_lab::{diff, rerender, verify};

use crate::tampering::copy;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    a_compressed_bundle_is_verified_compared_and_rendered_again,
    edits_of_compressed_files_are_found,
    damaged_compressed_files_are_refused,
    content_is_bounded_however_small_its_file_is
];

/// Does what `zstd --rm` does.
fn compress(directory: &Path, name: &str, edit: impl FnOnce(String) -> String) {
    let path = directory.join(name);
    let text = edit(fs::read_to_string(&path).unwrap());
    let packed = compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    fs::write(directory.join(format!("{name}.zst")), packed).unwrap();
    fs::remove_file(path).unwrap();
}

/// What is wrong with a bundle, as `twinring lab verify` says it.
fn told(directory: &Path) -> String {
    match verify(directory) {
        Ok(found) => found.problems.join("\n"),
        Err(error) => error.to_string(),
    }
}

const LARGE: [&str; 3] = ["runs.jsonl", "bundle.json", "report.html"];

fn a_compressed_bundle_is_verified_compared_and_rendered_again() {
    let (plain, bundle) = (copy(), copy());
    let bundle = bundle.path();
    let manifest = fs::read(bundle.join("manifest.sha256")).unwrap();
    LARGE.iter().for_each(|name| compress(bundle, name, |text| text));
    let found = verify(bundle).unwrap();
    assert!(found.holds() && found.figures > 10, "{found}");
    diff(plain.path(), bundle, &[], false).unwrap();

    rerender(bundle).unwrap();
    assert_eq!(fs::read(bundle.join("manifest.sha256")).unwrap(), manifest);
    let there = |name: &str| bundle.join(name).exists();
    assert!(there("runs.jsonl.zst") && !there("runs.jsonl"), "raw data stay as they are");
    assert!(there("report.html") && !there("report.html.zst"), "what is new takes the old's place");
    assert!(verify(bundle).unwrap().holds());
}

fn edits_of_compressed_files_are_found() {
    for (name, from, to) in [
        ("runs.jsonl", "\"answered\":", "\"answered\":1"),
        ("bundle.json", "\"cpu_model\": \"", "\"cpu_model\": \"Fast "),
        ("report.md", "epoll", "Epoll"),
        ("report.html", "</title>", "!</title>"),
    ] {
        let bundle = copy();
        compress(bundle.path(), name, |text| text.replacen(from, to, 1));
        let said = told(bundle.path());
        assert!(said.contains(&format!("{name} was changed")), "{name}: {said}");
    }
}

type Damage = fn(&mut Vec<u8>);

fn damaged_compressed_files_are_refused() {
    let damage: [(&str, Damage); 5] = [
        ("compressed: ", Vec::clear),
        ("compressed: ", |bytes| bytes[0] ^= 1),
        ("something follows", |bytes| bytes.extend_from_within(..)),
        ("checksum", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("", |bytes| bytes.truncate(bytes.len() / 2)),
    ];
    let bundle = copy();
    compress(bundle.path(), "runs.jsonl", |text| text);
    let path = bundle.path().join("runs.jsonl.zst");
    let whole = fs::read(&path).unwrap();
    for (expected, damage) in damage {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let said = told(bundle.path());
        assert!(said.contains("runs.jsonl") && said.contains(expected), "{expected}: {said}");
    }
    fs::write(bundle.path().join("runs.jsonl"), "").unwrap();
    let said = told(bundle.path());
    assert!(said.contains("is there twice, also as runs.jsonl.zst"), "{said}");
}

/// A few kilobytes can decompress to more than there is memory.
fn content_is_bounded_however_small_its_file_is() {
    for (name, bytes) in
        [("runs.jsonl", 5 << 20), ("bundle.json", 33 << 20), ("report.html", 33 << 20)]
    {
        let bundle = copy();
        compress(bundle.path(), name, |_| " ".repeat(bytes));
        let size = fs::metadata(bundle.path().join(format!("{name}.zst"))).unwrap().len();
        assert!(size < 100_000, "{name}: {size}");
        let said = told(bundle.path());
        assert!(said.contains(name) && said.contains("most"), "{name}: {said}");
    }
}
