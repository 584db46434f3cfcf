//! What comes from the processes of a VM: the guest's serial line from whichever coordinates, and what the bootstrap itself says.
//!
//! ```text
//!   bootstrap ── standard output ──┐
//!   companion 1 ── the same ───────┼─ bytes, as they come ─> lines ─> prompt, trouble, tests
//!   companion 2 ── the same ───────┘
//! ```
//! A slice that comes to coordinate goes on where the one before has stopped, in the middle of a line too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lab::HostNumber;

use super::console::Console;
use super::guest_console::GuestReport;
use crate::progress::Progress;

/// Lines that a failed run shows again.
const TAIL: usize = 12;

/// Collects it; may be used from several threads.
#[derive(Debug)]
pub(crate) struct Output {
    heard: Mutex<Heard>,
    progress: Arc<Progress>,
    /// Print it.
    loud: bool,
}

#[derive(Debug, Default)]
struct Heard {
    serial: Console,
    own: Console,
    guest: GuestReport,
    /// The guest has said something since somebody looked.
    news: bool,
    tail: Vec<String>,
}

impl Output {
    pub(crate) fn new(progress: &Arc<Progress>, loud: bool) -> Self {
        Self { heard: Mutex::default(), progress: Arc::clone(progress), loud }
    }

    /// Takes in what a slice has written to its standard output.
    pub(crate) fn serial(&self, host: HostNumber, bytes: &[u8]) {
        let mut heard = self.heard();
        for line in heard.serial.take(bytes) {
            heard.news |= heard.guest.take(&line);
            self.show(&mut heard, &format!("host {host} console: {line}"));
        }
    }

    /// Takes in what the bootstrap says.
    pub(crate) fn bootstrap(&self, host: HostNumber, bytes: &[u8]) {
        let mut heard = self.heard();
        for line in heard.own.take(bytes) {
            self.show(&mut heard, &format!("host {host} tessera: {line}"));
        }
    }

    fn show(&self, heard: &mut Heard, line: &str) {
        if self.loud {
            self.progress.say(line);
        }
        heard.tail.push(line.to_owned());
        if heard.tail.len() > TAIL {
            heard.tail.remove(0);
        }
    }

    /// What the guest's tests have said, if that is more than at the last look.
    pub(crate) fn news(&self) -> Option<GuestReport> {
        let mut heard = self.heard();
        std::mem::take(&mut heard.news).then(|| heard.guest.clone())
    }

    /// What the guest's tests have said.
    pub(crate) fn guest(&self) -> GuestReport {
        self.heard().guest.clone()
    }

    /// The VM was killed, perhaps in the middle of a line.
    pub(crate) fn killed(&self) {
        self.heard().serial.forget_line();
    }

    /// True once the login prompt was there.
    pub(crate) fn prompted(&self) -> bool {
        self.heard().serial.prompted()
    }

    /// What the guest's kernel complained of first.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.heard().serial.trouble().map(str::to_owned)
    }

    /// The last lines.
    pub(crate) fn tail(&self) -> Vec<String> {
        self.heard().tail.clone()
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_two_slices_have_written_is_one() {
        let output = Output::new(&Arc::new(Progress::new()), false);
        let [first, second] = [1, 2].map(|number| HostNumber::new(number).unwrap());
        output.serial(first, b"TEST futex pass\r\nTEST sig");
        assert_eq!(output.news().unwrap().tests.len(), 1);
        assert_eq!(output.news(), None);
        output.bootstrap(first, b"slice1 coordinates\n");
        output.serial(second, b"nal pass\r\nBUG: x\n");
        let tests: Vec<_> = output.news().unwrap().tests.into_keys().collect();
        assert_eq!(tests, ["futex", "signal"]);
        assert_eq!(output.trouble().unwrap(), "BUG: x");
        let tail = output.tail();
        assert_eq!(
            tail[1..3],
            ["host 1 tessera: slice1 coordinates", "host 2 console: TEST signal pass"]
        );
    }

    #[test]
    fn prompt_has_no_end_of_line() {
        let output = Output::new(&Arc::new(Progress::new()), false);
        output.serial(HostNumber::new(1).unwrap(), b"\r\ntessera login: ");
        assert!(output.prompted());
    }
}
