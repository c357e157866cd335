//! Reports as a browser shows them: every shape in light, in dark, on a phone and on paper.
//!
//! `REPORT_PICTURES=DIRECTORY cargo test -p twinring-lab --test evidence all_screens -- --ignored` keeps pages
//! and pictures there, for people to look at.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::browser::{BROWSERS, Browser};
use crate::common::stories::{STORIES, write};
use serde_json::{Value, json};

/// How a page is looked at: name, width in pixels, colour scheme.
const VIEWS: [(&str, u32, &str); 3] =
    [("wide", 1280, "light"), ("dark", 1280, "dark"), ("phone", 360, "light")];

/// A picture as the colours of its pixels.
struct Picture {
    width: usize,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn read(bytes: &[u8]) -> Picture {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut data = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut data).unwrap();
        let step = frame.color_type.samples();
        let pixels = data[..frame.buffer_size()].chunks(step).map(|it| [it[0], it[1], it[2]]);
        Picture { width: frame.width as usize, pixels: pixels.collect() }
    }

    /// Nothing below the end of the picture.
    fn at(&self, x: f64, y: f64) -> Option<[u8; 3]> {
        self.pixels.get(y as usize * self.width + x as usize).copied()
    }

    /// How many colours are seen by whoever looks at some of the pixels.
    fn colours(&self) -> usize {
        self.pixels.iter().step_by(7).collect::<BTreeSet<_>>().len()
    }
}

/// `rgb(1, 2, 3)` as its numbers.
fn rgb(text: &str) -> [u8; 3] {
    let inside = text.trim_start_matches("rgb(").trim_end_matches(')');
    let numbers: Vec<u8> = inside.split(", ").map(|it| it.parse().expect(text)).collect();
    numbers.try_into().expect(text)
}

/// Relative luminance as WCAG 2 defines it.
fn luminance(colour: [u8; 3]) -> f64 {
    let linear = colour.map(|part| match f64::from(part) / 255.0 {
        low if low <= 0.04045 => low / 12.92,
        part => ((part + 0.055) / 1.055).powf(2.4),
    });
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}

fn contrast(a: [u8; 3], b: [u8; 3]) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

/// Where the pages of all stories are, and where pictures are kept, if at all.
struct Pages {
    directory: PathBuf,
    kept: bool,
    _temporary: Option<tempfile::TempDir>,
}

impl Pages {
    fn new() -> Pages {
        match std::env::var_os("REPORT_PICTURES") {
            Some(directory) => Pages { directory: directory.into(), kept: true, _temporary: None },
            None => {
                let temporary = tempfile::tempdir().unwrap();
                let directory = temporary.path().to_owned();
                Pages { directory, kept: false, _temporary: Some(temporary) }
            }
        }
    }

    fn write(&self, story: &str) -> String {
        let directory = self.directory.join(story);
        std::fs::create_dir_all(&directory).unwrap();
        write(story, &directory);
        format!("file://{}", directory.join("report.html").display())
    }

    fn keep(&self, name: &str, bytes: &[u8]) {
        if self.kept {
            std::fs::write(self.directory.join(name), bytes).unwrap();
        }
    }
}

/// Pairs of texts within one drawing that lie on each other.
const COLLISIONS: &str = "[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(it => [it.textContent, it.getBoundingClientRect()]);
  const inset = 1.5, found = [];
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    if (p.width && p.left + inset < q.right && q.left + inset < p.right && p.top + inset < q.bottom
      && q.top + inset < p.bottom) found.push(a + ' / ' + b);
  }));
  const own = svg.getBoundingClientRect();
  boxes.forEach(([a, p]) => {
    if (p.width && (p.left < own.left - 1 || p.right > own.right + 1)) found.push(a + ' is cut off');
  });
  return found;
})";

/// The tiles of the maps: class, place on the page, colours.
const TILES: &str = "[...document.querySelectorAll('table.heat tbody td[class]')].map(it => {
  const box = it.getBoundingClientRect(), style = getComputedStyle(it);
  const visible = it.closest('.scroll').getBoundingClientRect();
  return { class: it.className, x: box.left + scrollX + 3.5, y: box.top + scrollY + 3.5,
    visible: box.left >= visible.left && box.left + 4 < visible.right, fill: style.backgroundColor,
    ink: getComputedStyle(it.querySelector('a') ?? it).color, wide: box.width, high: box.height };
})";

fn look(browser: &mut Browser, pages: &Pages, story: &str, url: &str, view: (&str, u32, &str)) {
    let (name, width, scheme) = view;
    let place = format!("{story}, {name}");
    browser.open(url, width, scheme);
    // What is folded is looked at as well.
    browser.evaluate("document.querySelectorAll('details').forEach(it => it.open = true)");
    let overflow = browser
        .evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]");
    assert_eq!(overflow[0], overflow[1], "{place}: the page scrolls to the side");
    assert_eq!(browser.evaluate(COLLISIONS), json!([]), "{place}: labels");
    assert_eq!(browser.evaluate("document.scripts.length"), 1, "{place}");
    // Without the long lists, pictures stay small.
    browser.evaluate("document.querySelectorAll('details').forEach(it => it.open = it.className === 'cell' && it.id === 'cell-0')");
    let tiles = browser.evaluate(TILES);
    let bytes = browser.screenshot(width, if pages.kept { 20_000 } else { 1600 });
    pages.keep(&format!("{story}-{name}.png"), &bytes);
    let picture = Picture::read(&bytes);
    assert!(picture.width == width as usize && picture.colours() > 40, "{place} is blank");
    let dark = luminance(picture.at(1.0, 1.0).unwrap()) < 0.2;
    assert_eq!(dark, scheme == "dark", "{place}");
    check_tiles(&place, &picture, &tiles);
    assert_eq!(browser.complaints(url), Vec::<String>::new(), "{place}");
}

/// Each tile has the colour of its class, and letters that can be read on it.
fn check_tiles(place: &str, picture: &Picture, tiles: &Value) {
    for tile in tiles.as_array().unwrap() {
        let class = tile["class"].as_str().unwrap();
        let number = |key: &str| tile[key].as_f64().unwrap();
        assert!(number("wide") > 35.0 && number("high") > 24.0, "{place}: {tile}");
        if class == "hatched" || class == "none" {
            continue;
        }
        let fill = rgb(tile["fill"].as_str().unwrap());
        let ink = rgb(tile["ink"].as_str().unwrap());
        assert!(contrast(fill, ink) >= 4.5, "{place}: {:.2} of {tile}", contrast(fill, ink));
        if let Some(seen) = picture.at(number("x"), number("y"))
            && tile["visible"] == true
        {
            assert_eq!(seen, fill, "{place}: {tile}");
        }
        let [red, _, blue] = fill.map(i16::from);
        let is_right = match &class[..2] {
            "up" => blue > red + 15,
            "do" => red > blue + 15,
            _ => (blue - red).abs() <= 15,
        };
        assert!(is_right, "{place}: {tile}");
    }
}

/// Looks at every shape, in those views that are `wanted` of the shape with this number, and prints it if
/// `printed`.
fn look_at_all(wanted: impl Fn(usize, usize) -> bool, printed: impl Fn(usize) -> bool) {
    let Some(mut browser) = Browser::start() else {
        crate::common::missing::missing("chromium", format!("none at {}", BROWSERS.join(" or ")));
        return;
    };
    let pages = Pages::new();
    for (number, story) in STORIES.into_iter().enumerate() {
        let url = pages.write(story);
        for (_, view) in VIEWS.into_iter().enumerate().filter(|(view, _)| wanted(number, *view)) {
            look(&mut browser, &pages, story, &url, view);
        }
        if !printed(number) {
            continue;
        }
        browser.open(&url, 1280, "dark");
        let pdf = browser.pdf();
        pages.keep(&format!("{story}.pdf"), &pdf);
        assert!(pdf.starts_with(b"%PDF-") && pdf.len() > 10_000, "{story}: {} bytes", pdf.len());
    }
}

#[test]
fn every_shape_can_be_read_on_a_screen_and_some_on_paper() {
    look_at_all(|number, view| number % VIEWS.len() == view, |number| number % 4 == 0);
}

#[test]
#[ignore = "every view of every shape: half a minute"]
fn every_shape_can_be_read_on_all_screens_and_on_paper() {
    look_at_all(|_, _| true, |_| true);
}

#[test]
fn a_map_is_used_with_the_keyboard_and_takes_its_data_along() {
    let Some(mut browser) = Browser::start() else {
        crate::common::missing::missing("chromium", format!("none at {}", BROWSERS.join(" or ")));
        return;
    };
    let pages = Pages::new();
    let url = pages.write("map");
    browser.open(&url, 1280, "light");
    let focused = "[document.activeElement.tagName, document.activeElement.className]";
    let mut stations = Vec::new();
    for _ in 0..12 {
        browser.press("Tab");
        stations.push(browser.evaluate(focused));
    }
    let scrolled = stations.iter().position(|it| *it == json!(["DIV", "scroll"]));
    assert!(scrolled.is_some(), "the region of the map cannot be reached: {stations:?}");
    let tip = "(() => { const tip = document.activeElement.querySelector('.tip');
        return [document.activeElement.getAttribute('aria-label'), getComputedStyle(tip).display]; })()";
    let shown = browser.evaluate(tip);
    assert!(shown[1] == "block" && shown[0].as_str().unwrap().contains("ahead"), "{shown}");
    // The link unfolds the figures of its cell.
    browser.press("Enter");
    let opened = "new Promise(done => { const look = () =>
        location.hash && document.querySelector(location.hash).open ? done(true) : setTimeout(look, 20);
        look(); })";
    assert_eq!(browser.evaluate(opened), true);

    let sort = "(() => { const table = document.querySelector('table.verdicts');
        table.closest('details').open = true; table.querySelectorAll('th button')[2].focus(); })()";
    browser.evaluate(sort);
    browser.press("Enter");
    let sorted = "(() => { const table = document.querySelector('table.verdicts');
        return [table.tHead.rows[0].cells[2].getAttribute('aria-sort'),
            [...table.tBodies[0].rows].map(row => parseFloat(row.cells[2].textContent))]; })()";
    let sorted = browser.evaluate(sorted);
    let ratios: Vec<f64> = sorted[1].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    // One cell has too few pairs for an interval; it has a ratio.
    assert_eq!((&sorted[0], ratios.len()), (&json!("ascending"), 15));
    assert!(ratios.is_sorted(), "{ratios:?}");

    let downloads = tempfile::tempdir().unwrap();
    let allow = json!({"behavior": "allow", "downloadPath": downloads.path()});
    browser.command("Page.setDownloadBehavior", &allow);
    for name in ["map-runs.csv", "map-prices.csv", "map-bundle.json"] {
        let click = format!("document.querySelector('a[download=\"{name}\"]').click()");
        browser.evaluate(&click);
        let text = wait_for(&downloads.path().join(name));
        match name {
            "map-runs.csv" => assert_eq!(text.lines().count(), 1 + 240),
            "map-prices.csv" => assert!(text.starts_with("cell,subject,baseline,difference_ns")),
            _ => {
                let bundle: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(bundle["summary"]["cells"].as_array().unwrap().len(), 15);
            }
        }
    }
}

/// The text of a file that a browser writes.
fn wait_for(path: &Path) -> String {
    let begun = Instant::now();
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if !text.is_empty() => return text,
            _ if begun.elapsed() > Duration::from_secs(60) => {
                panic!("{} was not written", path.display())
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
