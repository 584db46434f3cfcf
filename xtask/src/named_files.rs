//! Names of files in the documents: each file or folder of the tree that a page names is there. A reader goes by these
//! names, and a file that moves takes nobody along.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// It tells of files that were there once.
const HISTORY: &str = "CHANGELOG.md";

/// Every name of a file in these Markdown files that is none, as `path: what`.
pub(crate) fn findings(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let tree = Tree::new(files.iter().filter(|path| root.join(path).exists()));
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| path.ends_with(".md") && *path != HISTORY) {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        let missing = named(&text).into_iter().filter(|name| tree.misses(name));
        findings.extend(missing.map(|name| format!("{path}: {name} is not there")));
    }
    Ok(findings)
}

/// Files and folders.
struct Tree<'a>(BTreeSet<&'a str>);

impl<'a> Tree<'a> {
    fn new(files: impl Iterator<Item = &'a String>) -> Self {
        let mut all = BTreeSet::new();
        for file in files {
            all.insert(file.as_str());
            all.extend(file.match_indices('/').map(|(at, _)| &file[..at]));
        }
        Self(all)
    }

    /// True for a path below a folder of the tree that leads nowhere.
    fn misses(&self, name: &str) -> bool {
        let below = name.split_once('/').is_some_and(|(top, _)| self.0.contains(top));
        below && !name.split('/').any(is_placeholder) && !self.0.contains(name)
    }
}

/// A part that stands for others, as in `src/NAME/mod.rs`.
fn is_placeholder(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or_default();
    let letters = |c: char| c.is_ascii_uppercase() || c == '_';
    !part.ends_with(".md") && stem.len() > 1 && stem.chars().all(letters)
}

/// Words of code, within a line or in a block, that may be paths.
fn named(text: &str) -> BTreeSet<String> {
    let (mut names, mut block) = (BTreeSet::new(), false);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => block = true,
            Event::End(TagEnd::CodeBlock) => block = false,
            Event::Code(code) => names.extend(paths(&code)),
            Event::Text(code) if block => names.extend(paths(&code)),
            _ => {}
        }
    }
    names
}

/// `a/{b,c}.rs` is two.
fn paths(code: &str) -> Vec<String> {
    let ends = |c: char| c.is_whitespace() || "()<>;:\"'|=".contains(c);
    let words = code.split(ends).map(|word| word.trim_end_matches(['.', '/', ',']));
    words.filter(|word| word.contains('/')).flat_map(alternatives).collect()
}

fn alternatives(word: &str) -> Vec<String> {
    let parts = word.split_once('{').and_then(|(before, rest)| {
        let (choices, after) = rest.split_once('}')?;
        Some((before, choices, after))
    });
    let Some((before, choices, after)) = parts else { return vec![word.to_owned()] };
    choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_code_are_paths() {
        let text = "see `a/b.rs`, a/no.rs and `a/{c,d}.rs (x)`\n\n```text\n  engine (a/src/e.rs) --> a/f/\n```\n";

        let names: Vec<_> = named(text).into_iter().collect();

        assert_eq!(names, ["a/b.rs", "a/c.rs", "a/d.rs", "a/f", "a/src/e.rs"]);
    }

    #[test]
    fn only_names_below_folders_of_the_tree_can_be_missing() {
        let files = ["a/src/b.rs", "README.md"].map(str::to_owned);
        let tree = Tree::new(files.iter());

        for there in ["a/src/b.rs", "a/src", "proc/self", "a/src/NAME", "a/NAME.rs", "a"] {
            assert!(!tree.misses(there), "{there}");
        }
        for missing in ["a/b.rs", "a/src/b", "a/src/b.rs/c", "a/README.md"] {
            assert!(tree.misses(missing), "{missing}");
        }
    }
}
