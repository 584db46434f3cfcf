//! Rules for the text of the tree that no compiler knows.
//!
//! | rule | where |
//! |---|---|
//! | at most 500 lines, without a test module at the end; files of tests may have more | `*.rs` |
//! | no marks of unfinished work | `*.rs`, `*.sh`, `x` |
//! | a file that opens `unsafe_code` says why in an `UNSAFETY:` line | `*.rs` |
//! | no host name of a package mirror | all text but `Cargo.lock` |
//! | no absolute path of one machine | `*.md`, `*.toml` |
//! | the README names the command that tests | `README.md` |

use std::fs;
use std::path::Path;
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, ensure};

const MOST_LINES: usize = 500;
/// Written in two parts, so that this file does not break its own rules.
const UNFINISHED: [&str; 4] = [
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("todo", "!("),
    concat!("unimple", "mented!("),
];
const MIRRORS: [&str; 3] =
    [concat!("debian", ".org"), concat!("ubuntu", ".com"), concat!("index.crates", ".io")];
const MACHINE_FOLDERS: [&str; 4] = ["work", "tmp", "root", "home"];

/// Everything in the tree that breaks a rule, as `path:line: what`.
pub(crate) fn findings(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let mirrors = mirrors();
    for path in files(root)? {
        let Ok(text) = fs::read_to_string(root.join(&path)) else {
            // Not text, or removed but not yet committed.
            continue;
        };
        findings.extend(check_file(&path, &text, &mirrors));
    }
    let readme = fs::read_to_string(root.join("README.md")).unwrap_or_default();
    if !readme.contains("./x test") {
        findings.push("README.md:1: it must name ./x test".to_owned());
    }
    Ok(findings)
}

/// Files git tracks or would track.
pub(crate) fn files(root: &Path) -> Result<Vec<String>> {
    let output = Process::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .context("start git")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let names = String::from_utf8(output.stdout).context("names of files are not UTF-8")?;
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Host names of package archives: those everybody knows and those this machine uses.
fn mirrors() -> Vec<String> {
    let mut names: Vec<_> = MIRRORS.iter().map(|name| (*name).to_owned()).collect();
    let said = Process::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)"])
        .stdin(Stdio::null())
        .output();
    // A machine without apt has no archives to give away.
    let said = said.map(|output| output.stdout).unwrap_or_default();
    for address in String::from_utf8_lossy(&said).lines() {
        let host = address.split_once("://").and_then(|(_, rest)| rest.split('/').next());
        if let Some(host) = host.filter(|host| host.contains('.')) {
            names.push(host.to_owned());
        }
    }
    names
}

fn check_file(path: &str, text: &str, mirrors: &[String]) -> Vec<String> {
    let mut findings = Vec::new();
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    let mut find = |line: usize, what: String| findings.push(format!("{path}:{line}: {what}"));
    if extension == "rs" {
        let own = lines_without_tests(text);
        if own > MOST_LINES && !is_test_file(path) {
            find(own, format!("{own} lines without tests, {MOST_LINES} are allowed"));
        }
        if text.contains("expect(unsafe_code") && !text.contains("// UNSAFETY:") {
            find(1, "unsafe code without an UNSAFETY line that says why".to_owned());
        }
    }
    for (number, line) in (1..).zip(text.lines()) {
        if matches!(extension, "rs" | "sh") || path == "x" {
            for mark in UNFINISHED.iter().filter(|mark| has_word(line, mark)) {
                find(number, format!("{mark} marks unfinished work"));
            }
        }
        if matches!(extension, "md" | "toml")
            && let Some(folder) = machine_folder(line)
        {
            find(number, format!("{folder} is a folder of one machine"));
        }
        if path.ends_with("Cargo.lock") {
            continue;
        }
        for mirror in mirrors.iter().filter(|mirror| line.contains(*mirror)) {
            find(number, format!("{mirror} is a package mirror"));
        }
    }
    findings
}

/// Whether everything in the file is tests.
fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.split('/').any(|folder| folder == "tests")
}

/// Lines up to a test module that closes the file.
fn lines_without_tests(text: &str) -> usize {
    let lines: Vec<_> = text.lines().collect();
    let start = lines.windows(2).rposition(|pair| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    });
    // The module closes the file when no other line at the margin ends a block after it.
    let closes = |at: usize| lines[at..].iter().filter(|line| **line == "}").count() == 1;
    start.filter(|&at| closes(at)).unwrap_or(lines.len())
}

/// True when the line has the mark with no letter right before it and, for a word, right after it.
fn has_word(line: &str, mark: &str) -> bool {
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    line.match_indices(mark).any(|(at, _)| {
        let after = line[at + mark.len()..].chars().next();
        !letter(line[..at].chars().next_back()) && (mark.ends_with('(') || !letter(after))
    })
}

/// A word that is a path in a folder only this machine may have.
fn machine_folder(line: &str) -> Option<&str> {
    let ends = |c: char| c.is_whitespace() || "\"'`()<>,;=|".contains(c);
    line.split(ends).find(|word| {
        let first = word.strip_prefix('/').and_then(|rest| rest.split('/').next());
        first.is_some_and(|first| MACHINE_FOLDERS.contains(&first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_unfinished_work_are_found_as_words() {
        let text = format!("// {} later\nlet name = \"{}YZ\";\n", UNFINISHED[0], UNFINISHED[1]);

        let found = check_file("a.rs", &text, &[]);

        assert_eq!(found, [format!("a.rs:1: {} marks unfinished work", UNFINISHED[0])]);
    }

    #[test]
    fn test_module_at_the_end_does_not_count() {
        let body = "fn a() {}\n".repeat(10);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    // x\n".repeat(900));

        assert_eq!(lines_without_tests(&format!("{body}{tests}")), 10);
        assert_eq!(lines_without_tests(&format!("{body}{tests}fn b() {{\n}}\n")), 915);
    }

    #[test]
    fn path_of_one_machine_is_found_in_prose_only() {
        let line = "see `/work/main/x`, not and/or";

        assert_eq!(check_file("a.md", line, &[]).len(), 1);
        assert!(check_file("a.rs", line, &[]).is_empty());
        assert!(machine_folder("lives in /proc/self and $HOME/work").is_none());
    }

    #[test]
    fn mirror_is_found_everywhere_but_in_the_lock_file() {
        let mirrors = ["mirror.example".to_owned()];

        assert_eq!(check_file("a.sh", "get mirror.example/x", &mirrors).len(), 1);
        assert!(check_file("fuzz/Cargo.lock", "mirror.example", &mirrors).is_empty());
    }

    #[test]
    fn unsafe_file_without_its_reason_is_found() {
        let opened = "#![expect(unsafe_code, reason = \"x\")]\n";

        assert_eq!(check_file("a.rs", opened, &[]).len(), 1);
        assert!(check_file("a.rs", &format!("{opened}// UNSAFETY: x\n"), &[]).is_empty());
    }
}
