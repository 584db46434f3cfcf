//! What tests need of the machine they run on.
//!
//! A test that needs KVM, userfaultfd, RDMA or etcd asks [`has`]. Where the machine lacks it, the test says so
//! and returns, and the skip is noted in the file that `TESSERA_SKIPS` names: `./x test` lists them at its
//! end. The words of `TESSERA_REQUIRE` (`kvm,uffd,rdma,etcd`) turn these skips into failures, so that a machine
//! which is known to have something cannot lose the tests of it without notice. What no word names is
//! noted by [`skip`], and what a test leaves out of its cases by [`leave_out`].
#![forbid(unsafe_code)]

pub mod etcd;
pub mod processes;

use std::env;
use std::fmt::{self, Display, Formatter};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::thread;

/// Words of what must not be skipped, with commas between them.
pub const REQUIRE: &str = "TESSERA_REQUIRE";
/// The file that skips are noted in, one per line.
pub const SKIPS: &str = "TESSERA_SKIPS";

/// What a test may need of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `/dev/kvm`, and what Tessera needs of it.
    Kvm,
    /// userfaultfd, with the features that Tessera needs.
    Uffd,
    /// A port of an RDMA device.
    Rdma,
    /// The server program of etcd.
    Etcd,
}

impl Need {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Kvm, Self::Uffd, Self::Rdma, Self::Etcd];

    /// Its word in `TESSERA_REQUIRE`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Uffd => "uffd",
            Self::Rdma => "rdma",
            Self::Etcd => "etcd",
        }
    }
}

/// A word of `TESSERA_REQUIRE` that names nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord(String);

impl Display for UnknownWord {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let known = Need::ALL.map(Need::word).join(", ");
        write!(f, "{REQUIRE}: {:?} is none of {known}", self.0)
    }
}

impl std::error::Error for UnknownWord {}

/// What the value of `TESSERA_REQUIRE` names; nothing where it is empty.
///
/// # Errors
/// For a word that names nothing: it would require nothing, without a sign.
pub fn parse(value: &str) -> Result<Vec<Need>, UnknownWord> {
    let words = value.split(',').map(str::trim);
    let need = |word: &str| {
        let known = Need::ALL.into_iter().find(|need| need.word() == word);
        known.ok_or_else(|| UnknownWord(word.to_owned()))
    };
    if value.trim().is_empty() { Ok(Vec::new()) } else { words.map(need).collect() }
}

/// What this process must not skip.
///
/// # Errors
/// For a word that names nothing.
pub fn required() -> Result<Vec<Need>, UnknownWord> {
    let value = env::var_os(REQUIRE).unwrap_or_default();
    parse(&value.to_string_lossy())
}

/// Whether the machine has what the test needs, by what trying it gave. When not, the skip is noted and
/// the test must return.
///
/// # Panics
/// When `TESSERA_REQUIRE` names the need and the machine lacks it, or names something unknown.
#[must_use]
pub fn has<T, E: Display>(need: Need, tried: Result<T, E>) -> bool {
    let required = required().unwrap_or_else(|error| panic!("{error}"));
    let lacks = judge(&required, need, tried).unwrap_or_else(|error| panic!("{error}"));
    lacks.iter().for_each(|reason| skip(reason));
    lacks.is_none()
}

/// Why the test is skipped, if it is; an error where it must not be.
fn judge<T, E: Display>(
    required: &[Need],
    need: Need,
    tried: Result<T, E>,
) -> Result<Option<String>, String> {
    let word = need.word();
    match tried {
        Ok(_) => Ok(None),
        Err(error) if required.contains(&need) => {
            Err(format!("{REQUIRE} names {word}, but it cannot be used: {error}"))
        }
        Err(error) => Ok(Some(format!("{word}: {error}"))),
    }
}

/// Whether this process may open `/dev/kvm`; as [`has`].
///
/// # Panics
/// As [`has`].
#[must_use]
pub fn kvm() -> bool {
    has(Need::Kvm, open("/dev/kvm"))
}

/// Whether this process may open `/dev/userfaultfd`; as [`has`].
///
/// # Panics
/// As [`has`].
#[must_use]
pub fn uffd_device() -> bool {
    has(Need::Uffd, open("/dev/userfaultfd"))
}

fn open(device: &str) -> Result<(), String> {
    let opened = OpenOptions::new().read(true).write(true).open(device);
    opened.map(drop).map_err(|error| format!("open {device}: {error}"))
}

/// Notes that the test that calls this is skipped, for something that no word names.
pub fn skip(reason: &str) {
    note("skipped", reason);
}

/// Notes that the test that calls this leaves out some of its cases.
pub fn leave_out(reason: &str) {
    note("left out", reason);
}

fn note(what: &str, reason: &str) {
    let current = thread::current();
    let name = current.name().unwrap_or("a test");
    let program = env::current_exe().unwrap_or_default();
    let line = line(what, &program, name, reason);
    println!("{line}");
    if let Some(path) = env::var_os(SKIPS)
        && let Err(error) = append(Path::new(&path), &line)
    {
        panic!("note a skipped test in {}: {error}", path.display());
    }
}

/// Programs of tests end in a hash that says nothing to people.
fn line(what: &str, program: &Path, test: &str, reason: &str) -> String {
    let stem = program.file_stem().unwrap_or_default().to_string_lossy();
    let hash = |end: &str| end.len() == 16 && end.bytes().all(|byte| byte.is_ascii_hexdigit());
    let program =
        stem.rsplit_once('-').filter(|(_, end)| hash(end)).map_or(&*stem, |(name, _)| name);
    format!("{what}: {program} {test}: {}", reason.replace('\n', " "))
}

/// One write for the line, which the kernel appends as a whole: many programs share the file.
fn append(path: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)?
        .write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn words_are_read_and_unknown_ones_refused() {
        assert_eq!(parse(""), Ok(vec![]));
        assert_eq!(parse("kvm, rdma"), Ok(vec![Need::Kvm, Need::Rdma]));
        assert_eq!(parse("kvm,uffd,rdma,etcd"), Ok(Need::ALL.to_vec()));
        for wrong in ["KVM", "kvm,", "kvm;uffd", "userfaultfd"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.ends_with("is none of kvm, uffd, rdma, etcd"), "{error}");
        }
    }

    #[test]
    fn lines_name_program_and_test() {
        let named = |program: &str| line("skipped", Path::new(program), "a::b", "kvm: no\nway");

        assert_eq!(named("x/mesh-0123456789abcdef"), "skipped: mesh a::b: kvm: no way");
        assert_eq!(named("x/rdma-tests"), "skipped: rdma-tests a::b: kvm: no way");
    }

    #[test]
    fn what_is_required_fails_and_the_rest_is_skipped() {
        let lacks = || Err::<(), _>("nothing here");

        assert_eq!(judge(&[Need::Uffd], Need::Uffd, Ok::<_, String>(())), Ok(None));
        assert_eq!(judge(&[Need::Kvm], Need::Uffd, lacks()), Ok(Some("uffd: nothing here".into())));
        assert_eq!(
            judge(&Need::ALL, Need::Uffd, lacks()),
            Err("TESSERA_REQUIRE names uffd, but it cannot be used: nothing here".to_owned())
        );
    }

    #[test]
    fn notes_are_appended_whole() {
        let path = env::temp_dir().join(format!("tessera-needs-{}", std::process::id()));
        thread::scope(|scope| {
            for number in 0..8 {
                let path = &path;
                scope.spawn(move || append(path, &number.to_string().repeat(50)).unwrap());
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();

        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        let expected: Vec<_> = (0..8).map(|number| number.to_string().repeat(50)).collect();
        assert_eq!(lines, expected);
        assert!(append(Path::new("/proc/no/such"), "x").is_err());
    }
}
