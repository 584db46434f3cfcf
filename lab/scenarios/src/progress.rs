//! Lines for the person who waits: each with the seconds since the start.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Prints lines with the time since it was made; may be used from several threads.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    last: Mutex<Instant>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// The seconds of its lines begin now.
    #[must_use]
    pub fn new() -> Self {
        let start = Instant::now();
        Self { start, last: Mutex::new(start) }
    }

    /// Prints one line.
    pub fn say(&self, line: &str) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Instant::now();
        // Nobody reads any more: the work itself goes on.
        drop(writeln!(io::stdout(), "[{:>4} s] {line}", self.start.elapsed().as_secs()));
    }

    /// Prints a line only when nothing was said for a while.
    pub(crate) fn say_if_quiet(&self, quiet: Duration, line: impl FnOnce() -> String) {
        let silent = self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        if silent >= quiet {
            self.say(&line());
        }
    }
}

/// A line without control characters and terminal sequences (`ESC [ ... letter`, `ESC letter`).
pub(crate) fn printable(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        if c == '\u{1b}' && characters.next() == Some('[') {
            // A sequence ends with a letter.
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else if !c.is_control() {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_sequences_are_left_out() {
        assert_eq!(printable("\u{1b}c\u{1b}[?7l\u{1b}[2JGUEST x\r"), "GUEST x");
        assert_eq!(printable("tail \u{1b}["), "tail ");
    }
}
