//! `docs/bundle.schema.json` is generated from the types: `UPDATE_SNAPSHOTS=1 cargo test -p twinring-lab --lib schema::`
//! writes it.

use crate::diff::Diff;
use crate::record::RunRecord;
use crate::result::Bundle;
use schemars::SchemaGenerator;
use serde_json::json;
use std::path::Path;

#[test]
fn the_schema_is_that_of_the_types() {
    let mut generator = SchemaGenerator::default();
    let files = [
        generator.subschema_for::<Bundle>(),
        generator.subschema_for::<RunRecord>(),
        generator.subschema_for::<Diff>(),
    ];
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bundle.json, a line of runs.jsonl, or what `twinring lab diff --json` prints",
        "anyOf": files,
    })
    .to_string();
    // A line for each type: differences can be read, and it stays short.
    let types = generator.take_definitions(true).into_iter();
    let types: Vec<String> = types.map(|(name, of)| format!("{}: {of}", json!(name))).collect();
    let head = head.strip_suffix('}').expect("an object");
    let text = format!("{head},\n\"$defs\": {{\n{}\n}}}}\n", types.join(",\n"));

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bundle.schema.json");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).expect("the place of the documents");
    }
    let is = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = text.lines().zip(is.lines()).find(|(expected, is)| expected != is);
    assert!(text == is, "{path:?} differs from the types, first in {differ:#?}: write it again");
}
