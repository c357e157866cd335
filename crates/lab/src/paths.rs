//! Where files lie on the machine that measures. It helps nobody to repeat an experiment elsewhere, and may
//! name people and their projects: bundles do without it.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::json;

/// Paths, each with what stands for it in a bundle.
#[derive(Default)]
pub(crate) struct Paths(Vec<(String, String)>);

impl Paths {
    /// Of programs the name is left, of files in the bundle what follows its directory.
    pub(crate) fn of<'a>(programs: impl Iterator<Item = &'a Path>, bundle: &Path) -> Paths {
        let mut paths = Vec::new();
        for program in programs.filter(|it| it.is_absolute()) {
            let name = program.file_name().map(|name| name.to_string_lossy().into_owned());
            paths.extend(name.map(|name| (program.display().to_string(), name)));
        }
        for directory in [Some(bundle.to_owned()), bundle.canonicalize().ok()].into_iter().flatten()
        {
            if directory.is_absolute() {
                paths.push((format!("{}/", directory.display()), String::new()));
            }
        }
        // A path may be the beginning of another one.
        paths.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Paths(paths)
    }

    /// A text without them.
    pub(crate) fn hidden(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (path, name)| text.replace(path, name))
    }

    /// The same with all texts in it changed.
    pub(crate) fn hidden_in<T: Serialize + DeserializeOwned>(&self, it: T) -> T {
        let Ok(mut value) = serde_json::to_value(&it) else { return it };
        self.hide(&mut value);
        json::from_value(&value).unwrap_or(it)
    }

    fn hide(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.hidden(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.hide(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// A command without what is only true here: the directories of its program, of peers and of bundles.
pub(crate) fn for_anywhere(mut command: Vec<String>) -> Vec<String> {
    for option in ["--out", "--peers"] {
        command.retain(|argument| !argument.starts_with(&format!("{option}=")));
        while let Some(at) = command.iter().position(|argument| argument == option) {
            command.drain(at..command.len().min(at + 2));
        }
    }
    if let Some(program) = command.first_mut() {
        let name = PathBuf::from(&*program).file_name().map(|it| it.to_string_lossy().into_owned());
        *program = name.unwrap_or_default();
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_what_is_in_the_bundle_stay() {
        let programs = ["/home/me/bin/twinring", "/home/me/bin/twinring-2", "nginx"].map(Path::new);
        let paths = Paths::of(programs.into_iter(), Path::new("/home/me/bundles/quick"));
        let command =
            ["/home/me/bin/twinring", "--root", "--verify=/home/me/bundles/quick/work/1.bin"];
        let command = command.map(str::to_owned).to_vec();
        assert_eq!(paths.hidden_in(command), ["twinring", "--root", "--verify=work/1.bin"]);
        assert_eq!(paths.hidden("/home/me/bin/twinring-2"), "twinring-2");
        let command = ["./a/b", "c/d", "--out", "e", "--json", "--peers", "g", "--out=f", "--out"]
            .map(str::to_owned);
        assert_eq!(for_anywhere(command.to_vec()), ["b", "c/d", "--json"]);
        assert!(for_anywhere(Vec::new()).is_empty());
    }
}
