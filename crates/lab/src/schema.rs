//! The schemas in `docs` are generated from the types: `UPDATE_SNAPSHOTS=1 cargo test -p twinring-lab --lib schema::`
//! writes them.

use crate::diff::Diff;
use crate::record::RunRecord;
use crate::result::Bundle;
use schemars::{Schema, SchemaGenerator};
use serde_json::json;
use std::path::Path;
use twinring_wire::load::Mark;
use twinring_wire::serve::{Ready, Statistics};
use twinring_wire::{HttpResult, TcpResult, UdpResult};

fn assert_document(name: &str, title: &str, lines: fn(&mut SchemaGenerator) -> Vec<Schema>) {
    let mut generator = SchemaGenerator::default();
    let lines = lines(&mut generator);
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "anyOf": lines,
    })
    .to_string();
    // A line for each type: differences can be read, and it stays short.
    let types = generator.take_definitions(true).into_iter();
    let types: Vec<String> = types.map(|(name, of)| format!("{}: {of}", json!(name))).collect();
    let head = head.strip_suffix('}').expect("an object");
    let text = format!("{head},\n\"$defs\": {{\n{}\n}}}}\n", types.join(",\n"));

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).expect("the place of the documents");
    }
    let is = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = text.lines().zip(is.lines()).find(|(expected, is)| expected != is);
    assert!(text == is, "{path:?} differs from the types, first in {differ:#?}: write it again");
}

#[test]
fn the_schemas_are_those_of_the_types() {
    let title = "bundle.json, a line of runs.jsonl, or what `twinring lab diff --json` prints";
    assert_document("bundle.schema.json", title, |it| {
        vec![
            it.subschema_for::<Bundle>(),
            it.subschema_for::<RunRecord>(),
            it.subschema_for::<Diff>(),
        ]
    });
    let title = "A JSON line that `twinring serve` or `twinring load` prints";
    assert_document("json.schema.json", title, |it| {
        vec![
            it.subschema_for::<Ready>(),
            it.subschema_for::<Statistics>(),
            it.subschema_for::<Mark>(),
            it.subschema_for::<TcpResult>(),
            it.subschema_for::<HttpResult>(),
            it.subschema_for::<UdpResult>(),
        ]
    });
}
