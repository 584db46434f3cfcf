//! The documents as a book (`book.toml`): each page of `docs/` is in its table of contents, once, and no page links
//! to a page that is not part of the book.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::links;

const PAGES: &str = "docs/";
const CONTENTS: &str = "docs/SUMMARY.md";

/// Every page that a reader of the book would miss, and every link that ends there.
pub(crate) fn findings(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let contents = fs::read_to_string(root.join(CONTENTS)).context("read the contents")?;
    let mut findings = wrong_contents(&contents, files);
    let pages = files.iter().filter(|path| is_page(path));
    for path in pages {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        findings.extend(leaving_links(path, &text));
    }
    Ok(findings)
}

fn is_page(path: &str) -> bool {
    path.starts_with(PAGES) && path.ends_with(".md") && path != CONTENTS
}

fn wrong_contents(contents: &str, files: &[String]) -> Vec<String> {
    let mut counts: BTreeMap<&str, u32> =
        files.iter().filter(|path| is_page(path)).map(|path| (path.as_str(), 0)).collect();
    let mut findings = Vec::new();
    for link in links::links(contents) {
        match counts.get_mut(format!("{PAGES}{link}").as_str()) {
            Some(count) => *count += 1,
            None => findings.push(format!("{CONTENTS}: {link} is no page of {PAGES}")),
        }
    }
    for (path, count) in counts {
        match count {
            0 => findings.push(format!("{CONTENTS}: {path} is missing")),
            1 => {}
            _ => findings.push(format!("{CONTENTS}: {path} is there {count} times")),
        }
    }
    findings
}

/// The book has only what is in its folder.
fn leaving_links(path: &str, text: &str) -> Vec<String> {
    let from = Path::new(path);
    let leaves = |link: &String| {
        let (target, _) = link.split_once('#').unwrap_or((link, ""));
        let target = links::target(from, target);
        target.is_none_or(|target| !target.starts_with(PAGES))
    };
    let links = links::links(text).into_iter().filter(leaves);
    links.map(|link| format!("{path}: {link} leads out of {PAGES}, which is the book")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn page_that_is_not_in_the_contents_once_is_found() {
        let files = files(&[
            "README.md",
            "docs/SUMMARY.md",
            "docs/a.md",
            "docs/b/c.md",
            "docs/d.md",
            "docs/picture.svg",
        ]);
        let contents =
            "# Summary\n\n- [A](a.md)\n  - [C](b/c.md)\n- [A again](a.md)\n- [E](e.md)\n";

        let found = wrong_contents(contents, &files);

        assert_eq!(
            found,
            [
                "docs/SUMMARY.md: e.md is no page of docs/",
                "docs/SUMMARY.md: docs/a.md is there 2 times",
                "docs/SUMMARY.md: docs/d.md is missing",
            ]
        );
    }

    #[test]
    fn link_out_of_the_book_is_found() {
        let text = "[a](../a.md) [b](b.md#c) [c](../../README.md) [d](#d) [e](https://x.y/z)";

        let found = leaving_links("docs/decisions/1.md", text);

        assert_eq!(
            found,
            ["docs/decisions/1.md: ../../README.md leads out of docs/, which is the book"]
        );
    }
}
