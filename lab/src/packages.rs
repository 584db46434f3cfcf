//! QEMU and kernels out of Debian packages, without touching the machine's own packages.
//!
//! The lab needs a newer QEMU than Debian 12 has (7.2 corrupts guests under its emulated SVM) and
//! kernels that are never installed. Both come from the machine's own archive with only the suite
//! changed to `<codename>-backports`: a private apt configuration with its own lists, whose archive
//! address and keys are what `apt-get indextargets` says about the machine's main suite. The packages
//! are downloaded and unpacked into the cache, nothing is configured.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache;

const LISTS_LIMIT: Duration = Duration::from_secs(300);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(900);
const UNPACK_LIMIT: Duration = Duration::from_secs(300);
const QUERY_LIMIT: Duration = Duration::from_secs(60);
/// Raise this when what is downloaded or how it is laid out changes.
const LAYOUT: &str = "1";

/// The unpacked packages.
#[derive(Clone, Debug)]
pub(crate) struct Packages {
    /// Root of the unpacked QEMU.
    pub(crate) qemu: PathBuf,
    /// Root of the generic kernel that lab hosts run.
    pub(crate) host_kernel: PathBuf,
    /// Root of the cloud kernel that guests run.
    pub(crate) guest_kernel: PathBuf,
}

/// Gives the packages, downloading them the first time; `say` is told what is going on.
pub(crate) fn prepare(say: &dyn Fn(&str)) -> Result<Packages> {
    let root = cache::root()?;
    let folder = root.join("packages");
    let _lock = cache::lock(&root.join("packages.lock"))?;
    let packages = Packages {
        qemu: folder.join("qemu"),
        host_kernel: folder.join("kernel-host"),
        guest_kernel: folder.join("kernel-guest"),
    };
    let marker = folder.join("complete");
    if fs::read_to_string(&marker).is_ok_and(|layout| layout == LAYOUT) {
        return Ok(packages);
    }
    cache::remove_folder(&folder)?;
    let apt = Apt::new(&root.join("apt"))?;
    say(&format!("fetching the package list of {} (once, into {})", apt.suite, root.display()));
    apt.update()?;
    apt.unpack(
        say,
        &["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"],
        &packages.qemu,
    )?;
    for (meta, target) in [
        ("linux-image-amd64", &packages.host_kernel),
        ("linux-image-cloud-amd64", &packages.guest_kernel),
    ] {
        let kernel = apt.dependency(meta)?;
        apt.unpack(say, &[&kernel], target)?;
        index_modules(target)?;
    }
    fs::write(&marker, LAYOUT).with_context(|| format!("write {}", marker.display()))?;
    Ok(packages)
}

/// Unpacks a package of the suite into a folder, which is made anew.
pub(crate) fn unpack(name: &str, target: &Path, say: &dyn Fn(&str)) -> Result<()> {
    let root = cache::root()?;
    let _lock = cache::lock(&root.join("packages.lock"))?;
    let apt = Apt::new(&root.join("apt"))?;
    apt.update()?;
    cache::remove_folder(target)?;
    apt.unpack(say, &[name], target)
}

/// Writes `modules.dep` and its like, which the package would make when installed.
pub(crate) fn index_modules(kernel: &Path) -> Result<()> {
    let version = only_entry(&kernel.join("lib/modules"))?;
    cache::run("depmod", &["-b", text(kernel)?, &version], UNPACK_LIMIT).map(drop)
}

/// The name of the single entry of a folder.
pub(crate) fn only_entry(folder: &Path) -> Result<String> {
    let mut names = fs::read_dir(folder)
        .with_context(|| format!("list {}", folder.display()))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        _ => bail!("{} should hold exactly one entry", folder.display()),
    }
}

/// A path as text for a command line.
pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// A private apt that knows one suite only.
struct Apt {
    options: Vec<String>,
    suite: String,
    archives: PathBuf,
}

impl Apt {
    fn new(folder: &Path) -> Result<Self> {
        let (lists, archives) = (folder.join("lists/partial"), folder.join("archives"));
        for folder in [&lists, &archives, &folder.join("cache/archives/partial")] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let archive = machine_archive()?;
        let suite = format!("{}-backports", archive.codename);
        let sources = folder.join("sources.list");
        let line = format!("deb {}{} {suite} main\n", archive.options, archive.address);
        fs::write(&sources, line).with_context(|| format!("write {}", sources.display()))?;
        let options = [
            format!("Dir::Etc::sourcelist={}", text(&sources)?),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", text(&folder.join("lists"))?),
            format!("Dir::Cache={}", text(&folder.join("cache"))?),
            // The cache may be readable by its owner only; apt's own user could not write there.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let options = options.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect();
        Ok(Self { options, suite, archives })
    }

    fn run(&self, program: &str, arguments: &[&str], limit: Duration) -> Result<String> {
        let mut all: Vec<&str> = self.options.iter().map(String::as_str).collect();
        all.extend(arguments);
        let output = cache::run(program, &all, limit)?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    fn update(&self) -> Result<()> {
        self.run("apt-get", &["-q", "update"], LISTS_LIMIT)
            .context("fetch the package list; is the package archive reachable?")
            .map(drop)
    }

    /// The one package a meta package of the suite depends on.
    fn dependency(&self, meta: &str) -> Result<String> {
        let target = format!("{meta}/{}", self.suite);
        let said = self.run("apt-cache", &["depends", &target], QUERY_LIMIT)?;
        said.lines()
            .find_map(|line| line.trim().strip_prefix("Depends: ").map(str::to_owned))
            .with_context(|| format!("{target} depends on nothing"))
    }

    fn unpack(&self, say: &dyn Fn(&str), names: &[&str], target: &Path) -> Result<()> {
        let folder = self.archives.join(names.first().context("a package name")?);
        cache::remove_folder(&folder)?;
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        for name in names {
            say(&format!("downloading {name} from {}", self.suite));
            let exact = format!("{name}/{}", self.suite);
            // `apt-get download` writes into the current folder.
            let here = "cd \"$1\" && shift && exec \"$@\"";
            let mut arguments = vec!["-c", here, "sh", text(&folder)?, "apt-get"];
            arguments.extend(self.options.iter().map(String::as_str));
            arguments.extend(["-q", "download", &exact]);
            cache::run("sh", &arguments, DOWNLOAD_LIMIT)?;
        }
        fs::create_dir_all(target).with_context(|| format!("create {}", target.display()))?;
        for entry in fs::read_dir(&folder)? {
            let package = entry?.path();
            cache::run("dpkg-deb", &["-x", text(&package)?, text(target)?], UNPACK_LIMIT)?;
        }
        cache::remove_folder(&folder)
    }
}

/// The machine's own Debian archive.
struct Archive {
    codename: String,
    address: String,
    /// Options of a sources line with a space at the end, or nothing.
    options: String,
}

fn machine_archive() -> Result<Archive> {
    let release = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let field = |name: &str| {
        release.lines().find_map(|line| line.strip_prefix(name)).map(|v| v.trim_matches('"'))
    };
    let (id, codename) = (field("ID=").unwrap_or(""), field("VERSION_CODENAME=").unwrap_or(""));
    if (id, codename) != ("debian", "bookworm") {
        bail!("lab machines need Debian 12 (bookworm); this machine says '{id}' '{codename}'");
    }
    let targets = index_targets()?;
    let wanted = format!("{codename}|main|Debian|");
    let found = targets.lines().find_map(|line| line.strip_prefix(&wanted)).with_context(|| {
        format!("apt knows no package list of {codename} main; run `apt-get update`")
    })?;
    let (address, keys) = found.split_once('|').context("read what apt says about its lists")?;
    let options = signed_by(keys);
    Ok(Archive { codename: codename.to_owned(), address: address.to_owned(), options })
}

/// What apt says about its package lists: codename, component, origin, address and keys.
fn index_targets() -> Result<String> {
    let format = "$(CODENAME)|$(COMPONENT)|$(ORIGIN)|$(REPO_URI)|$(SIGNED_BY)";
    let targets = cache::run(
        "apt-get",
        &["indextargets", "--format", format, "Created-By: Packages"],
        QUERY_LIMIT,
    )?;
    Ok(String::from_utf8_lossy(&targets).into_owned())
}

/// Options of a sources line for these keys, with a space at the end.
fn signed_by(keys: &str) -> String {
    // An unset field is given back as its own name.
    let keys = if keys.is_empty() || keys.starts_with('$') {
        "/usr/share/keyrings/debian-archive-keyring.gpg"
    } else {
        keys
    };
    if keys.starts_with('/') { format!("[signed-by={keys}] ") } else { String::new() }
}

/// Where the packages of a guest's system come from.
pub(crate) struct GuestSources {
    /// Codename of the main suite.
    pub(crate) codename: String,
    /// The suite with newer kernels.
    pub(crate) backports: String,
    /// Lines for sources.list: the machine's own Debian suites, and the backports.
    pub(crate) lines: Vec<String>,
}

/// The machine's own sources of Debian, with backports added.
pub(crate) fn guest_sources() -> Result<GuestSources> {
    let Archive { codename, address, options } = machine_archive()?;
    let backports = format!("{codename}-backports");
    let mut lines = suite_lines(&index_targets()?, &codename);
    let line = format!("deb {options}{address} {backports} main");
    if !lines.contains(&line) {
        lines.push(line);
    }
    Ok(GuestSources { codename, backports, lines })
}

/// A sources line for each of Debian's suites of this release that apt has a list of.
fn suite_lines(targets: &str, codename: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for target in targets.lines() {
        let fields: Vec<_> = target.split('|').collect();
        let [suite, "main", "Debian", address, keys] = fields[..] else { continue };
        let rest = suite.strip_prefix(codename);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
            let line = format!("deb {}{address} {suite} main", signed_by(keys));
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_of_other_releases_and_other_origins_are_left_out() {
        let targets = "one|main|Debian|http://a.example/|/keys.gpg\n\
                       one|contrib|Debian|http://a.example/|/keys.gpg\n\
                       one-security|main|Debian|http://s.example/|$(SIGNED_BY)\n\
                       onemore|main|Debian|http://a.example/|/keys.gpg\n\
                       one|main|Other|http://o.example/|/keys.gpg\n";

        let lines = suite_lines(targets, "one");

        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], "deb [signed-by=/keys.gpg] http://a.example/ one main");
        assert!(lines[1].starts_with("deb [signed-by=/usr/share/keyrings/"));
        assert!(lines[1].ends_with("http://s.example/ one-security main"));
    }
}
