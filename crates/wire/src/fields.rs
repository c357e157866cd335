//! Objects whose fields depend on the program that prints them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An object whose fields depend on the program that prints it, and on its version: counters or
/// features by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Fields(pub Map<String, Value>);

impl Fields {
    /// The fields of a structure; empty for anything else.
    pub fn of(structure: &impl Serialize) -> Fields {
        match serde_json::to_value(structure) {
            Ok(Value::Object(fields)) => Fields(fields),
            _ => Fields::default(),
        }
    }
}
