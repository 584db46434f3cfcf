//! Builds the test programs of the workspace and runs them. Cargo runs one after the other, and most time goes by in programs that wait.
//!
//! ```text
//!   build ──> those that compute, niced ──┐
//!         └─> the others                ──┴─> examples in documentation
//! ```

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::workspace;

/// Folders of packages whose tests only compute, and other programs that do: models and simulators. No test of theirs looks at a clock.
const COMPUTING_FOLDERS: [&str; 3] = ["cluster/sim", "dsm/sim", "migrate/sim"];
const COMPUTING: [&str; 2] = ["invariants", "model"];
/// What computes leaves the processors to the others, which wait for leases, virtual machines and other processes most of the time: a lease
/// does not end for want of one.
const NICE: &str = "10";

/// Runs all tests, and shows `each` every line of what they say. False where one failed, or nothing could be built.
pub(crate) fn run(root: &Path, notes: &Path, each: &mut dyn FnMut(&str)) -> Result<bool> {
    let Some(programs) = build(root)? else { return Ok(false) };
    let (computing, others): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| program.computes);
    let mut failed = beside(&computing, &others, notes, each)?;
    let mut examples = Command::new(workspace::cargo());
    examples.args(["test", "--workspace", "--locked", "--no-fail-fast", "--doc"]);
    // Comments of .proto files are no Rust, which its manifest says; with --doc cargo does not look there.
    examples.args(["--exclude", "tessera-control"]).current_dir(root).env(needs::SKIPS, notes);
    failed.extend(failure("examples in documentation", show(&mut examples, each)));
    for line in &failed {
        eprintln!("failed: {line}");
    }
    Ok(failed.is_empty())
}

/// Runs a command and prints what it says as it comes.
pub(crate) fn show(command: &mut Command, each: &mut dyn FnMut(&str)) -> Result<ExitStatus> {
    listen(command, &mut |line| print(line, each))
}

/// One line about a program that has failed, or could not be run; the others run all the same.
fn failure(title: &str, ended: Result<ExitStatus>) -> Option<String> {
    match ended {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("{title}: {status}")),
        Err(error) => Some(format!("{title}: {error:#}")),
    }
}

/// Prints a line and shows it to `each`.
fn print(line: &[u8], each: &mut dyn FnMut(&str)) -> Result<()> {
    match stdout().write_all(line).and_then(|()| stdout().flush()) {
        // The reader of our output went away; the tests run on.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("print what the tests say")?,
    }
    each(String::from_utf8_lossy(line).trim_end());
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Program {
    /// Its source, as seen from the workspace.
    title: String,
    /// Of its package, from there too.
    folder: PathBuf,
    /// Where tests run: the same, from the root of the file system.
    runs_in: PathBuf,
    /// Unit tests have none.
    name: Option<String>,
    file: PathBuf,
    /// Whether it does little else.
    computes: bool,
}

impl Program {
    /// What a message of cargo's tells; None where it is about something else than a test program.
    fn read(message: &Value, root: &Path) -> Option<Self> {
        let is_test = message["profile"]["test"].as_bool()?;
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        let file = path(&message["executable"]).filter(|_| is_test)?;
        let inside = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_owned();
        let runs_in = path(&message["manifest_path"])?.parent()?.to_owned();
        let kinds = message["target"]["kind"].as_array()?;
        let name = message["target"]["name"].as_str()?.to_owned();
        let name = Some(name).filter(|_| kinds.iter().any(|kind| kind == "test"));
        let (folder, source) = (inside(&runs_in), path(&message["target"]["src_path"])?);
        let computes = computes(&folder, name.as_deref());
        let title = inside(&source).display().to_string();
        Some(Self { title, folder, runs_in, name, file, computes })
    }

    fn command(&self, notes: &Path) -> Command {
        let mut command = if self.computes {
            let mut nice = Command::new("nice");
            nice.args(["-n", NICE]).arg(&self.file);
            nice
        } else {
            Command::new(&self.file)
        };
        command.current_dir(&self.runs_in).env("CARGO_MANIFEST_DIR", &self.runs_in);
        command.env(needs::SKIPS, notes);
        command
    }
}

/// `name` is that of a program of tests; unit tests have none.
fn computes(folder: &Path, name: Option<&str>) -> bool {
    COMPUTING_FOLDERS.iter().any(|computing| folder == Path::new(computing))
        || name.is_some_and(|name| COMPUTING.contains(&name))
}

/// All test programs in order; None where cargo could not build them, which it has said.
fn build(root: &Path) -> Result<Option<Vec<Program>>> {
    let mut child = Command::new(workspace::cargo())
        .args(["test", "--workspace", "--locked", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo")?;
    let output = BufReader::new(child.stdout.take().context("the output of cargo")?);
    let root = fs::canonicalize(root).context("find the workspace")?;
    let mut programs = Vec::new();
    for message in serde_json::Deserializer::from_reader(output).into_iter::<Value>() {
        let message = message.context("read what cargo builds").inspect_err(|_| {
            // It may have ended by itself.
            let _ = child.kill();
        })?;
        programs.extend(Program::read(&message, &root));
    }
    if !child.wait().context("wait for cargo")?.success() {
        return Ok(None);
    }
    programs.sort_by(|a, b| (&a.folder, &a.title).cmp(&(&b.folder, &b.title)));
    are_there(&programs)?;
    Ok(Some(programs))
}

/// Refuses names of programs and folders here that are gone: what has another name then would not be niced.
fn are_there(programs: &[Program]) -> Result<()> {
    for name in COMPUTING {
        let is_there = programs.iter().any(|program| program.name.as_deref() == Some(name));
        ensure!(is_there, "no test program is called {name}: see xtask/src/test_programs.rs");
    }
    for folder in COMPUTING_FOLDERS {
        let is_there = programs.iter().any(|program| program.folder == Path::new(folder));
        ensure!(is_there, "no test program is in {folder}: see xtask/src/test_programs.rs");
    }
    Ok(())
}

/// What one of two rows has to tell.
enum Word {
    /// A program that runs has said that it takes long.
    Slow(String),
    /// A program has ended: its title, what it said, and how.
    Ended(String, Vec<u8>, Result<ExitStatus>),
}

/// Runs two rows of programs beside each other; those that have failed. What a program says is printed when it has ended, so that two
/// do not mix, but that a test takes long at once.
fn beside(
    computing: &[Program],
    others: &[Program],
    notes: &Path,
    each: &mut dyn FnMut(&str),
) -> Result<Vec<String>> {
    let (sender, words) = mpsc::channel();
    thread::scope(|scope| {
        for row in [others, computing] {
            let sender = sender.clone();
            scope.spawn(move || row.iter().for_each(|program| say(program, notes, &sender)));
        }
        drop(sender);
        let mut failed = Vec::new();
        for word in words {
            match word {
                Word::Slow(line) => eprintln!("{line}"),
                Word::Ended(title, text, ended) => {
                    eprintln!("     Ran {title}");
                    for line in text.split_inclusive(|byte| *byte == b'\n') {
                        print(line, each)?;
                    }
                    failed.extend(failure(&title, ended));
                }
            }
        }
        Ok(failed)
    })
}

/// Runs a program to its end.
fn say(program: &Program, notes: &Path, to: &mpsc::Sender<Word>) {
    eprintln!("     Running {}", program.title);
    let mut text = Vec::new();
    let ended = listen(&mut program.command(notes), &mut |line| {
        if line.windows(SLOW.len()).any(|part| part == SLOW) {
            let line = String::from_utf8_lossy(line).trim_end().to_owned();
            // Nobody listens where nothing can be printed any more.
            let _ = to.send(Word::Slow(format!("     {}: {line}", program.title)));
        }
        text.extend_from_slice(line);
        Ok(())
    });
    let _ = to.send(Word::Ended(program.title.clone(), text, ended));
}

/// What libtest says of a test that may hang.
const SLOW: &[u8] = b"has been running for over";

/// Runs a command, and hands over each line that it says as it comes.
fn listen(command: &mut Command, line: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<ExitStatus> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    let mut output = BufReader::new(child.stdout.take().context("the output of a test program")?);
    let mut bytes = Vec::new();
    while output.read_until(b'\n', &mut bytes).context("read what a test program says")? > 0 {
        line(&bytes)?;
        bytes.clear();
    }
    child.wait().context("wait for a test program")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(folder: &str, kind: &str, name: &str) -> Value {
        json!({
            "reason": "compiler-artifact",
            "manifest_path": format!("/w/{folder}/Cargo.toml"),
            "target": {"kind": [kind], "name": name, "src_path": format!("/w/{folder}/{name}.rs")},
            "profile": {"test": true},
            "executable": format!("/w/target/{name}-1"),
        })
    }

    #[test]
    fn test_programs_are_told_from_what_else_is_built() {
        let root = Path::new("/w");
        let library = json!({
            "manifest_path": "/w/dsm/Cargo.toml", "target": {"kind": ["lib"], "name": "dsm"},
            "profile": {"test": false}, "executable": null,
        });
        let binary = json!({
            "manifest_path": "/w/cli/Cargo.toml", "target": {"kind": ["bin"], "name": "tessera"},
            "profile": {"test": false}, "executable": "/w/target/tessera",
        });
        for other in [library, binary, json!({"reason": "build-finished", "success": true})] {
            assert_eq!(Program::read(&other, root), None, "{other}");
        }
        for (folder, kind, name, computes) in [
            ("dsm/sim", "test", "mapping", true),
            ("dsm/sim", "lib", "tessera_dsm_sim", true),
            ("cluster/agent", "test", "invariants", true),
            ("cli", "bin", "invariants", false),
            ("dsm", "test", "engine", false),
        ] {
            let program = Program::read(&message(folder, kind, name), root).unwrap();
            assert_eq!(
                (program.computes, program.runs_in),
                (computes, root.join(folder)),
                "{name}"
            );
        }
    }

    #[test]
    fn rows_run_to_their_ends_and_one_failure_counts() {
        let program = |file: &str, computes| Program {
            title: file.to_owned(),
            folder: PathBuf::new(),
            runs_in: PathBuf::from("/"),
            name: None,
            file: PathBuf::from(file),
            computes,
        };
        let others = [program("/bin/true", false), program("/bin/false", false)];
        let computing = [program("/bin/pwd", true)];
        let mut said = Vec::new();
        let notes = Path::new("/dev/null");

        let failed = beside(&computing, &others, notes, &mut |line| said.push(line.to_owned()));
        assert_eq!(failed.unwrap(), ["/bin/false: exit status: 1"]);
        assert_eq!(said, ["/"]);
        assert!(beside(&computing, &others[..1], notes, &mut |_| {}).unwrap().is_empty());
        // One that cannot be run does not keep the others from running.
        let gone = [program("/nothing/there", false), program("/bin/pwd", false)];
        let failed = beside(&[], &gone, notes, &mut |line| said.push(line.to_owned())).unwrap();
        assert!(failed.len() == 1 && failed[0].contains("/nothing/there"), "{failed:?}");
        assert_eq!(said, ["/", "/"]);
    }

    #[test]
    fn names_that_are_gone_are_told() {
        let root = Path::new("/w");
        let names = COMPUTING.iter().map(|name| message("cli", "test", name));
        let folders = COMPUTING_FOLDERS.iter().map(|folder| message(folder, "lib", "library"));
        let mut all: Vec<_> =
            names.chain(folders).filter_map(|message| Program::read(&message, root)).collect();
        assert!(are_there(&all).is_ok());
        let folder = all.pop().unwrap().folder;
        assert!(are_there(&all).unwrap_err().to_string().contains(folder.to_str().unwrap()));
        let name = all.remove(0).name.unwrap();
        assert!(are_there(&all).unwrap_err().to_string().contains(&name));
    }
}
