//! Lines of the guest (`benches/guest/src/loads`).

use anyhow::{Context, Result};

/// What the guest tells of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) number: u64,
    /// The same in each round.
    pub(super) sum: u64,
    /// Of each load the ticks of both vCPUs.
    pub(super) times: Vec<[u64; 2]>,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// All memory has been touched.
    Prepared,
    Round(Round),
}

impl Line {
    /// Reads it.
    ///
    /// # Errors
    /// It is another one.
    pub(super) fn read(text: &str) -> Result<Self> {
        let other = || format!("the guest says {text:?}");
        let (letter, numbers) = text.split_once(' ').with_context(other)?;
        let number = |word| u64::from_str_radix(word, 16);
        let numbers = numbers.split(' ').map(number).collect::<Result<Vec<_>, _>>();
        let numbers = numbers.with_context(other)?;
        match (letter, numbers.as_slice()) {
            ("P", [_]) => Ok(Self::Prepared),
            ("R", [number, sum, times @ ..]) => {
                let (times, rest) = times.as_chunks();
                rest.is_empty().then_some(()).with_context(other)?;
                Ok(Self::Round(Round { number: *number, sum: *sum, times: times.to_vec() }))
            }
            _ => None.with_context(other),
        }
    }
}

/// Text that is cut into lines as it comes.
#[derive(Debug, Default)]
pub(super) struct Text(Vec<u8>);

impl Text {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Takes the first line, if it is whole.
    pub(super) fn take(&mut self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_others_refused() {
        let round = Line::read("R a ff 1 2 30 4").unwrap();
        let times = vec![[1, 2], [0x30, 4]];
        assert_eq!(round, Line::Round(Round { number: 10, sum: 255, times }));
        assert_eq!(Line::read("P 12").unwrap(), Line::Prepared);
        for other in ["", "E", "P", "R", "R 1", "R 1 2 3", "R 1 x", "X 1", "EG 0 1"] {
            assert!(Line::read(other).is_err(), "{other}");
        }
    }

    #[test]
    fn text_is_cut_at_its_ends_of_lines() {
        let mut text = Text::default();
        text.add(b"P 1\nR 2");
        assert_eq!(text.take().as_deref(), Some("P 1"));
        assert_eq!(text.take(), None);
        text.add(b" 3\n");
        assert_eq!(text.take().as_deref(), Some("R 2 3"));
    }
}
