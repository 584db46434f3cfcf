//! Words that are not used: no Rust name is a word of the table in the glossary, for which the literature has another.
//!
//! ```text
//!   docs/glossary.md --table--> words: as what, where, and the word to use
//!   *.rs --tokens--> names: part of the path, or an identifier and what the keyword before it makes of it
//!   name == word, or a part of it --> finding with the word to use
//! ```
//! Comments and strings are left alone, since many of the words are ordinary English.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use proc_macro2::{TokenStream, TokenTree};

const GLOSSARY: &str = "docs/glossary.md";
const HEADING: &str = "## Words that are not used";

/// Every name of a word that is not used, as `path:line: what`.
pub(crate) fn findings(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let glossary = fs::read_to_string(root.join(GLOSSARY)).context("read the glossary")?;
    let words = words(&glossary).with_context(|| format!("read the table of {GLOSSARY}"))?;
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| path.ends_with(".rs")) {
        // Removed but not yet committed.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        findings.extend(check_file(path, &text, &words)?);
    }
    Ok(findings)
}

/// What a word must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The whole name of a module, or of its file or folder.
    Module,
    /// The whole name of a type or trait.
    Type,
    /// The whole name of a function.
    Function,
    /// Any name, or some of its parts.
    Part,
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    parts: Vec<String>,
    instead: String,
    kinds: Vec<Kind>,
    /// The folder; empty for the whole tree.
    folder: String,
}

impl Word {
    fn is(&self, name: &Name, parts: &[String]) -> bool {
        let is_part = || parts.windows(self.parts.len()).any(|some| some == self.parts);
        self.kinds.iter().any(|kind| match kind {
            Kind::Part => is_part(),
            whole => name.kind == Some(*whole) && parts == self.parts,
        })
    }

    fn reaches(&self, path: &str) -> bool {
        let below = path.strip_prefix(&self.folder);
        self.folder.is_empty() || below.is_some_and(|below| below.starts_with('/'))
    }
}

/// A name as it stands in a file.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    line: usize,
    text: String,
    /// None for a use, a field, a variable and all else.
    kind: Option<Kind>,
}

/// The rows of the table `| not | but | as | below |`.
fn words(glossary: &str) -> Result<Vec<Word>> {
    let lines = glossary.lines().skip_while(|line| *line != HEADING).skip(1);
    let table = lines.take_while(|line| !line.starts_with("## "));
    let rows = table.filter(|line| line.starts_with("| `"));
    let words: Vec<_> = rows.map(word).collect::<Result<_>>()?;
    ensure!(!words.is_empty(), "no words below {HEADING:?}");
    Ok(words)
}

fn word(row: &str) -> Result<Word> {
    let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [not, instead, kinds, folder] = cells[..] else { bail!("not four cells: {row}") };
    let kind = |kind: &str| match kind {
        "module" => Ok(Kind::Module),
        "type" => Ok(Kind::Type),
        "function" => Ok(Kind::Function),
        "part" => Ok(Kind::Part),
        _ => bail!("{kind:?} is no kind of name: {row}"),
    };
    let parts = parts(not);
    ensure!(!parts.is_empty() && !instead.is_empty(), "an empty cell: {row}");
    Ok(Word {
        parts,
        instead: instead.replace('`', ""),
        kinds: kinds.split(", ").map(kind).collect::<Result<_>>()?,
        folder: folder.replace('`', ""),
    })
}

fn check_file(path: &str, text: &str, words: &[Word]) -> Result<Vec<String>> {
    let words: Vec<_> = words.iter().filter(|word| word.reaches(path)).collect();
    let tokens: TokenStream =
        text.parse().map_err(|error| anyhow!("read the tokens of {path}: {error}"))?;
    let mut names = names_of_path(path);
    add_names(tokens, &mut names);
    let mut findings = Vec::new();
    for name in &names {
        let parts = parts(&name.text);
        for word in words.iter().filter(|word| word.is(name, &parts)) {
            let Name { line, text, .. } = name;
            let (not, instead) = (word.parts.join("_"), &word.instead);
            findings.push(format!("{path}:{line}: {text}: say {instead}, not {not}"));
        }
    }
    Ok(findings)
}

/// Those of a file and of the folders that it is in.
fn names_of_path(path: &str) -> Vec<Name> {
    let parts = path.trim_end_matches(".rs").split('/');
    parts.map(|part| Name { line: 1, text: part.to_owned(), kind: Some(Kind::Module) }).collect()
}

fn add_names(tokens: TokenStream, names: &mut Vec<Name>) {
    let mut keyword = None;
    for token in tokens {
        match token {
            TokenTree::Group(group) => add_names(group.stream(), names),
            TokenTree::Ident(identifier) => {
                let text = identifier.to_string();
                let next = match text.as_str() {
                    "mod" => Some(Kind::Module),
                    "struct" | "enum" | "union" | "trait" | "type" => Some(Kind::Type),
                    "fn" => Some(Kind::Function),
                    _ => None,
                };
                let line = identifier.span().start().line;
                names.push(Name { line, text, kind: keyword });
                keyword = next;
                continue;
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        keyword = None;
    }
}

/// What a name is made of, in small letters: `GuestRam2` and `guest_ram2` are `guest` and `ram2`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for piece in name.split(|letter: char| !letter.is_alphanumeric()) {
        let letters: Vec<char> = piece.chars().collect();
        let mut part = String::new();
        for (at, letter) in letters.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| letters.get(at));
            let after = letters.get(at + 1);
            let begins = letter.is_uppercase()
                && (before.is_some_and(|before| !before.is_uppercase())
                    || after.is_some_and(|after| after.is_lowercase()));
            if begins && !part.is_empty() {
                parts.push(std::mem::take(&mut part));
            }
            part.extend(letter.to_lowercase());
        }
        if !part.is_empty() {
            parts.push(part);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Glossary\n\n| `before` | `the table` | part | |\n\n## Words that are not used\n\nText.\n\n\
                         | not | but | as | below |\n|---|---|---|---|\n\
                         | `under_way` | `in_flight` | part | |\n\
                         | `tell` | `report` | module | |\n\
                         | `visitor` | `participant` | type, module | |\n\
                         | `bell` | `waker` | part | `dsm` |\n\n\
                         ## Sources\n\n| `after` | `the table` | part | |\n";

    fn found(path: &str, text: &str) -> Vec<String> {
        check_file(path, text, &words(TABLE).unwrap()).unwrap()
    }

    #[test]
    fn names_are_split_at_their_parts() {
        for name in ["guest_tlb_size2", "GuestTlbSize2", "GUEST_TLB_SIZE2", "GuestTLBSize2"] {
            assert_eq!(parts(name), ["guest", "tlb", "size2"], "{name}");
        }
        assert_eq!(parts("guest-tests"), ["guest", "tests"]);
        assert_eq!(parts("_"), [""; 0]);
    }

    #[test]
    fn part_of_any_name_is_found_with_its_line_and_the_word_to_use() {
        let source = "struct StillUnderWay {\n    requests_under_way: u8,\n}\nconst UNDER_WAY_MAX: u8 = 0;\n\
                      matches!(x, [under_way]);\n";
        let expected =
            ["1: StillUnderWay", "2: requests_under_way", "4: UNDER_WAY_MAX", "5: under_way"]
                .map(|name| format!("a/b.rs:{name}: say in_flight, not under_way"));

        assert_eq!(found("a/b.rs", source), expected);
        assert_eq!(found("a/under_way.rs", "").len(), 1);
        assert_eq!(found("under_way/mod.rs", "").len(), 1);
    }

    #[test]
    fn word_of_a_kind_is_found_as_the_whole_name_of_that_kind() {
        let source = "mod tell;\nfn tell() {}\nstruct Tell;\nmod tell_all {}\ntrait Visitor {}\n\
                      impl Visitor for A {}\nuse a::{Visitor, tell};\n";

        let expected =
            ["a.rs:1: tell: say report, not tell", "a.rs:5: Visitor: say participant, not visitor"];
        assert_eq!(found("a.rs", source), expected);
        assert_eq!(found("a/tell.rs", ""), ["a/tell.rs:1: tell: say report, not tell"]);
        assert!(found("a/tell_all.rs", "").is_empty());
    }

    #[test]
    fn word_of_a_folder_is_found_below_it_alone() {
        let source = "struct Bell;";

        assert_eq!(found("dsm/src/a.rs", source).len(), 1);
        assert!(found("devices/src/a.rs", source).is_empty());
        assert!(found("dsmith/a.rs", source).is_empty());
    }

    #[test]
    fn comments_and_strings_are_left_alone() {
        let source = "//! under_way\n/// `under_way`\nfn a() -> &'static str { \"under_way\" } // under_way\n";

        assert!(found("a.rs", source).is_empty());
    }

    #[test]
    fn table_that_cannot_be_read_is_an_error() {
        let table = |row: &str| words(&format!("{HEADING}\n\n{row}\n"));

        table("| `a` | `b` | part | |").unwrap();
        table("| `a` | `b` | part |").unwrap_err();
        table("| `a` | `b` | parts | |").unwrap_err();
        table("| ` ` | `b` | part | |").unwrap_err();
        table("").unwrap_err();
        words("| `a` | `b` | part | |").unwrap_err();
    }
}
