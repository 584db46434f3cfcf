//! What a writer was told last, as options and reports write it.

/// The last that was acknowledged, if any was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Last(pub(crate) Option<u64>);

impl std::str::FromStr for Last {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "-" { Ok(Self(None)) } else { text.parse().map(Some).map(Self) }
    }
}

impl std::fmt::Display for Last {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_is_read_and_written_alike() {
        for text in ["-", "0", "17"] {
            assert_eq!(text.parse::<Last>().unwrap().to_string(), text);
        }
        assert!("x".parse::<Last>().is_err());
    }
}
