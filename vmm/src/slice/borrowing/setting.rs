//! When the VM uses vCPUs of other hosts, as people say it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Of `adaptive` without a number.
const WINDOW: u64 = 5;
/// Seconds of a window, and until vCPUs go.
const WINDOW_MAX: u64 = 600;
const AFTER_MAX: u64 = 86_400;

/// When vCPUs that other slices have are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Borrow {
    /// From the start, until somebody moves them.
    #[default]
    Always,
    /// The guest boots at home, and they go there so long after its start.
    After(Duration),
    /// The guest boots at home. They go when it is short of processors, and come back when all compute less than home alone would: window by
    /// window of this length.
    Adaptive(Duration),
}

impl Borrow {
    /// Whether a new VM has all vCPUs on the bootstrap's slice at first.
    #[must_use]
    pub fn begins_at_home(self) -> bool {
        self != Self::Always
    }
}

/// Why words are none of these.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{0}' is none of always, after:SECONDS (1 to {AFTER_MAX}) and adaptive[:SECONDS] (1 to {WINDOW_MAX})"
)]
pub struct BorrowError(String);

impl FromStr for Borrow {
    type Err = BorrowError;

    fn from_str(text: &str) -> Result<Self, BorrowError> {
        let refused = || BorrowError(text.to_owned());
        let seconds = |number: &str, most| {
            let seconds = number.parse().map_err(|_| refused())?;
            if (1..=most).contains(&seconds) {
                Ok(Duration::from_secs(seconds))
            } else {
                Err(refused())
            }
        };
        match text.split_once(':') {
            None if text == "always" => Ok(Self::Always),
            None if text == "adaptive" => Ok(Self::Adaptive(Duration::from_secs(WINDOW))),
            Some(("after", number)) => seconds(number, AFTER_MAX).map(Self::After),
            Some(("adaptive", number)) => seconds(number, WINDOW_MAX).map(Self::Adaptive),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Borrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::After(after) => write!(f, "after:{}", after.as_secs()),
            Self::Adaptive(window) => write!(f, "adaptive:{}", window.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_and_their_numbers() {
        for (text, borrow) in [
            ("always", Borrow::Always),
            ("after:20", Borrow::After(Duration::from_secs(20))),
            ("adaptive", Borrow::Adaptive(Duration::from_secs(5))),
            ("adaptive:600", Borrow::Adaptive(Duration::from_secs(600))),
        ] {
            assert_eq!(text.parse(), Ok(borrow));
            assert_eq!(borrow.to_string().parse(), Ok(borrow));
        }
        for text in [
            "",
            "after",
            "after:0",
            "after:86401",
            "adaptive:601",
            "always:1",
            "never",
            "adaptive:",
        ] {
            let why = text.parse::<Borrow>().unwrap_err().to_string();
            assert!(why.contains("always, after:SECONDS (1 to 86400)"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn any_words_are_read_or_refused(text in "(after|adaptive|always)?:?[0-9]{0,20}|.*") {
            if let Ok(borrow) = text.parse::<Borrow>() {
                prop_assert_eq!(borrow.to_string().parse(), Ok(borrow));
            }
        }
    }
}
