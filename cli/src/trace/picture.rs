//! The hottest pages as a flame graph: a slice is as wide as its faults, on it lie the kinds of pages, on
//! these the pages, on these the code that waited for them.

use super::named::{Named, class};
use anyhow::{Context, Result};
use dsm::PageTrace;
use inferno::flamegraph::{Options, from_lines};

/// The picture as SVG.
pub(super) fn draw(named: &Named<'_>) -> Result<Vec<u8>> {
    let mut options = Options::default();
    options.title = "Pages that travel".into();
    options.count_name = "faults".into();
    // The same page has the same colour in each picture.
    options.hash = true;
    let lines = folded(named);
    let mut svg = Vec::new();
    if lines.is_empty() {
        // A graph of nothing is an error to who draws it.
        return Ok(b"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"300\" height=\"40\">\
            <text x=\"10\" y=\"25\">no page travelled</text></svg>\n"
            .to_vec());
    }
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg).context("draw")?;
    Ok(svg)
}

/// A line for each leaf: its path, and faults.
fn folded(named: &Named<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for answer in named.answers {
        for page in answer.pages.iter().filter(|page| page.faults() > 0) {
            let name = named.data(page, Named::main_site(page));
            let name = if name.is_empty() { name } else { format!(" {name}") };
            let kind = class(page.class);
            let path = format!("slice {};{kind};{:#x}{}", answer.slice, page.gfn, frame(&name));
            for (code, faults) in shares(named, page) {
                match code {
                    Some(code) => lines.push(format!("{path};{} {faults}", frame(&code))),
                    None => lines.push(format!("{path} {faults}")),
                }
            }
        }
    }
    lines
}

/// The faults of a page by code, as its samples are.
fn shares(named: &Named<'_>, page: &PageTrace) -> Vec<(Option<String>, u64)> {
    let samples: u64 = page.sites.iter().map(|site| u64::from(site.count)).sum();
    let mut left = u64::from(page.faults());
    let mut shares = Vec::new();
    for site in &page.sites {
        let share = u64::from(page.faults()) * u64::from(site.count) / samples.max(1);
        let code = format!("{} {}", named.code(site), named.data(page, Some(site)));
        shares.push((Some(code), share));
        left = left.saturating_sub(share);
    }
    // What rounding left, or all of it.
    shares.push((None, left));
    shares.retain(|(_, faults)| *faults > 0);
    shares
}

/// A frame's name must not end the frame.
fn frame(name: &str) -> String {
    name.replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::super::named::tests::answer;
    use super::super::symbols::tests::symbols;
    use super::*;

    #[test]
    fn faults_are_shared_out_by_samples() {
        let (answers, symbols) = ([answer()], symbols());
        let lines = folded(&Named::new(&answers, Some(&symbols)));
        let page = "slice 1;other;0x2000 tick_lock+0x8";
        assert_eq!(
            lines,
            [
                format!("{page};try_to_wake_up tick_lock+0x8 26"),
                format!("{page};user 0x401000 jiffies tick_lock other and 1 more 8"),
                format!("{page} 1"),
                "slice 1;other;0x1f402 runqueues of vCPU 1 7".to_owned(),
                "slice 1;other;0x9999 1".to_owned(),
            ]
        );
    }

    #[test]
    fn picture_shows_slices_pages_and_code() {
        let (answers, symbols) = ([answer()], symbols());
        let svg = draw(&Named::new(&answers, Some(&symbols))).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        for text in ["<svg", "slice 1", "0x2000 tick_lock", "try_to_wake_up", "43 faults"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        let nothing = draw(&Named::new(&[], None)).unwrap();
        assert!(String::from_utf8(nothing).unwrap().contains("no page travelled"));
    }
}
