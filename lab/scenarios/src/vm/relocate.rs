//! `tessera vm` on the host of the bootstrap slice: what a whole VM is asked to do, and where its parts are.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::{Command, HostNumber, Stream};
use serde::Deserialize;
use serde_json::Value;

use super::scenario::Scenario;

/// For the move of a vCPU and the like.
const LIMIT: Duration = Duration::from_secs(150);
/// For all parts of a slice, one after the other, on emulated hosts.
const WHOLE_LIMIT: Duration = Duration::from_secs(900);
/// How a move that was given up is told; the cause follows.
const GIVEN_UP: &str = "it was not moved and runs on where it was: ";
/// How it is told that all is as it was to be; why follows.
const NOTHING: &str = "nothing to do: ";

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
        let whole = matches!(words, ["drain" | "spread" | "consolidate", ..]);
        let limit = if whole { WHOLE_LIMIT } else { LIMIT };
        let (is_done, said) = self.tell_vm(words, limit)?;
        read(is_done, &said).with_context(|| format!("tessera vm {}", words.join(" ")))
    }

    /// What each slice of the VM has.
    pub(crate) fn places(&self) -> Result<Vec<Places>> {
        let (is_done, said) = self.tell_vm(&["show"], LIMIT)?;
        ensure!(is_done, "tessera vm show: {said}");
        read_places(&said)
    }

    /// Whether it was done, and what it has said.
    fn tell_vm(&self, words: &[&str], limit: Duration) -> Result<(bool, String)> {
        let first = self.lab.host(HostNumber::new(1)?)?;
        let (program, control) = (self.program()?, self.control(first.number()));
        let words = [&[&program, "vm"], words, &["--control", &control, "--json"]].concat();
        let (status, lines) = first.run(&Command::new(words), limit)?;
        let of = |stream| {
            let lines = lines.iter().filter(|line| line.stream == stream);
            lines.map(|line| line.text.trim()).collect::<Vec<_>>().join(" ")
        };
        let said = if status.success() { of(Stream::Out) } else { of(Stream::Error) };
        Ok((status.success(), said))
    }
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

fn read_places(said: &str) -> Result<Vec<Places>> {
    #[derive(Deserialize)]
    struct Shown {
        slices: Vec<Places>,
    }
    let shown: Shown = serde_json::from_str(said).context("read where the VM's parts are")?;
    Ok(shown.slices)
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
            "1 of 7 parts have gone, and vcpu1 to slice0 failed: {GIVEN_UP}slice1: it waits"
        );
        assert_eq!(cause(&partly), given_up);
        let nothing = "tessera: the slice refuses: nothing to do: the VM is on slice0 alone";
        assert_eq!(cause(nothing), Said::Nothing("the VM is on slice0 alone".to_owned()));
        for other in [GIVEN_UP, NOTHING, "tessera: the VM is over, or has not begun", ""] {
            assert!(read(false, other).is_err(), "{other}");
        }
    }

    #[test]
    fn places_are_what_the_slices_say() {
        let said = r#"{"epoch":4,"slices":[
            {"slice":0,"vcpus":[0,2],"memory_mib":512,"devices":[0],"queues":[[0,0]]},
            {"slice":2,"vcpus":[],"memory_mib":0,"devices":[],"queues":[]}]}"#;
        let of = |slice, vcpus, memory_mib| Places { slice, vcpus, memory_mib };
        assert_eq!(read_places(said).unwrap(), [of(0, vec![0, 2], 512), of(2, Vec::new(), 0)]);
        assert!(read_places("{}").is_err());
    }
}
