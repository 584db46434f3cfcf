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

fn links(text: &str) -> Vec<String> {
    let events = Parser::new_ext(text, Options::ENABLE_TABLES);
    let targets = events.filter_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.into_string())
        }
        _ => None,
    });
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

fn check(root: &Path, from: &Path, link: &str) -> Result<(), &'static str> {
    let (path, heading) =
        link.split_once('#').map_or((link, None), |(path, part)| (path, Some(part)));
    let target = match path {
        "" => from.to_path_buf(),
        path => inside(&from.parent().unwrap_or_else(|| Path::new("")).join(path))
            .ok_or("leaves the tree")?,
    };
    if !root.join(&target).exists() {
        return Err("leads to nothing");
    }
    let Some(heading) = heading.filter(|_| target.extension().is_some_and(|it| it == "md")) else {
        return Ok(());
    };
    let text = fs::read_to_string(root.join(&target)).unwrap_or_default();
    if headings(&text).contains(heading) { Ok(()) } else { Err("names no heading there") }
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

/// Anchors of the headings: small letters and digits, `-` for spaces, other signs left out.
fn headings(text: &str) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), None);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => open = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => found.extend(open.take()),
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
        let text = "[a](b.md#c) <https://x.y> [z](https://x.y/z)\n\n| t |\n|---|\n| [d](e) |\n\n`[no](link)`";
        assert_eq!(links(text), ["b.md#c", "e"]);
    }

    #[test]
    fn headings_become_anchors() {
        let found = headings("# How `x` works, or not\n\ntext\n\n## The 2nd\n");
        assert_eq!(found, ["how-x-works-or-not", "the-2nd"].map(str::to_owned).into());
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
