//! `./x demo --record FILE`: the demo runs as a child; what it says is shown, and drawn in the end.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command as Process, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::svg::Recording;
use crate::interrupt::Interrupted;

const OPTION: &str = "--record";
/// A longer line is taken for several: whoever prints does not decide how much memory this takes.
const LONGEST_LINE: u64 = 16 * 1024;

/// Runs this program's own command line without the option, and writes the picture if that went well.
///
/// # Errors
/// The file cannot be written, or the demo cannot be started or listened to.
pub fn run(file: &Path) -> Result<ExitCode> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let possible = folder.is_none_or(Path::is_dir) && !file.is_dir();
    ensure!(possible, "cannot write {}: no such folder, or a folder itself", file.display());
    // Ctrl-c reaches the demo too. It ends in order, and its last lines are still to be shown.
    let _interrupted = Interrupted::listen()?;
    let words = without_record(env::args_os().skip(1));
    let (output, input) = io::pipe().context("make a pipe")?;
    let mut command = Process::new(env::current_exe().context("find this program")?);
    command.args(&words).stdin(Stdio::null());
    command.stdout(input.try_clone().context("make a pipe")?).stderr(input);
    let mut child = command.spawn().context("start the demo")?;
    // It has the writing ends of the pipe, which would never end then.
    drop(command);
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let recording = record(&format!("./x {}", words.join(" ")), output, io::stdout())?;
    let status = child.wait().context("wait for the demo")?;
    if !status.success() {
        println!("x: the demo ended with {status}: nothing is recorded");
        return Ok(ExitCode::FAILURE);
    }
    fs::write(file, recording.svg()).with_context(|| format!("write {}", file.display()))?;
    println!("x: recorded in {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// Passes all lines on, and keeps them with their times.
fn record(command: &str, from: impl Read, mut to: impl Write) -> Result<Recording> {
    let (start, mut from) = (Instant::now(), BufReader::new(from));
    let mut recording = Recording::new(command);
    let mut line = Vec::new();
    while (&mut from).take(LONGEST_LINE).read_until(b'\n', &mut line).context("hear the demo")? > 0
    {
        // Nobody reads any more: the demo goes on.
        drop(to.write_all(&line));
        recording.add(start.elapsed(), &String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(recording)
}

/// The words without `--record FILE` or `--record=FILE`. What follows `--` is not for this program.
fn without_record(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let (mut words, mut left) = (words.into_iter(), Vec::new());
    while let Some(word) = words.next() {
        if word == "--" {
            left.push(word);
            left.extend(words);
            break;
        }
        let text = word.to_string_lossy().into_owned();
        let value = text.strip_prefix(OPTION);
        match value {
            // Its file is the next word.
            Some("") => drop(words.next()),
            Some(value) if value.starts_with('=') => {}
            _ => left.push(word),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_option_is_taken_out() {
        let without = |line: &str| {
            let words = without_record(line.split(' ').map(OsString::from));
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };

        assert_eq!(without("demo --record a.svg --hosts 3"), "demo --hosts 3");
        assert_eq!(without("demo --hosts 3 --record=a.svg"), "demo --hosts 3");
        assert_eq!(without("demo --recorder x -- --record y"), "demo --recorder x -- --record y");
    }

    #[test]
    fn lines_are_passed_on_as_they_are_and_drawn() {
        let said = b"[   0 s] substrate: x\r\n\xff\nlast".as_slice();
        let mut shown = Vec::new();

        let svg = record("./x demo", said, &mut shown).unwrap().svg();

        assert_eq!(shown, said);
        assert!(svg.contains(">[   0 s] substrate: x</text>"), "{svg}");
        assert!(svg.contains(">\u{fffd}</text>") && svg.contains(">last</text>"), "{svg}");
    }

    #[test]
    fn line_without_end_is_cut() {
        let said = vec![b'x'; 100_000];
        let mut shown = Vec::new();

        let svg = record("./x demo", said.as_slice(), &mut shown).unwrap().svg();

        assert_eq!(shown, said);
        assert_eq!(svg.matches('…').count(), 7, "100,000 bytes are seven lines of 16 KiB");
    }
}
