//! `docs/json.schema.json` is generated from the types, and the examples in `docs/json.md` have their fields.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p twinring-wire --lib schema::` regenerates it.

use std::path::PathBuf;

use schemars::{Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::load::Mark;
use crate::serve::{Ready, Statistics};
use crate::{HttpResult, TcpResult, UdpResult};

const HOW: &str = "UPDATE_SNAPSHOTS=1 cargo test -p twinring-wire --lib schema::";

fn schema() -> Value {
    let mut generator = SchemaGenerator::default();
    let lines: [Schema; 6] = [
        generator.subschema_for::<Ready>(),
        generator.subschema_for::<Statistics>(),
        generator.subschema_for::<Mark>(),
        generator.subschema_for::<TcpResult>(),
        generator.subschema_for::<HttpResult>(),
        generator.subschema_for::<UdpResult>(),
    ];
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A JSON line that `twinring serve` or `twinring load` prints",
        "anyOf": lines,
        "$defs": generator.take_definitions(true),
    })
}

fn document(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn assert_document(name: &str, expected: &str) {
    let path = document(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let is = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = expected.lines().zip(is.lines()).find(|(expected, is)| expected != is);
    assert!(
        expected == is,
        "docs/{name} differs from the types of crates/wire (first in {differ:#?}); to write it \
         again: {HOW}"
    );
}

#[test]
fn the_schema_is_that_of_the_types() {
    let mut schema = schema();
    let definitions = schema["$defs"].take();
    // A line for each type: differences can be read, and it stays short.
    let lines: Vec<String> = (definitions.as_object().unwrap().iter())
        .map(|(name, definition)| format!("{}: {definition}", json!(name)))
        .collect();
    schema.as_object_mut().unwrap().remove("$defs");
    let head = schema.to_string();
    let head = head.strip_suffix('}').unwrap();
    let text = format!("{head},\n\"$defs\": {{\n{}\n}}}}\n", lines.join(",\n"));
    assert_document("json.schema.json", &text);
}

fn fields(prefix: &str, value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(name, value)| {
            into.push(format!("{prefix}{name}"));
            fields(&format!("{prefix}{name}."), value, into);
        }),
        Value::Array(list) => {
            list.iter().for_each(|value| fields(&format!("{prefix}[]."), value, into));
        }
        _ => {}
    }
}

/// Reads an example as a type and writes it again: it must have all fields, and no others.
fn assert_example<T: Serialize + DeserializeOwned>(example: &Value) {
    let read: T = serde_json::from_value(example.clone())
        .unwrap_or_else(|error| panic!("an example in docs/json.md: {error}: {example}"));
    let [mut is, mut expected] = [Vec::new(), Vec::new()];
    fields("", example, &mut is);
    fields("", &serde_json::to_value(&read).unwrap(), &mut expected);
    assert_eq!(is, expected, "an example in docs/json.md has other fields than its type");
}

#[test]
fn the_examples_of_the_document_have_the_fields_of_the_types() {
    let text = std::fs::read_to_string(document("json.md")).unwrap();
    let blocks = text.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next());
    let examples = blocks.flat_map(|block| serde_json::Deserializer::from_str(block).into_iter());
    let mut seen = Map::new();
    for example in examples.filter_map(Result::<Value, _>::ok) {
        let text = |field: &str| example[field].as_str().unwrap_or_default().to_owned();
        match (text("event").as_str(), text("schema").as_str()) {
            ("ready", _) => assert_example::<Ready>(&example),
            ("final", _) => assert_example::<Statistics>(&example),
            ("window_start" | "window_end", _) => assert_example::<Mark>(&example),
            ("result", crate::tcp::SCHEMA) => assert_example::<TcpResult>(&example),
            _ => continue,
        }
        seen.insert(text("event") + &text("schema"), Value::Null);
    }
    assert_eq!(seen.len(), 5, "docs/json.md has the lines of a server and of a load: {seen:?}");
}
