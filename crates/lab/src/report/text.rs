//! Blocks as text, for the terminal and for Markdown.

use super::Element;
use super::page::WIDTH;

/// Pads the columns: the first to the left, the others to the right.
fn align(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let length = |text: &String| text.chars().count();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let pad = |(column, text): (usize, &String)| {
        let blanks = " ".repeat(widths[column] - length(text));
        if column == 0 { format!("{text}{blanks}") } else { format!("  {blanks}{text}") }
    };
    rows.iter()
        .map(|row| row.iter().enumerate().map(pad).collect::<String>().trim_end().to_owned())
        .collect()
}

/// Text in lines of at most `WIDTH` columns where words allow, the first and the others behind these.
pub fn wrapped(text: &str, first: &str, others: &str) -> Vec<String> {
    let options = textwrap::Options::new(WIDTH)
        .initial_indent(first)
        .subsequent_indent(others)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(std::borrow::Cow::into_owned).collect()
}

/// A message in lines of 80 columns.
pub fn lines_of(message: &str) -> String {
    message.lines().flat_map(|line| wrapped(line, "", "  ")).collect::<Vec<_>>().join("\n")
}

/// The columns of a table that fit beside the first, and then the others below, with the first again.
fn folded(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let pick = |from: usize, to: usize| -> Vec<Vec<String>> {
        rows.iter().map(|row| [&row[..1], &row[from..to]].concat()).collect()
    };
    let fits = |from: usize, to: usize| {
        align(&pick(from, to)).iter().all(|line| line.chars().count() <= WIDTH)
    };
    let (mut lines, mut from) = (Vec::new(), 1);
    while from < columns {
        let to = (from + 1..=columns).rev().find(|to| fits(from, *to)).unwrap_or(from + 1);
        // A column of sentences is no column.
        if fits(from, to) {
            lines.extend(align(&pick(from, to)));
        } else {
            let sentence =
                |row: &Vec<String>| wrapped(&format!("{}: {}", row[0], row[from]), "", "  ");
            lines.extend(rows.iter().flat_map(sentence));
        }
        from = to;
    }
    lines
}

/// Without control characters, which a bundle from elsewhere may have anywhere.
pub(super) fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// Blocks for the terminal.
pub(crate) fn plain(blocks: &[Element]) -> String {
    let lines =
        |lines: Vec<String>| -> String { lines.into_iter().map(|line| line + "\n").collect() };
    let of_block = |block: &Element| -> String {
        match block {
            Element::Heading(text) => format!("\n{}", lines(wrapped(text, "", ""))),
            Element::Text(text) => lines(wrapped(text, "", "")),
            Element::Item(text) => lines(wrapped(text, "- ", "  ")),
            Element::Table(rows) => lines(folded(rows)),
            Element::Folded(title, blocks) => format!("\n{title}\n{}", plain(blocks)),
        }
    };
    printable(&blocks.iter().map(of_block).collect::<String>())
}

/// Text that means nothing in Markdown.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '\\' | '`' | '*' | '_' | '[' | ']' | '#' | '|' | '~' => {
                escaped.extend(['\\', character])
            }
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\n' | '\r' => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

pub(crate) fn render_markdown(blocks: &[Element]) -> String {
    let row = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().map(|cell| escape(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let of_block = |block: &Element| match block {
        Element::Heading(text) => format!("\n## {}\n\n", escape(text)),
        Element::Text(text) => format!("{}\n\n", escape(text)),
        Element::Item(text) => format!("- {}\n", escape(text)),
        Element::Table(rows) => {
            let [head, rest @ ..] = &rows[..] else { return String::new() };
            let rule = "|---:".repeat(head.len().saturating_sub(1));
            let rest: String = rest.iter().map(row).collect();
            format!("{}|---{rule}|\n{rest}\n", row(head))
        }
        Element::Folded(title, blocks) => {
            format!("\n## {}\n\n{}", escape(title), render_markdown(blocks))
        }
    };
    blocks.iter().map(of_block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[[&str; 4]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect()
    }

    #[test]
    fn columns_are_aligned_by_characters_and_fold_below() {
        let wide = "x".repeat(50);
        let table = rows(&[["", "µs", &wide, "three"], ["bcd", "–", "2", "3"]]);
        let lines = folded(&table);
        assert!(
            lines.iter().all(|line| line.chars().count() <= WIDTH) && lines.len() == 2,
            "{lines:?}"
        );
        let wider = "x".repeat(76);
        let lines = folded(&rows(&[["a", "1", &wider, "three"], ["b", "1", "2", "3"]]));
        assert_eq!(lines.len(), 6, "{lines:?}");
        // The reason of a void comparison ran to 145 columns.
        let sentence = "a word ".repeat(20);
        let lines = folded(&rows(&[["a", "1", "why", "3"], ["b", "1", &sentence, "3"]]));
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:?}");
    }

    #[test]
    fn markdown_shows_text_as_it_is() {
        assert_eq!(escape("a|b <i> `c` _d_ &\n"), "a\\|b &lt;i&gt; \\`c\\` \\_d\\_ &amp; ");
    }
}
