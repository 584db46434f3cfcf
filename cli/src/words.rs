//! Words of a command line, without some of its options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Leaves these options out, each with its value, given as `--name value` or `--name=value`.
pub(crate) fn without(words: &[OsString], names: &[&str], flags: &[&str]) -> Vec<OsString> {
    let mut left = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, has_value) = name_of(word);
        if names.iter().any(|one| name == Some(OsStr::new(one))) {
            if !has_value {
                words.next();
            }
        } else if !flags.iter().any(|one| name == Some(OsStr::new(one))) {
            left.push(word.clone());
        }
    }
    left
}

/// The name of an option, and whether its value is in the same word.
fn name_of(word: &OsStr) -> (Option<&OsStr>, bool) {
    let Some(rest) = word.as_bytes().strip_prefix(b"--") else { return (None, false) };
    let end = rest.iter().position(|byte| *byte == b'=');
    let name = OsStr::from_bytes(&rest[..end.unwrap_or(rest.len())]);
    (Some(name), end.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_left_out_with_their_values() {
        let words = ["--spare", "a:1", "--kernel=k", "--disk", "d", "--rng", "--spare=b:2"];
        let words = words.map(OsString::from);
        assert_eq!(without(&words, &["spare"], &["rng"]), ["--kernel=k", "--disk", "d"]);
        assert_eq!(
            without(&words, &["kernel", "disk"], &[]),
            ["--spare", "a:1", "--rng", "--spare=b:2"]
        );
        assert_eq!(without(&words, &[], &[]), words);
    }
}
