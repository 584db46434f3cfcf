//! The disks of a guest that was killed: records on the raw one, file system and files on the other.
//!
//! ```text
//!   raw disk: records judged          file system: journal replayed, then checked (e2fsck -fn)
//!                                     files: taken out (debugfs), records judged
//!   fio's disk: each sector read and checked by fio
//! ```

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use guest_tests::records::{RECORD_BYTES, REGION_BYTES, Writer};

use crate::judge::fio_verify;

/// Blocks changed by the journal's replay, and nothing else (e2fsck(8), exit code).
const REPLAYED: i32 = 1;
/// What goes before the digest of fio's disk.
pub(crate) const FIO: &str = "each sector of fio's disk verified: ";
/// Seconds for each program.
const LIMIT: &str = "120";

/// What `xtask judge-disks` takes.
#[derive(Args, Debug)]
pub struct JudgeOptions {
    /// Life of the machine
    #[arg(long)]
    run: u64,
    /// The raw disk
    #[arg(long)]
    raw: PathBuf,
    /// The disk with the file system
    #[arg(long)]
    files: PathBuf,
    /// The raw disk was all zeros when this life began: judge every sector, old or new
    #[arg(long)]
    from_zeros: bool,
    /// The disk that fio overwrites
    #[arg(long)]
    fio: Option<PathBuf>,
    /// For each writer the last record acknowledged on the raw disk, or `-`
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    records: Vec<Last>,
    /// For each writer the last record acknowledged in files, or `-`
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    in_files: Vec<Last>,
}

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

/// Judges the disks and prints what was found.
///
/// # Errors
/// What was flushed is not there, or a disk cannot be read.
pub fn run(options: &JudgeOptions) -> Result<ExitCode> {
    let mut said = Vec::new();
    for (number, last) in (0..).zip(&options.records) {
        let writer = Writer { run: options.run, number };
        let mut region = vec![0; REGION_BYTES];
        File::open(&options.raw)
            .and_then(|disk| disk.read_exact_at(&mut region, number * REGION_BYTES as u64))
            .with_context(|| format!("read {}", options.raw.display()))?;
        let found = writer.judge(&region, last.0).with_context(|| format!("writer {number}"))?;
        said.push(format!("writer {number}: acknowledged {last}, {} checked", found.checked));
        if options.from_zeros {
            let sectors = writer.judge_sectors(&region, last.0);
            let sectors = sectors.with_context(|| format!("writer {number}"))?;
            said.push(format!("{sectors} sectors of records, all old or new"));
        }
    }
    let disk = &options.files;
    match program("e2fsck", &["-y", "-E", "journal_only"], disk)? {
        (Some(0 | REPLAYED), _) => {}
        (code, text) => bail!("the journal is not replayed ({code:?}): {text}"),
    }
    let (code, text) = program("e2fsck", &["-f", "-n"], disk)?;
    ensure!(code == Some(0), "the file system is broken ({code:?}): {text}");
    for (number, last) in (0..).zip(&options.in_files) {
        let writer = Writer { run: options.run, number };
        let folder = format!("/run-{}-{number}", options.run);
        let (log, current) = (take(disk, &folder, "log")?, take(disk, &folder, "current")?);
        let kept = judge_files(writer, &log, &current, last.0)
            .with_context(|| format!("files of writer {number}"))?;
        said.push(format!("files of writer {number}: acknowledged {last}, {kept} in the log"));
    }
    if let Some(disk) = &options.fio {
        said.push(format!("{FIO}{}", fio_verify::check(disk)?));
    }
    println!("{}", said.join("; "));
    Ok(ExitCode::SUCCESS)
}

/// Judges a log, to which a record was added and then synced, and a file that was replaced by a synced one.
/// Gives the number of records in the log.
fn judge_files(writer: Writer, log: &[u8], current: &[u8], last: Option<u64>) -> Result<u64> {
    let whole = log.chunks_exact(RECORD_BYTES);
    let right = |(number, bytes): &(u64, &[u8])| writer.number_of(bytes) == Some(*number);
    let kept = (0..).zip(whole).take_while(right).count() as u64;
    if let Some(last) = last {
        ensure!(kept > last, "record {kept} of the log is lost, {last} was acknowledged");
        let there = writer.number_of(current);
        ensure!(there >= Some(last), "the file has {there:?}, {last} was acknowledged");
    } else if !current.is_empty() {
        // Replaced by a whole one or not at all.
        ensure!(writer.number_of(current).is_some(), "the file is neither old nor new");
    }
    Ok(kept)
}

/// Runs a program on a disk; its exit code and what it said.
fn program(name: &str, arguments: &[&str], disk: &Path) -> Result<(Option<i32>, String)> {
    let output = Process::new("timeout")
        .args(["-k", "5", LIMIT, name])
        .args(arguments)
        .arg(disk)
        // A lab's host may say nothing, or not where programs for administrators are.
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {name}"))?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).trim().replace('\n', "; ")))
}

/// Takes a file out of a file system; empty if it is not there.
fn take(disk: &Path, folder: &str, name: &str) -> Result<Vec<u8>> {
    let copy = std::env::temp_dir().join(format!("tessera-judge-{}-{name}", std::process::id()));
    let request = format!("dump {folder}/{name} {}", copy.display());
    let (code, text) = program("debugfs", &["-R", &request], disk)?;
    ensure!(code == Some(0), "debugfs ended with {code:?}: {text}");
    let bytes = fs::read(&copy).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(Vec::new()),
        _ => Err(error),
    });
    drop(fs::remove_file(&copy));
    bytes.with_context(|| format!("read {}", copy.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: Writer = Writer { run: 1, number: 0 };

    fn log(records: u64) -> Vec<u8> {
        (0..records).flat_map(|number| WRITER.record(number)).collect()
    }

    #[test]
    fn files_may_be_ahead_of_what_was_told_but_not_behind() {
        let judge = |log: &[u8], current: &[u8], last| judge_files(WRITER, log, current, last);
        assert_eq!(judge(&[], &[], None).unwrap(), 0);
        assert_eq!(judge(&log(3), &WRITER.record(2), Some(2)).unwrap(), 3);
        let torn = [log(4), vec![0; 100]].concat();
        assert_eq!(judge(&torn, &WRITER.record(3), Some(2)).unwrap(), 4);
        assert!(judge(&log(2), &WRITER.record(2), Some(2)).is_err());
        assert!(judge(&log(3), &WRITER.record(1), Some(2)).is_err());
        assert!(judge(&log(3), &WRITER.record(2)[1..], Some(2)).is_err());
        assert!(judge(&[], &[0; RECORD_BYTES], None).is_err());
    }

    #[test]
    fn last_is_read_and_written_alike() {
        for text in ["-", "0", "17"] {
            assert_eq!(text.parse::<Last>().unwrap().to_string(), text);
        }
        assert!("x".parse::<Last>().is_err());
    }
}
