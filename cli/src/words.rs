//! Words of this command line, and of others, without some of their options.

use crate::log::Form;
use clap::ValueEnum;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// What says the form of the log if no option does.
pub(crate) const FORM: &str = "TESSERA_LOG_FORMAT";
/// The options that each role has, and that stand before its name too.
const OF_ALL: [&str; 1] = ["log-format"];

/// The words of this process behind so many names of roles, without the options that all roles have.
pub(crate) fn behind(roles: usize) -> Vec<OsString> {
    let all: Vec<OsString> = env::args_os().skip(1).collect();
    without(&all, &OF_ALL, &[]).into_iter().skip(roles).collect()
}

/// The form of the log that is wanted, also if the rest cannot be read.
pub(crate) fn form() -> Option<Form> {
    let of_text = |text: &OsStr| Form::from_str(text.to_str()?, false).ok();
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    given(&words, OF_ALL[0]).and_then(of_text).or_else(|| of_text(&env::var_os(FORM)?))
}

/// The last value of an option.
fn given<'a>(words: &'a [OsString], option: &str) -> Option<&'a OsStr> {
    let mut found = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match name_of(word) {
            (Some(name), false) if name == option => found = words.next().map(OsString::as_os_str),
            (Some(name), true) if name == option => {
                let bytes = word.as_bytes();
                let start = bytes.iter().position(|byte| *byte == b'=').map_or(0, |at| at + 1);
                found = Some(OsStr::from_bytes(&bytes[start..]));
            }
            _ => {}
        }
    }
    found
}

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
    fn last_value_of_an_option_is_found_in_both_of_its_spellings() {
        let of = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            given(&words, "log-format").map(OsStr::to_os_string)
        };
        assert_eq!(of(&["--log-format", "json", "agent"]), Some("json".into()));
        assert_eq!(of(&["--log-format=text", "agent", "--log-format=json"]), Some("json".into()));
        assert_eq!(of(&["agent", "--log-formats", "json"]), None);
        assert_eq!(of(&["agent", "--log-format"]), None);
    }

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
