//! The examples in `docs/json.md` have the fields of the types.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::TcpResult;
use crate::load::Mark;
use crate::serve::{Ready, Statistics};

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
    let text = include_str!("../../../docs/json.md");
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
