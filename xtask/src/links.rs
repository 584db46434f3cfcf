//! Links between the documents: every relative one leads to a file or folder of the tree, and to a heading where it
//! names one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Every link in these Markdown files that leads nowhere, as `path: what`.
pub(crate) fn findings(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| path.ends_with(".md")) {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        for link in links(&text) {
            if let Err(why) = check(root, Path::new(path), &link) {
                findings.push(format!("{path}: {link} {why}"));
            }
        }
    }
    Ok(findings)
}

/// Targets of the relative links and pictures of a page, also of those written as HTML.
pub(crate) fn links(text: &str) -> Vec<String> {
    let events = Parser::new_ext(text, Options::ENABLE_TABLES);
    let targets = events.flat_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            vec![dest_url.into_string()]
        }
        Event::Html(tags) | Event::InlineHtml(tags) => html_targets(&tags),
        _ => Vec::new(),
    });
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

fn html_targets(tags: &str) -> Vec<String> {
    let values = |name| tags.split(name).skip(1).filter_map(|rest| rest.split('"').next());
    values(" src=\"").chain(values(" href=\"")).map(str::to_owned).collect()
}

fn check(root: &Path, from: &Path, link: &str) -> Result<(), &'static str> {
    let (path, heading) =
        link.split_once('#').map_or((link, None), |(path, part)| (path, Some(part)));
    let target = target(from, path).ok_or("leaves the tree")?;
    if !root.join(&target).exists() {
        return Err("leads to nothing");
    }
    let Some(heading) = heading.filter(|_| target.extension().is_some_and(|it| it == "md")) else {
        return Ok(());
    };
    let text = fs::read_to_string(root.join(&target)).unwrap_or_default();
    if headings(&text).contains(heading) { Ok(()) } else { Err("names no heading there") }
}

/// Where a link without its heading leads from this page; `None` if out of the tree.
pub(crate) fn target(from: &Path, path: &str) -> Option<PathBuf> {
    match path {
        "" => Some(from.to_path_buf()),
        path => inside(&from.parent().unwrap_or_else(|| Path::new("")).join(path)),
    }
}

/// The path without `.` and `..`; `None` if it leads out.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::CurDir => {}
            Component::ParentDir if parts.pop() => {}
            _ => return None,
        }
    }
    Some(parts)
}

/// Anchors of the headings: small letters and digits, `-` for spaces, other signs left out. The second of two equal
/// ones ends with `-1`.
fn headings(text: &str) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), None);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => open = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let new = open.take().map(|anchor| distinct(&found, anchor));
                found.extend(new);
            }
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut open {
                    heading.extend(words.chars().filter_map(anchor));
                }
            }
            _ => {}
        }
    }
    found
}

fn distinct(found: &BTreeSet<String>, anchor: String) -> String {
    let with_number = |number| format!("{anchor}-{number}");
    let taken = found.contains(&anchor);
    let free = (1..).map(with_number).find(|anchor| !found.contains(anchor));
    free.filter(|_| taken).unwrap_or(anchor)
}

fn anchor(letter: char) -> Option<char> {
    match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then(|| letter.to_ascii_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_links_are_looked_at() {
        let text = "[a](b.md#c) <https://x.y> [z](https://x.y/z)\n\n| t |\n|---|\n| [d](e) |\n\n`[no](link)`\n\n\
                    <img alt=\"x\" src=\"f.svg\"> <a href=\"g.md\">g</a>";
        assert_eq!(links(text), ["b.md#c", "e", "f.svg", "g.md"]);
    }

    #[test]
    fn headings_become_anchors() {
        let found = headings("# How `x` works, or not\n\ntext\n\n## The 2nd\n\n# The 2nd\n");
        let expected = ["how-x-works-or-not", "the-2nd", "the-2nd-1"];
        assert_eq!(found, expected.map(str::to_owned).into());
    }

    #[test]
    fn link_that_leads_nowhere_is_found() {
        let root = std::env::temp_dir().join(format!("tessera-links-{}", std::process::id()));
        fs::create_dir_all(root.join("docs")).unwrap();
        fs::write(root.join("docs/a.md"), "# One\n").unwrap();
        let judge = |link| check(&root, Path::new("docs/b.md"), link);

        assert_eq!(judge("a.md#one"), Ok(()));
        assert_eq!(judge("../docs"), Ok(()));
        assert_eq!(judge("a.md#two"), Err("names no heading there"));
        assert_eq!(judge("c.md"), Err("leads to nothing"));
        assert_eq!(judge("../../a.md"), Err("leaves the tree"));
        fs::remove_dir_all(root).unwrap();
    }
}
