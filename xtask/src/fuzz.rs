//! `./x fuzz`: builds the fuzz program, which has all targets, replays the inputs that are kept in git, and looks for more.
//!
//! It is built by the same stable compiler as all else. What libFuzzer needs of it, counters
//! on edges and comparisons, is a pass of LLVM (`sancov-module`) that `-C passes` runs; only sanitizers
//! would need the nightly compiler. Overflow checks and debug assertions are on.
//!
//! `fuzz/corpus/TARGET.hex` has one input per line: small, and a change of it can be read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::workspace;

const TRIPLE: &str = "x86_64-unknown-linux-gnu";
const FLAGS: [&str; 8] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "-Ccodegen-units=1",
];
/// Most bytes of the inputs of one target that are kept in git.
const KEPT_BYTES_MAX: usize = 8 << 10;

#[derive(Args, Debug)]
pub(crate) struct FuzzOptions {
    /// Seconds for each target; 0 only replays what is kept
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Keep the smallest inputs that reach most, in fuzz/corpus
    #[arg(long)]
    keep: bool,
    /// Targets; all if none is named
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

pub(crate) fn run(options: &FuzzOptions) -> Result<ExitCode> {
    let root = workspace::root()?;
    let all = targets(&root)?;
    if let Some(unknown) = options.targets.iter().find(|target| !all.contains(*target)) {
        bail!("{unknown} is none of {}", all.join(", "));
    }
    let wanted = if options.targets.is_empty() { &all } else { &options.targets };
    let program = build(&root)?;
    let mut failed = Vec::new();
    for target in wanted {
        let rig = Rig { root: &root, target, program: &program };
        println!("x: fuzz {target}");
        if !rig.fuzz(options.seconds)? {
            failed.push(target.as_str());
        } else if options.keep {
            rig.keep()?;
        }
    }
    if failed.is_empty() {
        println!("fuzz: no finding in {} targets, {} s each", wanted.len(), options.seconds);
        return Ok(ExitCode::SUCCESS);
    }
    println!("fuzz: FINDINGS in {}; the inputs are in fuzz/artifacts", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Names of all targets, sorted.
fn targets(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("fuzz/corpus");
    let entries = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "hex") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Builds the program and returns where it is.
fn build(root: &Path) -> Result<PathBuf> {
    let target = workspace::target(root).join("fuzz");
    let status = Command::new(workspace::cargo())
        .args(["build", "-q", "--release", "--locked", "--bins", "--target", TRIPLE])
        .arg("--manifest-path")
        .arg(root.join("fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"))
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "the fuzz program does not build");
    Ok(target.join(TRIPLE).join("release/target"))
}

/// One target and its folders.
struct Rig<'a> {
    root: &'a Path,
    target: &'a str,
    program: &'a Path,
}

impl Rig<'_> {
    /// The program with this target.
    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.env("TESSERA_FUZZ_TARGET", self.target);
        command
    }

    fn kept(&self) -> PathBuf {
        self.root.join("fuzz/corpus").join(format!("{}.hex", self.target))
    }

    /// A new folder of this target's in the build folder.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = workspace::target(self.root).join("fuzz").join(name).join(self.target);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("clear {}", path.display()))?;
        }
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// Replays what is kept and goes on from there; false for a finding.
    fn fuzz(&self, seconds: u32) -> Result<bool> {
        let kept = self.kept();
        let text = fs::read_to_string(&kept).with_context(|| {
            format!("read {}; ./x fuzz --keep makes it anew from an empty one", kept.display())
        })?;
        let corpus = self.folder("corpus")?;
        for (number, line) in text.lines().enumerate() {
            let bytes = from_hex(line).with_context(|| {
                format!("{}:{}: no hexadecimal bytes", kept.display(), number + 1)
            })?;
            fs::write(corpus.join(format!("kept-{number:04}")), bytes)?;
        }
        let found = self.root.join("fuzz/artifacts").join(self.target);
        fs::create_dir_all(&found).with_context(|| format!("make {}", found.display()))?;
        let bound =
            if seconds == 0 { "-runs=0".into() } else { format!("-max_total_time={seconds}") };
        let status = self
            .command()
            .arg(&corpus)
            .args([bound.as_str(), "-max_len=140000", "-timeout=10", "-verbosity=0"])
            .args(["-print_final_stats=1", "-reduce_inputs=1"])
            .arg(format!("-artifact_prefix={}/", found.display()))
            .stdin(Stdio::null())
            .status()
            .with_context(|| format!("start {}", self.program.display()))?;
        Ok(status.success())
    }

    /// Takes the smallest inputs among those that libFuzzer needs for what it has reached.
    fn keep(&self) -> Result<()> {
        let corpus = workspace::target(self.root).join("fuzz/corpus").join(self.target);
        let merged = self.folder("merged")?;
        let status = self
            .command()
            .args(["-merge=1", "-verbosity=0"])
            .args([&merged, &corpus])
            .stdin(Stdio::null())
            .status()
            .with_context(|| format!("start {}", self.program.display()))?;
        ensure!(status.success(), "libFuzzer cannot merge the inputs of {}", self.target);
        let entries = fs::read_dir(&merged)?.map(|entry| Ok(fs::read(entry?.path())?));
        let text = smallest(entries.collect::<Result<_>>()?);
        fs::write(self.kept(), &text)
            .with_context(|| format!("write {}", self.kept().display()))?;
        println!("x: {} has {} inputs", self.kept().display(), text.lines().count());
        Ok(())
    }
}

/// The smallest inputs up to the bound, as lines.
fn smallest(mut inputs: Vec<Vec<u8>>) -> String {
    inputs.sort_by(|one, other| one.len().cmp(&other.len()).then_with(|| one.cmp(other)));
    let mut bytes = 0;
    let fits = |input: &&Vec<u8>| {
        bytes += input.len();
        bytes <= KEPT_BYTES_MAX
    };
    inputs.iter().take_while(fits).map(|input| to_hex(input) + "\n").collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.bytes().map(|byte| char::from(byte).to_digit(16));
    let digits: Vec<u8> = digits.map(|digit| u8::try_from(digit?).ok()).collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_and_nonsense_is_refused() {
        for bytes in [vec![], vec![0], vec![0x0f, 0xf0, 0xff]] {
            assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        }
        assert_eq!([from_hex("0"), from_hex("0g"), from_hex("é0")], [None, None, None]);
    }

    #[test]
    fn smallest_inputs_are_kept() {
        let large = vec![7; KEPT_BYTES_MAX];

        assert_eq!(smallest(vec![large, vec![2, 1], vec![3]]), "03\n0201\n");
    }

    /// Kept inputs are found by the names of the targets' files.
    #[test]
    fn every_target_has_kept_inputs_and_they_have_one() {
        let root = workspace::root().unwrap();
        let found = targets(&root).unwrap();
        assert!(!found.is_empty());
        for target in found {
            assert!(root.join(format!("lab/fuzz-targets/src/{target}.rs")).exists(), "{target}");
            let text = fs::read_to_string(root.join(format!("fuzz/corpus/{target}.hex"))).unwrap();
            assert!(text.lines().all(|line| from_hex(line).is_some()), "{target}");
        }
    }
}
