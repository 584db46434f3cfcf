//! `--config`: a VM file, as the options of a bootstrap that say the same.
//!
//! ```text
//!   tessera bootstrap --config vm.toml --secret-file K
//!        │ clap refuses options that the file has beside it
//!        v
//!   vm.toml ─decode─> VmFile ─words─> --kernel ... --slice ... --disk ... --secret-file K ─clap─> Arguments
//! ```
//! So a file can say nothing that options cannot, and what is wrong with it is found where it would be found in them. A
//! supervisor starts its slices with these words: it reads the file once, and a later change of it changes no VM that runs.

use crate::words::without;
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Command};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use vm_file::{BYTES_MAX, Disk, DiskFormat, Format, Nic, Preset, Run, Slice, Standby, VmFile};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Bootstrap,
    Supervisor,
}

/// Reads a VM file.
pub(crate) fn read(path: &Path) -> Result<VmFile> {
    let name = path.display();
    let format = Format::of_path(path);
    let format = format.with_context(|| {
        format!("the name of the VM file {name} ends with none of .toml, .yaml, .yml, .json")
    })?;
    let mut bytes = Vec::new();
    let most = u64::try_from(BYTES_MAX + 1)?;
    let file = File::open(path).with_context(|| format!("open the VM file {name}"))?;
    let read = file.take(most).read_to_end(&mut bytes);
    read.with_context(|| format!("read the VM file {name}"))?;
    format.decode(&bytes).with_context(|| format!("the VM file {name}"))
}

/// The arguments of a command line with `--config`, as they are without it, and the words that say so.
pub(crate) fn expand<T: Args>(
    path: &Path,
    given: &[OsString],
    who: Who,
) -> Result<(T, Vec<OsString>)> {
    let file = read(path)?;
    let rest = without(given, &["config"], &[]);
    let has = |name: &str| without(&rest, &[name], &[]).len() != rest.len();
    let mut words = words(&file, path, has("restore"))?;
    if let Some(checkpoint) = file.spec.checkpoint {
        if has("on-lost") {
            bail!("the VM file {} says spec.checkpoint: leave --on-lost out", path.display());
        }
        match who {
            Who::Supervisor => {
                let (every, keep) = (checkpoint.every.seconds(), checkpoint.keep);
                words.push(format!("--on-lost=restart=every:{every},keep:{keep}").into());
            }
            Who::Bootstrap => {
                tracing::warn!(
                    "no checkpoints are written by themselves: that takes tessera supervise"
                );
            }
        }
    }
    words.extend(rest);
    let command = T::augment_args(Command::new("tessera"));
    let all = [OsString::from("tessera")].into_iter().chain(words.iter().cloned());
    let matches = command.try_get_matches_from(all);
    let arguments = matches.and_then(|matches| T::from_arg_matches(&matches));
    let arguments = arguments.map_err(|error| {
        let said = error.to_string();
        let first = said.split("\n\n").next().unwrap_or_default();
        let first = first.strip_prefix("error: ").unwrap_or(first);
        anyhow!("the VM file {}, as options: {first}", path.display())
    })?;
    Ok((arguments, words))
}

/// What the file says, as options. A VM that goes on from a checkpoint has its kernel in that.
fn words(file: &VmFile, path: &Path, restores: bool) -> Result<Vec<OsString>> {
    let spec = &file.spec;
    if spec.run == Run::Halted {
        bail!("the VM file {} says run = \"halted\": this VM is not to run", path.display());
    }
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let mut words = Vec::new();
    let mut add = |name: &str, value: &str| words.push(OsString::from(format!("--{name}={value}")));
    if !restores {
        let guest = &spec.guest;
        add("kernel", &at(folder, &guest.kernel)?);
        if let Some(initrd) = &guest.initrd {
            add("initrd", &at(folder, initrd)?);
        }
        add("cmdline", &guest.cmdline);
        add("guest-preset", preset(guest.preset));
        if let Some(permille) = guest.clock_permille {
            add("guest-clock-rate", &(f64::from(permille) / 1000.0).to_string());
        }
    }
    for part in &spec.slices {
        add("slice", &slice(part));
    }
    if spec.slices.is_empty() {
        add("slice", &format!("local,cpus={},memory={}", spec.vcpus, spec.memory.bytes()));
    }
    if !spec.borrow.is_always() {
        add("borrow", &spec.borrow.to_string());
    }
    for one in &spec.disks {
        add("disk", &disk(folder, one)?);
    }
    for one in &spec.nics {
        add("net", &nic(one));
    }
    if spec.rng {
        words.push("--rng".into());
    }
    Ok(words)
}

/// A path of the file counts from the file's folder.
fn at(folder: &Path, path: &vm_file::Path) -> Result<String> {
    let joined: PathBuf = folder.join(path.as_str());
    let text = joined.to_str().with_context(|| format!("{} is no text", joined.display()))?;
    // The folder is not of the file, and may have what no word of an option may.
    let checked: vm_file::Path = text.parse()?;
    Ok(checked.to_string())
}

fn preset(preset: Preset) -> &'static str {
    match preset {
        Preset::Spread => "spread",
        Preset::Isolate => "isolate",
        Preset::None => "none",
    }
}

fn slice(slice: &Slice) -> String {
    let place = slice.address.as_ref().map_or_else(|| "local".to_owned(), ToString::to_string);
    let (vcpus, memory) = (slice.vcpus, slice.memory.bytes());
    let most = slice.vcpus_max.unwrap_or(vcpus);
    format!("{place},cpus={vcpus},max-cpus={most},memory={memory}")
}

fn disk(folder: &Path, disk: &Disk) -> Result<String> {
    let mut word = at(folder, &disk.image)?;
    if disk.readonly {
        word += ",readonly";
    }
    word += match disk.format {
        DiskFormat::Raw => ",format=raw",
        DiskFormat::Qcow2 => ",format=qcow2",
    };
    word += &places(disk.slice, &disk.standby, |name| at(folder, name))?;
    Ok(word)
}

fn nic(nic: &Nic) -> String {
    let mac = nic.mac.map(|mac| format!(",mac={mac}")).unwrap_or_default();
    let same = |name: &vm_file::Path| Ok(name.to_string());
    // A name as it is cannot fail.
    let places = places(nic.slice, &nic.standby, same).unwrap_or_default();
    format!("{}{mac}{places}", nic.tap)
}

fn places(
    slice: u16,
    standby: &[Standby],
    name: impl Fn(&vm_file::Path) -> Result<String>,
) -> Result<String> {
    let mut word = format!(",slice={slice}");
    for other in standby {
        word += &format!(",standby={}", other.slice);
        if let Some(there) = &other.name {
            word += &format!(":{}", name(there)?);
        }
    }
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../proto/vm-file/tests/golden/all-fields.toml");

    fn of(text: &str, restores: bool) -> Vec<String> {
        let file = Format::Toml.decode(text.as_bytes()).unwrap();
        let words = words(&file, Path::new("/etc/vms/a.toml"), restores).unwrap();
        words.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn each_field_is_an_option() {
        let text = GOLDEN.replace("/srv/images/vmlinuz", "vmlinuz");
        assert_eq!(
            of(&text, false),
            [
                "--kernel=/etc/vms/vmlinuz",
                "--initrd=/srv/images/initrd.img",
                "--cmdline=root=/dev/vda rw console=ttyS0 panic=-1 reboot=t",
                "--guest-preset=isolate",
                "--guest-clock-rate=0.25",
                "--slice=local,cpus=2,max-cpus=4,memory=1073741824",
                "--slice=host2.example:7100,cpus=1,max-cpus=1,memory=1073741824",
                "--slice=[fd00::3]:7100,cpus=1,max-cpus=1,memory=1073741824",
                "--borrow=adaptive:5",
                "--disk=/srv/images/guest.qcow2,format=qcow2,slice=0,standby=1,standby=2:/mnt/guest.qcow2",
                "--disk=/srv/images/data.raw,readonly,format=raw,slice=1",
                "--net=tap0,mac=02:00:00:00:00:01,slice=0,standby=1:tap7",
                "--rng",
            ]
        );
    }

    #[test]
    fn vm_that_goes_on_has_its_kernel_already() {
        let words = of(GOLDEN, true);

        assert!(words[0].starts_with("--slice=local"), "{words:?}");
    }

    #[test]
    fn vm_without_slices_is_one_slice_here() {
        let all = GOLDEN.find("[[spec.disks]]").unwrap();

        let words = of(&GOLDEN[..all], true);
        assert_eq!(
            words,
            ["--slice=local,cpus=4,memory=3221225472", "--borrow=adaptive:5", "--rng"]
        );
    }

    #[test]
    fn vm_that_is_not_to_run_and_folder_with_a_comma_are_refused() {
        let file = |text: &str| Format::Toml.decode(text.as_bytes()).unwrap();
        let halted = file(&GOLDEN.replace("\"always\"", "\"halted\""));
        let relative = file(&GOLDEN.replace("/srv/images/data.raw", "data.raw"));

        assert!(words(&halted, Path::new("a.toml"), false).is_err());
        assert!(words(&relative, Path::new("/a,b/a.toml"), false).is_err());
        assert!(words(&relative, Path::new("a.toml"), false).is_ok());
    }
}
