//! `tessera vm` on the host of the slice that coordinates: what a whole VM is asked to do, and where its parts are.
//!
//! ```text
//!   slice 0 ─┬─ it answers ─> Said
//!            ├─ ask slice N ─> slice N ─> ...
//!            └─ nobody there ─> slice 1 ─> ...
//! ```

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::{Command, Stream};
use serde::Deserialize;
use serde_json::Value;

use super::scenario::Scenario;

/// For the move of a vCPU and the like.
const LIMIT: Duration = Duration::from_secs(150);
/// For all parts of a slice, one after the other, on emulated hosts.
pub(super) const WHOLE_LIMIT: Duration = Duration::from_secs(900);
/// How a move that was given up is told; the cause follows.
const GIVEN_UP: &str = "it was not moved and runs on where it was: ";
/// How it is told that all is as it was to be; why follows.
const NOTHING: &str = "nothing to do: ";

/// How a slice that does not coordinate says who does: its number is between the two.
const ELSEWHERE: &str = "the slice refuses: ask slice";
const COORDINATES: &str = ", which coordinates the VM";
/// How it is told that nobody is at a control socket.
pub(crate) const NOBODY: &str = "connect to the control socket";

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    /// It took so many milliseconds there.
    Took(f64),
    /// All is as it was to be; why.
    Nothing(String),
    /// A vCPU runs on where it was; why. Parts before it may have gone.
    GivenUp(String),
}

/// What one slice has.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) slice: usize,
    pub(crate) vcpus: Vec<usize>,
    pub(crate) memory_mib: u64,
}

impl Scenario<'_> {
    /// `tessera vm WORDS`. Whatever is not in [`Said`] is an error.
    pub(crate) fn ask_vm(&self, words: &[&str]) -> Result<Said> {
        let whole = matches!(words, ["drain" | "spread" | "consolidate" | "add", ..]);
        let limit = if whole { WHOLE_LIMIT } else { LIMIT };
        let (is_done, said) = self.tell_vm(words, limit)?;
        read(is_done, &said).with_context(|| format!("tessera vm {}", words.join(" ")))
    }

    /// Whether slice 0 coordinates, which alone can have others join.
    pub(crate) fn is_led_by_the_bootstrap(&self) -> Result<bool> {
        Ok(shown(self.tell_vm(&["show"], LIMIT)?)?.coordinator == 0)
    }

    /// Has the guest have so many vCPUs; which it has then.
    pub(crate) fn ask_cpus(&self, count: usize) -> Result<Vec<usize>> {
        let (is_done, said) = self.tell_vm(&["cpus", &count.to_string()], LIMIT)?;
        ensure!(is_done, "tessera vm cpus {count}: {said}");
        let answer: Value = serde_json::from_str(&said).context("read what it says")?;
        serde_json::from_value(answer["present"].clone()).context("read which vCPUs it has")
    }

    /// What each slice of the VM has.
    pub(crate) fn places(&self) -> Result<Vec<Places>> {
        let known = shown(self.tell_vm(&["show"], LIMIT)?)?;
        if known.coordinator == 0 {
            return Ok(known.slices);
        }
        // Slice 0 may be about to end, and know less than the one that coordinates.
        Ok(shown(self.tell_slice(known.coordinator, &["show"], LIMIT)?)?.slices)
    }

    /// Whether it was done, and what was said: by the slice that coordinates, or by any that will do.
    pub(super) fn tell_vm(&self, words: &[&str], limit: Duration) -> Result<(bool, String)> {
        let (mut slice, mut asked) = (0, 0);
        let bound = self.joined.bound(self.layout.slices());
        loop {
            let (is_done, said) = self.tell_slice(slice, words, limit)?;
            let next = if is_done { None } else { next(slice, &said) };
            asked += 1;
            // The coordination may be elsewhere at each try, and half of the slices gone.
            match next.filter(|next| *next < bound) {
                Some(next) if asked <= 2 * bound => slice = next,
                _ => return Ok((is_done, said)),
            }
        }
    }

    fn tell_slice(&self, slice: usize, words: &[&str], limit: Duration) -> Result<(bool, String)> {
        let host = self.host(slice)?;
        let (program, control) = (self.program()?, self.control(host.number()));
        let words = [&[&program, "vm"], words, &["--control", &control, "--json"]].concat();
        let (status, lines) = host.run(&Command::new(words), limit)?;
        let of = |stream| {
            let lines = lines.iter().filter(|line| line.stream == stream);
            lines.map(|line| line.text.trim()).collect::<Vec<_>>().join(" ")
        };
        let said = if status.success() { of(Stream::Out) } else { of(Stream::Error) };
        Ok((status.success(), said))
    }
}

/// The slice to ask instead of one that does not coordinate, or has left; none if that has answered, or nobody may know.
fn next(slice: usize, said: &str) -> Option<usize> {
    if said.contains(NOBODY) {
        return Some(slice + 1);
    }
    let (_, behind) = said.split_once(ELSEWHERE)?;
    let number = behind.split_once(COORDINATES)?.0;
    number.parse().ok().filter(|other| *other != slice)
}

fn read(is_done: bool, said: &str) -> Result<Said> {
    if is_done {
        let answer: Value = serde_json::from_str(said).context("read what it says")?;
        let took = answer["milliseconds"].as_f64();
        return Ok(Said::Took(took.context("it does not say how long it took")?));
    }
    let behind = |words| said.split_once(words).map(|(_, why)| why).filter(|why| !why.is_empty());
    if let Some(why) = behind(GIVEN_UP) {
        return Ok(Said::GivenUp(why.to_owned()));
    }
    match behind(NOTHING) {
        Some(why) => Ok(Said::Nothing(why.to_owned())),
        None => bail!("{said}"),
    }
}

/// Where everything is.
#[derive(Debug, Deserialize)]
struct Shown {
    coordinator: usize,
    slices: Vec<Places>,
}

/// What `tessera vm show` says, if it was done.
fn shown((is_done, said): (bool, String)) -> Result<Shown> {
    ensure!(is_done, "tessera vm show: {said}");
    read_shown(&said)
}

fn read_shown(said: &str) -> Result<Shown> {
    serde_json::from_str(said).context("read where the VM's parts are")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_done_or_given_up_with_a_cause_or_there_is_nothing_to_do() {
        assert_eq!(read(true, r#"{"done":true,"milliseconds":7.5}"#).unwrap(), Said::Took(7.5));
        assert!(read(true, r#"{"done":true}"#).is_err());
        let cause = |said: &str| read(false, said).unwrap();
        let given_up = Said::GivenUp("slice1: it waits".to_owned());
        assert_eq!(cause(&format!("tessera: {GIVEN_UP}slice1: it waits")), given_up);
        let partly = format!(
            "1 of 7 steps are done, and the next one (vcpu1 to slice0) failed: {GIVEN_UP}slice1: it waits"
        );
        assert_eq!(cause(&partly), given_up);
        let nothing = "tessera: the slice refuses: nothing to do: the VM is on slice0 alone";
        assert_eq!(cause(nothing), Said::Nothing("the VM is on slice0 alone".to_owned()));
        for other in [GIVEN_UP, NOTHING, "tessera: the VM is over, or has not begun", ""] {
            assert!(read(false, other).is_err(), "{other}");
        }
    }

    #[test]
    fn slice_that_does_not_coordinate_names_the_next_to_ask() {
        let ask = |slice, other| {
            next(
                slice,
                &format!(
                    "tessera: the slice refuses: ask slice{other}, which coordinates the VM, once the guest runs"
                ),
            )
        };
        assert_eq!((ask(0, "1"), ask(2, "0")), (Some(1), Some(0)));
        // Before the guest runs.
        assert_eq!((ask(0, "0"), ask(0, "x")), (None, None));
        let gone = "tessera: connect to the control socket /run/vm.sock: No such file or directory";
        assert_eq!(next(1, gone), Some(2));
        assert_eq!(next(1, "tessera: the slice has ended"), None);
        assert_eq!(next(0, "tessera: the slice refuses: nothing to do: all is even"), None);
    }

    #[test]
    fn places_are_what_the_slices_say() {
        let said = r#"{"epoch":4,"coordinator":2,"slices":[
            {"slice":0,"vcpus":[0,2],"memory_mib":512,"devices":[0],"queues":[[0,0]]},
            {"slice":2,"vcpus":[],"memory_mib":0,"devices":[],"queues":[]}]}"#;
        let of = |slice, vcpus, memory_mib| Places { slice, vcpus, memory_mib };
        let shown = read_shown(said).unwrap();
        assert_eq!(shown.slices, [of(0, vec![0, 2], 512), of(2, Vec::new(), 0)]);
        assert_eq!(shown.coordinator, 2);
        assert!(read_shown("{}").is_err());
    }
}
