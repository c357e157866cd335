//! The report as Markdown.

use std::fmt::{Result, Write};

use super::document::document;
use super::model::{Detail, Item, Part, Rows, Tone};
use crate::result::Bundle;

/// The whole bundle as Markdown.
pub fn markdown(bundle: &Bundle) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = render(&mut text, bundle);
    text
}

fn render(out: &mut String, bundle: &Bundle) -> Result {
    let document = document(bundle, Detail::Full);
    writeln!(out, "# {}\n\n{}", escape(&document.title), escape(&document.about))?;
    for section in document.sections {
        if let Some((level, words)) = section.heading {
            writeln!(out, "\n{} {}", "#".repeat(level), escape(&words))?;
        }
        section.parts.into_iter().try_for_each(|part| write_part(out, part))?;
    }
    Ok(())
}

fn write_part(out: &mut String, part: Part) -> Result {
    match part {
        Part::Text(tone, text) => match tone {
            Tone::Plain | Tone::Soft | Tone::Finding(_) => writeln!(out, "\n{}", escape(&text)),
            Tone::Strong | Tone::Note | Tone::Verdict(_) => {
                writeln!(out, "\n**{}**", escape(&text))
            }
        },
        Part::Items(items) => {
            writeln!(out)?;
            for Item { mark, text, .. } in items {
                let mark = if mark.is_empty() { mark } else { format!("**{}**: ", escape(&mark)) };
                writeln!(out, "- {mark}{}", escape(&text))?;
            }
            Ok(())
        }
        Part::Rows(Rows { head: 0, rows, .. }) => {
            writeln!(out, "\n| | |\n|---|---|")?;
            rows.iter().try_for_each(|row| write_row(out, row))
        }
        Part::Rows(Rows { head, rows, .. }) => {
            writeln!(out)?;
            write_table(out, &if head == 2 { one_head(rows) } else { rows })
        }
        // It can hold no row of backticks: arguments are quoted.
        Part::Code(text) => writeln!(out, "\n```\n{text}\n```"),
        Part::Break => Ok(()),
    }
}

/// Markdown has one head row: title and unit share it.
fn one_head(mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    if let [titles, units, ..] = &mut rows[..] {
        for (title, unit) in titles.iter_mut().zip(units).filter(|(_, unit)| !unit.is_empty()) {
            *title = format!("{title}, {unit}");
        }
        rows.remove(1);
    }
    rows
}

pub(crate) fn write_table(out: &mut String, rows: &[Vec<String>]) -> Result {
    for (number, row) in rows.iter().enumerate() {
        write_row(out, row)?;
        if number == 0 {
            writeln!(out, "|---|{}", "---:|".repeat(row.len() - 1))?;
        }
    }
    Ok(())
}

fn write_row(out: &mut String, row: &[String]) -> Result {
    let cells: Vec<String> = row.iter().map(|cell| escape(cell)).collect();
    writeln!(out, "| {} |", cells.join(" | "))
}

/// Keeps text from being taken for Markdown or HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => escaped.push(' '),
            '|' | '<' | '>' | '`' | '*' | '_' | '\\' => escaped.extend(['\\', c]),
            _ => escaped.push(c),
        }
    }
    escaped
}
