//! JSON values as types.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a type from a value, by way of its text. `serde_json::from_value` would compile a second
/// reader of every type in a bundle, hundreds of kilobytes of the program.
pub(crate) fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_str(&value.to_string()).map_err(|error| {
        // A place in this text is of no use to anybody.
        let place = format!(" at line {} column {}", error.line(), error.column());
        let text = error.to_string();
        text.strip_suffix(&place).unwrap_or(&text).to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_reads_what_serde_json_reads() {
        let numbers = [1.0 / 3.0, -0.0, f64::MIN_POSITIVE, 1e300, 9_007_199_254_740_993.0];
        let read: [f64; 5] = from_value(&json!(numbers)).unwrap();
        assert_eq!(read.map(f64::to_bits), numbers.map(f64::to_bits));
        assert_eq!(from_value::<Vec<u64>>(&json!([u64::MAX])).unwrap(), [u64::MAX]);
        for wrong in [json!({"a": "x"}), json!([]), json!(null), json!({"b": 1})] {
            let expected = serde_json::from_value::<Record>(wrong.clone()).unwrap_err();
            assert_eq!(from_value::<Record>(&wrong).unwrap_err(), expected.to_string());
        }
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Record {
        #[serde(rename = "a")]
        _a: u32,
    }
}
