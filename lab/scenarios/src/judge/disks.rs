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
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use guest_tests::records::{RECORD_BYTES, REGION_BYTES, Writer};

use super::fio_verify;
use super::last::Last;

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

/// Judges the disks and prints what was found.
///
/// # Errors
/// What was flushed is not there, or a disk cannot be read.
pub fn run(options: &JudgeOptions) -> Result<ExitCode> {
    let mut said = judge_raw(options)?;
    check_file_system(&options.files)?;
    said.extend(judge_all_files(options)?);
    if let Some(disk) = &options.fio {
        said.push(format!("{FIO}{}", fio_verify::check(disk)?));
    }
    println!("{}", said.join("; "));
    Ok(ExitCode::SUCCESS)
}

/// Judges the region of each writer on the raw disk.
fn judge_raw(options: &JudgeOptions) -> Result<Vec<String>> {
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
    Ok(said)
}

/// Replays the journal; after that nothing may be wrong any more.
fn check_file_system(disk: &Path) -> Result<()> {
    match program("e2fsck", &["-y", "-E", "journal_only"], disk)? {
        // Of a journal that is broken e2fsck asks first, and then mends everything else too.
        (Some(0 | REPLAYED), text) if !text.contains("? yes") => {}
        (code, text) => bail!("the journal is not replayed ({code:?}): {text}"),
    }
    let (code, text) = program("e2fsck", &["-f", "-n"], disk)?;
    ensure!(code == Some(0), "the file system is broken ({code:?}): {text}");
    Ok(())
}

/// Judges the files of each writer in the file system.
fn judge_all_files(options: &JudgeOptions) -> Result<Vec<String>> {
    let mut said = Vec::new();
    for (number, last) in (0..).zip(&options.in_files) {
        let writer = Writer { run: options.run, number };
        let folder = format!("/run-{}-{number}", options.run);
        let (log, current) =
            (take(&options.files, &folder, "log")?, take(&options.files, &folder, "current")?);
        let kept = judge_files(writer, &log, &current, last.0)
            .with_context(|| format!("files of writer {number}"))?;
        said.push(format!("files of writer {number}: acknowledged {last}, {kept} in the log"));
    }
    Ok(said)
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
    // Several may be taken at once.
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), TAKEN.fetch_add(1, Ordering::Relaxed));
    let copy = std::env::temp_dir().join(format!("tessera-judge-{process}-{number}-{name}"));
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
    use guest_tests::records::slot;

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

    /// Disks of a life in which writer 0 was told of record 15, on the raw disk and in files.
    struct Life {
        folder: PathBuf,
        options: JudgeOptions,
    }

    impl Life {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("tessera-judge-{name}-{}", std::process::id()));
            let files = folder.join("tree/run-1-0");
            fs::create_dir_all(&files).unwrap();
            fs::write(folder.join("raw"), vec![0; REGION_BYTES]).unwrap();
            fs::write(files.join("log"), log(16)).unwrap();
            fs::write(files.join("current"), WRITER.record(15)).unwrap();
            let made = Process::new("mke2fs")
                .args(["-q", "-t", "ext4", "-d"])
                .arg(folder.join("tree"))
                .arg(folder.join("ext4"))
                .arg("4M")
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                .status()
                .unwrap();
            assert!(made.success());
            let options = JudgeOptions {
                run: WRITER.run,
                raw: folder.join("raw"),
                files: folder.join("ext4"),
                from_zeros: true,
                fio: None,
                records: vec![Last(Some(15))],
                in_files: vec![Last(Some(15))],
            };
            let life = Self { folder, options };
            (0..16).for_each(|number| life.write(&WRITER.record(number), number));
            life
        }

        /// Writes to the place of a record on the raw disk.
        fn write(&self, bytes: &[u8], number: u64) {
            let disk = File::options().write(true).open(&self.options.raw).unwrap();
            disk.write_all_at(bytes, (slot(number) * RECORD_BYTES) as u64).unwrap();
        }

        fn error(&self) -> String {
            format!("{:#}", run(&self.options).unwrap_err())
        }
    }

    impl Drop for Life {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.folder).unwrap();
        }
    }

    #[test]
    fn disks_with_all_that_was_told_are_good() {
        let life = Life::new("good");

        assert_eq!(run(&life.options).unwrap(), ExitCode::SUCCESS);
        let said = [judge_raw(&life.options).unwrap(), judge_all_files(&life.options).unwrap()];
        assert_eq!(
            said.concat(),
            [
                "writer 0: acknowledged 15, 16 checked",
                "128 sectors of records, all old or new",
                "files of writer 0: acknowledged 15, 16 in the log"
            ]
        );
    }

    #[test]
    fn record_that_is_lost_or_torn_on_the_raw_disk_is_found() {
        let mut life = Life::new("raw");
        life.options.records = vec![Last(Some(16))];
        assert!(life.error().contains("writer 0"));
        life.options.records = vec![Last(Some(15))];
        // Half of a record that was flushed is from before.
        life.write(&[0; RECORD_BYTES / 2], 3);
        assert!(life.error().contains("writer 0"));
        // A sector of one that was not flushed is neither old nor new.
        life.write(&WRITER.record(3), 3);
        life.write(&[7; 512], 100);
        assert!(life.error().contains("neither old nor new"));
        life.options.from_zeros = false;
        assert_eq!(run(&life.options).unwrap(), ExitCode::SUCCESS);
    }

    #[test]
    fn lost_files_and_a_broken_file_system_are_found() {
        let mut life = Life::new("files");
        life.options.in_files = vec![Last(Some(16))];
        assert!(life.error().contains("files of writer 0"));
        life.options.in_files = vec![Last(Some(15)), Last(Some(0))];
        assert!(life.error().contains("files of writer 1"));
        life.options.in_files.clear();
        assert_eq!(run(&life.options).unwrap(), ExitCode::SUCCESS);
        let debugfs = |request| program("debugfs", &["-w", "-R", request], &life.options.files);
        assert_eq!(debugfs("clri /run-1-0/log").unwrap().0, Some(0));
        assert!(life.error().contains("the file system is broken"));
        // Inode 8 is the journal.
        assert_eq!(debugfs("clri <8>").unwrap().0, Some(0));
        assert!(life.error().contains("the journal is not replayed"));
    }
}
