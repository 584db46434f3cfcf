//! Guest kernels that are built here: Debian's sources with a small configuration, with and without the patches of
//! `guest-patches/`. They are for measuring; every guest boots without them.
//!
//! ```text
//!   package linux-source-6.12 ─> source/ ─ copy, series ─> patched/
//!   small.config ─ make ─> build-VARIANT/ ─> VARIANT-VERSION-DIGEST/{boot,lib/modules}, as in Debian's package
//! ```
//! A kernel is kept by the digest of the sources' version, patches and configuration. `guest-patches/README.md` says what they bring.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::kernel::KernelFiles;
use crate::{cache, packages};

/// The package of the sources that the patches are made for, and the folder of patches.
const SOURCE: &str = "linux-source-6.12";
const PATCHES: &str = "guest-patches/linux-6.12";
/// Where kernels and sources are, in the lab's part of the cache.
const FOLDER: &str = "guest-kernels";
const SERIES: &str = "series";
const SMALL: &str = "small.config";
const UNPACK_LIMIT: Duration = Duration::from_secs(600);
const PATCH_LIMIT: Duration = Duration::from_secs(60);
/// Lines of a build's output that an error repeats.
const SHOWN: usize = 12;

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Debian's sources as they are.
    Stock,
    /// With the patches.
    Patched,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Patched => "patched",
        }
    }
}

/// Builds a guest kernel the first time; `say` hears the progress, `workspace` has the patches.
///
/// # Errors
/// The sources cannot be fetched, a patch does not apply, or the kernel does not build.
pub fn build(workspace: &Path, variant: Variant, say: &dyn Fn(&str)) -> Result<KernelFiles> {
    let work = Work::new(workspace, say)?;
    let version = version(&read(&work.source(say)?.join("Makefile"))?)?;
    let target = format!("{}-{version}-{}", variant.name(), work.digest(variant)?);
    let target = work.root.join(target);
    if !target.exists() {
        let tree = work.tree(variant, say)?;
        let objects = work.configured(variant, &tree)?;
        say(&format!(
            "building {} (once; a quarter of an hour to half an hour with two processors)",
            target.display()
        ));
        make(&tree, &objects, &["bzImage", "modules"])?;
        install(&tree, &objects, &target)?;
        // They are larger than all else, and a changed patch has nearly all built anew anyway.
        cache::remove_folder(&objects)?;
    }
    KernelFiles::in_package(&target)
}

/// Finds out whether all patches apply, and whether the files they touch build.
///
/// # Errors
/// The sources cannot be fetched, or a patch does not apply or build.
pub fn check(workspace: &Path, say: &dyn Fn(&str)) -> Result<()> {
    let work = Work::new(workspace, say)?;
    let tree = work.tree(Variant::Patched, say)?;
    let objects = work.configured(Variant::Patched, &tree)?;
    let mut wanted = vec!["prepare".to_owned()];
    let series = work.series()?;
    for patch in &series {
        wanted.extend(touched(&read(patch)?));
    }
    say(&format!("building what {} patches touch: {}", series.len(), wanted[1..].join(" ")));
    make(&tree, &objects, &wanted.iter().map(String::as_str).collect::<Vec<_>>())?;
    cache::remove_folder(&objects)
}

/// Removes all kernels that were built, and their sources. Returns the folder.
///
/// # Errors
/// It cannot be removed.
pub fn clean() -> Result<PathBuf> {
    let (root, _lock) = locked_folder(&|_| {})?;
    cache::remove_folder(&root)?;
    Ok(root)
}

/// The folder of all that is made, and the lock that keeps others out of it.
fn locked_folder(say: &dyn Fn(&str)) -> Result<(PathBuf, File)> {
    let root = cache::root()?.join(FOLDER);
    fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    let waits = || say("another build of a kernel is at work; waiting for it");
    let lock = cache::lock_after(&root.join("build.lock"), waits)?;
    Ok((root, lock))
}

/// Folders that a build works in.
struct Work {
    /// Patches and configurations.
    patches: PathBuf,
    /// All that is made.
    root: PathBuf,
    _lock: File,
}

impl Work {
    fn new(workspace: &Path, say: &dyn Fn(&str)) -> Result<Self> {
        let (root, lock) = locked_folder(say)?;
        Ok(Self { patches: workspace.join(PATCHES), root, _lock: lock })
    }

    /// The patches in their order.
    fn series(&self) -> Result<Vec<PathBuf>> {
        let series = read(&self.patches.join(SERIES))?;
        Ok(names(&series).map(|name| self.patches.join(name)).collect())
    }

    /// Options of a kernel, in the form of its configuration file: later lines win.
    fn options(&self) -> Result<String> {
        read(&self.patches.join(SMALL))
    }

    /// What a kernel is made of.
    fn digest(&self, variant: Variant) -> Result<String> {
        let mut hasher = DefaultHasher::new();
        self.options()?.hash(&mut hasher);
        if variant == Variant::Patched {
            for patch in self.series()? {
                read(&patch)?.hash(&mut hasher);
            }
        }
        Ok(format!("{:016x}", hasher.finish()))
    }

    /// Debian's sources, fetched the first time.
    fn source(&self, say: &dyn Fn(&str)) -> Result<PathBuf> {
        let source = self.root.join("source");
        if !source.exists() {
            let package = self.root.join("package");
            packages::unpack(SOURCE, &package, say)?;
            let archive = package.join(format!("usr/src/{SOURCE}.tar.xz"));
            let temporary = self.root.join("source.new");
            cache::remove_folder(&temporary)?;
            fs::create_dir_all(&temporary)?;
            let words = ["-xf", packages::text(&archive)?, "--strip-components=1", "-C"];
            cache::run(
                "tar",
                &[&words[..], &[packages::text(&temporary)?]].concat(),
                UNPACK_LIMIT,
            )?;
            fs::rename(&temporary, &source).context("put the sources in place")?;
            cache::remove_folder(&package)?;
        }
        Ok(source)
    }

    /// The sources of a variant. Patches are applied anew each time.
    fn tree(&self, variant: Variant, say: &dyn Fn(&str)) -> Result<PathBuf> {
        let source = self.source(say)?;
        if variant == Variant::Stock {
            return Ok(source);
        }
        let patched = self.root.join("patched");
        cache::remove_folder(&patched)?;
        let copy = ["-a", "--reflink=auto", packages::text(&source)?, packages::text(&patched)?];
        cache::run("cp", &copy, UNPACK_LIMIT)?;
        for patch in self.series()? {
            let words = ["-p1", "--fuzz=0", "-s", "-d", packages::text(&patched)?, "-i"];
            cache::run("patch", &[&words[..], &[packages::text(&patch)?]].concat(), PATCH_LIMIT)?;
        }
        Ok(patched)
    }

    /// The folder of objects of a variant, with its configuration.
    fn configured(&self, variant: Variant, tree: &Path) -> Result<PathBuf> {
        let objects = self.root.join(format!("build-{}", variant.name()));
        // make goes by dates, and a source that a patch does not touch any more is older than its object.
        cache::remove_folder(&objects)?;
        fs::create_dir_all(&objects).with_context(|| format!("create {}", objects.display()))?;
        let options = self.options()?;
        fs::write(objects.join(".config"), &options).context("write the configuration")?;
        make(tree, &objects, &["olddefconfig"])?;
        let refused = refused(&options, &read(&objects.join(".config"))?);
        ensure!(refused.is_empty(), "the kernel's configuration refuses {}", refused.join(" "));
        Ok(objects)
    }
}

/// Runs `make` of a kernel. What it says is in `make.log` beside the objects.
fn make(tree: &Path, objects: &Path, targets: &[&str]) -> Result<()> {
    let log = objects.join("make.log");
    let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let status = Process::new("setpriv")
        .args(["--pdeathsig", "TERM", "--", "make", "-C"])
        .arg(tree)
        .arg(format!("O={}", objects.display()))
        .arg(format!("-j{jobs}"))
        // The same sources make the same kernel.
        .args(["KBUILD_BUILD_USER=tessera", "KBUILD_BUILD_HOST=tessera"])
        .args(["KBUILD_BUILD_TIMESTAMP=@0", "LOCALVERSION="])
        .args(targets)
        .stdin(Stdio::null())
        .stdout(output.try_clone().context("a second handle of the log")?)
        .stderr(output)
        .status()
        .context("start make")?;
    if status.success() {
        return Ok(());
    }
    let said = read(&log)?;
    let lines: Vec<_> = said.lines().collect();
    let end = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
    bail!(
        "make {} ended with {status}; all of it is in {}\n{end}",
        targets.join(" "),
        log.display()
    )
}

/// Lays a built kernel out as Debian's packages are.
fn install(tree: &Path, objects: &Path, target: &Path) -> Result<()> {
    let temporary = target.with_extension("new");
    cache::remove_folder(&temporary)?;
    let boot = temporary.join("boot");
    fs::create_dir_all(&boot).with_context(|| format!("create {}", boot.display()))?;
    let modules = format!("INSTALL_MOD_PATH={}", temporary.display());
    make(tree, objects, &[&modules, "INSTALL_MOD_STRIP=1", "modules_install"])?;
    let version = packages::only_entry(&temporary.join("lib/modules"))?;
    for (built, name) in
        [("arch/x86/boot/bzImage", "vmlinuz"), (".config", "config"), ("System.map", "System.map")]
    {
        let place = boot.join(format!("{name}-{version}"));
        fs::copy(objects.join(built), &place).with_context(|| format!("copy {built}"))?;
    }
    packages::index_modules(&temporary)?;
    // It names the folder of objects, which will not be there.
    drop(fs::remove_file(temporary.join("lib/modules").join(&version).join("build")));
    fs::rename(&temporary, target).with_context(|| format!("put {} in place", target.display()))
}

/// Names in a list of patches: a line each, with comments.
fn names(series: &str) -> impl Iterator<Item = &str> {
    series.lines().map(str::trim).filter(|name| !name.is_empty() && !name.starts_with('#'))
}

/// Options that are wanted and that a configuration does not have. The last line of an option says what is wanted.
fn refused(wanted: &str, got: &str) -> Vec<String> {
    let wanted: BTreeMap<_, _> = wanted.lines().filter_map(option).collect();
    let got: BTreeMap<_, _> = got.lines().filter_map(option).collect();
    // What is not there is off.
    let is_there = |name: &&str, value: &&str| got.get(name).unwrap_or(&"n") == value;
    let missing = wanted.iter().filter(|(name, value)| !is_there(name, value));
    missing.map(|(name, value)| format!("{name}={value}")).collect()
}

/// Name and value in a line of a configuration.
fn option(line: &str) -> Option<(&str, &str)> {
    let off = || Some((line.strip_prefix("# ")?.strip_suffix(" is not set")?, "n"));
    line.split_once('=').filter(|(name, _)| name.starts_with("CONFIG_")).or_else(off)
}

/// Version of the sources, by their Makefile.
fn version(makefile: &str) -> Result<String> {
    let field = |name: &str| {
        let line = makefile.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.with_context(|| format!("the kernel's Makefile does not say its {name}"))
    };
    Ok(format!("{}.{}.{}", field("VERSION")?, field("PATCHLEVEL")?, field("SUBLEVEL")?))
}

/// What is built of the files that a patch touches, headers apart.
fn touched(patch: &str) -> Vec<String> {
    let files = patch.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    let files = files.filter_map(|file| file.split_whitespace().next());
    let built = |file: &str| match file.strip_suffix(".c") {
        Some(name) => Some(format!("{name}.o")),
        None => file.strip_suffix(".S").filter(|name| name.ends_with(".lds")).map(str::to_owned),
    };
    files.filter_map(built).collect()
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_patches_has_comments_and_empty_lines() {
        let found: Vec<_> = names("# why\n\n0001-a.patch \n0002-b.patch\n").collect();

        assert_eq!(found, ["0001-a.patch", "0002-b.patch"]);
    }

    #[test]
    fn sources_that_a_patch_touches_have_objects_and_headers_have_none() {
        let patch = "--- a/kernel/fork.c\n+++ b/kernel/fork.c\t2026\n@@ -1 +1 @@\n-a\n+b\n\
                     --- a/include/linux/nohz.h\n+++ b/include/linux/nohz.h\n\
                     --- a/arch/x86/kernel/vmlinux.lds.S\n+++ b/arch/x86/kernel/vmlinux.lds.S\n";

        assert_eq!(touched(patch), ["kernel/fork.o", "arch/x86/kernel/vmlinux.lds"]);
    }

    #[test]
    fn last_line_of_an_option_is_what_must_be_there() {
        let wanted = "CONFIG_A=y\n# a comment\nCONFIG_B=4\nCONFIG_B=12\n";

        assert_eq!(refused(wanted, "CONFIG_A=y\nCONFIG_B=12\nCONFIG_C=y\n"), Vec::<String>::new());
        assert_eq!(refused(wanted, "CONFIG_B=4\n"), ["CONFIG_A=y", "CONFIG_B=12"]);
        let off = "CONFIG_A=y\n# CONFIG_A is not set\n";
        assert_eq!(refused(off, ""), Vec::<String>::new());
        assert_eq!(refused(off, "CONFIG_A=m\n"), ["CONFIG_A=n"]);
    }

    #[test]
    fn version_of_sources_is_in_their_makefile() {
        let makefile = "# SPDX\nVERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 95\nEXTRAVERSION =\n";

        assert_eq!(version(makefile).unwrap(), "6.12.95");
        assert!(version("VERSION = 6\n").is_err());
    }

    #[test]
    fn every_patch_of_the_list_is_there_and_every_file_is_in_the_list() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PATCHES);
        let series = read(&folder.join(SERIES)).unwrap();
        let mut listed: Vec<_> = names(&series).map(str::to_owned).collect();
        let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut there: Vec<_> = files
            .filter_map(|name| name.into_string().ok().filter(|name| name.ends_with(".patch")))
            .collect();
        listed.sort();
        there.sort();

        assert_eq!(listed, there);
    }
}
