//! What a guest's console says, when it is not cut into lines: a login prompt has no end of line.

use crate::progress::printable;

/// Bytes of an unfinished line that are kept; a guest decides how long its lines are.
const LONGEST: usize = 4096;

/// Collects the console and tells when the prompt stands there.
#[derive(Debug, Default)]
pub(crate) struct Console {
    rest: Vec<u8>,
    prompted: bool,
    /// A line that says that the guest's kernel is in trouble.
    trouble: Option<String>,
}

impl Console {
    /// Takes in bytes and gives back the lines that are complete now.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            if byte == b'\n' || self.rest.len() == LONGEST {
                let line = text(&self.rest);
                if is_trouble(&line) {
                    self.trouble.get_or_insert_with(|| line.clone());
                }
                lines.push(line);
                self.rest.clear();
            }
            if byte != b'\n' {
                self.rest.push(byte);
            }
        }
        self.prompted |= text(&self.rest).ends_with(lab::distro::PROMPT);
        lines
    }

    /// What was said of a line is not followed by its end.
    pub(crate) fn forget_line(&mut self) {
        self.rest.clear();
    }

    /// True once the login prompt was there.
    pub(crate) fn prompted(&self) -> bool {
        self.prompted
    }

    /// What the guest's kernel complained of first.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

fn text(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes))
}

fn is_trouble(line: &str) -> bool {
    ["Kernel panic", "BUG: ", "Oops: ", "I/O error", "EXT4-fs error", "emergency mode"]
        .iter()
        .any(|words| line.contains(words))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prompt_that_comes_in_pieces_is_seen() {
        let mut console = Console::default();

        assert_eq!(console.take(b"\r\nDebian\r\n\r\ntess"), ["", "Debian", ""]);
        assert!(!console.prompted());
        assert!(console.take(b"era login: ").is_empty());
        assert!(console.prompted());
    }

    #[test]
    fn trouble_of_the_kernel_is_kept() {
        let mut console = Console::default();

        console.take(b"[ 1.0] fine\n[ 2.0] EXT4-fs error (device vda): x\n[ 3.0] BUG: y\n");

        assert!(console.trouble().unwrap().contains("EXT4-fs error"));
    }

    proptest! {
        #[test]
        fn arbitrary_pieces_never_panic(pieces in prop::collection::vec(any::<Vec<u8>>(), 0..20)) {
            let mut console = Console::default();
            for piece in pieces {
                console.take(&piece);
            }
        }
    }
}
