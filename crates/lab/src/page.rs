//! The frame of pages that need nothing else: no font, no network, no script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = "\
    :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }\
    body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }\
    h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin: 1.5rem 0 0 }\
    article { border-top: 1px solid #8886; padding-bottom: .5rem }\
    article h2 { margin-top: .5rem } article p { margin: .25rem 0 }\
    .scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }\
    th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #8886 }\
    th:first-child, td:first-child, th:last-child, td:last-child { text-align: left }\
    .soft { opacity: .75 } code { overflow-wrap: anywhere }\
    @media print { body { margin: 0; max-width: none } }";

/// A whole page.
pub(crate) fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                // Or a browser asks the server of the page for one.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    page.into_string()
}
