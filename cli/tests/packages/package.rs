//! The package that is tried: one that is given, or one made of what `cli/Cargo.toml` lists.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names a package that cargo-deb has made.
const GIVEN: &str = "TESSERA_PACKAGE";
const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Where units and scripts are.
pub(crate) fn packaging() -> PathBuf {
    Path::new(CRATE).join("packaging")
}

/// A file `*.deb`.
pub(crate) struct Package {
    pub(crate) path: PathBuf,
}

impl Package {
    /// Leaves it, or a copy of what is given, in a folder.
    pub(crate) fn get(folder: &Path) -> Self {
        let path = folder.join("tessera.deb");
        match env::var_os(GIVEN) {
            Some(given) => drop(fs::copy(given, &path).unwrap()),
            None => make(folder, &path),
        }
        Self { path }
    }

    /// Its files, without what Debian asks of every package and without the ends of compressed ones.
    pub(crate) fn files(&self) -> BTreeSet<String> {
        let listed = Command::new("dpkg-deb").arg("--contents").arg(&self.path).output().unwrap();
        let text = String::from_utf8(listed.stdout).unwrap();
        let names = text.lines().filter_map(|line| line.rsplit_once(" ./").map(|(_, name)| name));
        let is_file = |name: &&str| !name.is_empty() && !name.ends_with('/');
        let files = names.filter(is_file).filter(|name| !name.ends_with("/copyright"));
        files.map(|name| name.trim_end_matches(".gz").to_owned()).collect()
    }
}

/// As cargo-deb does it, but for dependencies on libraries.
fn make(folder: &Path, package: &Path) {
    let root = folder.join("root");
    let made = folder.join("made");
    let program = env!("CARGO_BIN_EXE_tessera");
    assert!(Command::new(program).arg("package-files").arg(&made).status().unwrap().success());
    let manifest = fs::read_to_string(Path::new(CRATE).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let deb = &manifest["package"]["metadata"]["deb"];
    for asset in deb["assets"].as_array().unwrap() {
        let word = |at: usize| asset[at].as_str().unwrap();
        let mode = u32::from_str_radix(word(2), 8).unwrap();
        for source in sources(word(0), &made) {
            let target = root.join(word(1));
            let target = match source.file_name() {
                Some(name) if word(1).ends_with('/') => target.join(name),
                _ => target,
            };
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(&source, &target).unwrap_or_else(|error| panic!("{source:?}: {error}"));
            fs::set_permissions(&target, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    let control = root.join("DEBIAN");
    fs::create_dir(&control).unwrap();
    for entry in fs::read_dir(packaging().join("scripts")).unwrap() {
        let script = entry.unwrap();
        fs::copy(script.path(), control.join(script.file_name())).unwrap();
    }
    let settings = "/etc/tessera/agent.env\n/etc/tessera/orchestrator.env\n";
    fs::write(control.join("conffiles"), settings).unwrap();
    let maintainer = deb["maintainer"].as_str().unwrap();
    let fields = format!(
        "Package: tessera\nVersion: 0.0.1\nArchitecture: amd64\nMaintainer: {maintainer}\nDescription: tried\n"
    );
    fs::write(control.join("control"), fields).unwrap();
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Znone", "--build"]).arg(&root).arg(package);
    let built = build.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::remove_dir_all(&root).unwrap();
}

/// What an entry names: the program, something that it writes, or files of the tree.
fn sources(name: &str, made: &Path) -> Vec<PathBuf> {
    let path = match name.strip_prefix("target/release/") {
        Some("tessera") => return vec![env!("CARGO_BIN_EXE_tessera").into()],
        Some(built) => made.join(built.strip_prefix("packaging/").unwrap()),
        None => Path::new(CRATE).join(name),
    };
    let last = path.file_name().unwrap().to_str().unwrap();
    let Some(end) = last.strip_prefix('*') else { return vec![path] };
    let entries = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = entries.filter(|path| path.to_str().unwrap().ends_with(end)).collect();
    assert!(!found.is_empty(), "{name} names nothing");
    found
}
