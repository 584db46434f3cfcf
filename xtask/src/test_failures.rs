//! What failed tests said, for the end of a run: who sees only that must see why.
//!
//! ```text
//!   outside --"failures:"--> names and blocks --"---- NAME stdout ----"--> a block: its last lines --"stack backtrace:"--> skipped
//!      ^-------------------"test result:", or the next program-------------------|
//! ```

use std::collections::VecDeque;

/// Tests that are told of, lines of each (the last ones, where a panic tells its message), and bytes of a line.
const TESTS: usize = 40;
const LINES: usize = 12;
const BYTES: usize = 600;

#[derive(Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Outside,
    Block,
    Backtrace,
}

/// The blocks of all programs.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    part: Part,
    tests: Vec<(String, VecDeque<String>)>,
}

impl Failures {
    pub(crate) fn read(&mut self, line: &str) {
        let title = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if line == "failures:" {
            // The second time only names follow, which the blocks have told.
            self.part = if self.part == Part::Outside { Part::Block } else { Part::Outside };
        } else if line.starts_with("test result: ") || line.starts_with("running ") {
            self.part = Part::Outside;
        } else if self.part == Part::Outside {
        } else if let Some(title) = title {
            self.part = Part::Block;
            self.tests.push((title.to_owned(), VecDeque::new()));
        } else if line == "stack backtrace:" {
            self.part = Part::Backtrace;
        } else if self.part == Part::Block
            && !line.is_empty()
            && let Some((_, lines)) = self.tests.last_mut()
        {
            lines.push_back(line[..line.floor_char_boundary(BYTES)].to_owned());
            if lines.len() > LINES {
                lines.pop_front();
            }
        }
    }

    /// A line for each test, and what it said last.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        let told = self.tests.iter().take(TESTS);
        told.flat_map(|(title, lines)| {
            [title.as_str()].into_iter().chain(lines.iter().map(String::as_str))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(failures: &mut Failures, text: &str) {
        text.lines().for_each(|line| failures.read(line));
    }

    #[test]
    fn each_failed_test_is_told_with_its_message_and_without_its_backtrace() {
        let mut failures = Failures::default();
        let many: String = (0..100).map(|line| format!("line {line}\n")).collect();
        read(
            &mut failures,
            &format!(
                "test a::one ... FAILED\n\nfailures:\n\n---- a::one stdout ----\n{many}\nthread 'a::one' panicked at a.rs:1:2:\n\
                 3: is not 4\nstack backtrace:\n   0: __rustc::rust_begin_unwind\n             at /rustc/std/panicking.rs:689:5\n\n\
                 ---- a::two stdout ----\n{}\n\nfailures:\n    a::one\n    a::two\n\ntest result: FAILED. 1 passed\n",
                "ä".repeat(BYTES)
            ),
        );
        read(
            &mut failures,
            "\nrunning 1 test\ntest b::three ... ok\n\ntest result: ok. 1 passed\n",
        );
        let lines: Vec<_> = failures.lines().collect();
        let half = "ä".repeat(BYTES / 2);
        let first = (90..100).map(|line| format!("line {line}"));
        let all = ["a::one".to_owned()].into_iter().chain(first).chain(
            ["thread 'a::one' panicked at a.rs:1:2:", "3: is not 4", "a::two", &half]
                .map(str::to_owned),
        );
        assert_eq!(lines, all.collect::<Vec<_>>());
    }

    #[test]
    fn program_that_dies_amid_its_failures_leaves_the_next_one_alone() {
        let mut failures = Failures::default();
        read(&mut failures, "failures:\n\n---- a stdout ----\nwhy\n");
        read(&mut failures, "\nrunning 2 tests\nsomething else\ntest result: ok. 2 passed\n");
        read(&mut failures, "failures:\n\n---- b stdout ----\nwhy not\n");
        assert_eq!(failures.lines().collect::<Vec<_>>(), ["a", "why", "b", "why not"]);
        (0..2 * TESTS).for_each(|_| read(&mut failures, "---- c stdout ----\n"));
        assert_eq!(failures.lines().count(), TESTS + 2);
    }
}
