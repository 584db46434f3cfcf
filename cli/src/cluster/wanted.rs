//! From a VM file to what a cluster is asked to have, and back.
//!
//! ```text
//!   VmFile ──vm──> ClusterVm ──file──> VmFile
//! ```
//! A cluster says itself on which host each part is, so what a file says about that is refused, and not left out without a word.

use anyhow::{Context, Result, bail};
use control::v1::{
    CheckpointPolicy, ClusterVm, DiskSpec, NicSpec, RunStrategy, SharingClass, VmSpec,
};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use vm_file::{
    ApiVersion, Borrow, Checkpoint, Class, Disk, DiskFormat, Guest, Kind, Metadata, Nic, Period,
    Preset, Run, Size, Spec, ValueError, VmFile,
};

fn disk((number, disk): (usize, &Disk)) -> Result<DiskSpec> {
    if disk.slice != 0 || !disk.standby.is_empty() {
        bail!(
            "spec.disks[{number}]: on which slice it is, is the cluster's to say: leave slice and standby out"
        );
    }
    Ok(DiskSpec {
        image: disk.image.as_str().to_owned(),
        read_only: disk.readonly,
        format: match disk.format {
            DiskFormat::Raw => "raw",
            DiskFormat::Qcow2 => "qcow2",
        }
        .to_owned(),
        ..DiskSpec::default()
    })
}

fn nic((number, nic): (usize, &Nic)) -> Result<NicSpec> {
    if nic.slice != 0 || !nic.standby.is_empty() {
        bail!(
            "spec.nics[{number}]: on which slice it is, is the cluster's to say: leave slice and standby out"
        );
    }
    let mac = nic.mac.map_or_else(String::new, |mac| mac.to_string());
    Ok(NicSpec { tap: nic.tap.as_str().to_owned(), mac, ..NicSpec::default() })
}

/// What a VM file wants of a cluster.
pub(crate) fn vm(file: &VmFile) -> Result<ClusterVm> {
    let spec = &file.spec;
    if !spec.slices.is_empty() {
        bail!("spec.slices: how it is split is the cluster's to say (slicesMax bounds it)");
    }
    if !spec.borrow.is_always() {
        bail!(
            "spec.borrow: which host runs a vCPU is the cluster's to say: leave it out, or always"
        );
    }
    if !file.metadata.labels.is_empty() {
        bail!("metadata.labels: a cluster does not keep them yet");
    }
    let class = match spec.class {
        Class::Independent => SharingClass::Independent,
        Class::Requests => SharingClass::Requests,
        Class::Default => SharingClass::Default,
        Class::Shared => SharingClass::Shared,
    };
    let run = match spec.run {
        Run::Always => RunStrategy::Always,
        Run::RerunOnFailure => RunStrategy::RerunOnFailure,
        Run::Once => RunStrategy::Once,
        Run::Halted => RunStrategy::Halted,
    };
    let preset = match spec.guest.preset {
        Preset::Spread => "spread",
        Preset::Isolate => "isolate",
        Preset::None => "none",
    };
    let checkpoint = spec.checkpoint.map(|checkpoint| {
        let seconds = i64::try_from(checkpoint.every.seconds()).unwrap_or(i64::MAX);
        let every = Some(prost_types::Duration { seconds, nanos: 0 });
        CheckpointPolicy { every, keep: checkpoint.keep.into() }
    });
    let initrd = spec.guest.initrd.as_ref().map_or("", |it| it.as_str());
    let spec = VmSpec {
        vcpus: spec.vcpus.into(),
        memory_bytes: spec.memory.bytes(),
        class: class.into(),
        run: run.into(),
        slices_max: spec.slices_max.unwrap_or(0).into(),
        kernel: spec.guest.kernel.as_str().to_owned(),
        initrd: initrd.to_owned(),
        cmdline: spec.guest.cmdline.clone(),
        disks: spec.disks.iter().enumerate().map(disk).collect::<Result<_>>()?,
        nics: spec.nics.iter().enumerate().map(nic).collect::<Result<_>>()?,
        guest_preset: preset.to_owned(),
        checkpoint,
        guest_clock_permille: spec.guest.clock_permille.unwrap_or(0).into(),
    };
    let name = format!("vms/{}", file.metadata.name.as_str());
    Ok(ClusterVm { name, spec: Some(spec), ..ClusterVm::default() })
}

/// What the answer says of a field, as a value of the file.
fn value<T: FromStr<Err = ValueError>>(field: &str, text: &str) -> Result<T> {
    text.parse().with_context(|| field.to_owned())
}

/// Where an empty text says nothing.
fn given<T: FromStr<Err = ValueError>>(field: &str, text: &str) -> Result<Option<T>> {
    (!text.is_empty()).then(|| value(field, text)).transpose()
}

fn number(field: &str, number: u32) -> Result<u16> {
    u16::try_from(number).with_context(|| format!("{field}: {number}"))
}

fn file_disk((at, disk): (usize, &DiskSpec)) -> Result<Disk> {
    let format = match disk.format.as_str() {
        "" | "raw" => DiskFormat::Raw,
        "qcow2" => DiskFormat::Qcow2,
        other => bail!("spec.disks[{at}].format: {other:?}"),
    };
    let image = value(&format!("spec.disks[{at}].image"), &disk.image)?;
    Ok(Disk { image, readonly: disk.read_only, format, slice: 0, standby: Vec::new() })
}

fn file_nic((at, nic): (usize, &NicSpec)) -> Result<Nic> {
    let tap = value(&format!("spec.nics[{at}].tap"), &nic.tap)?;
    let mac = given(&format!("spec.nics[{at}].mac"), &nic.mac)?;
    Ok(Nic { tap, mac, slice: 0, standby: Vec::new() })
}

fn file_guest(spec: &VmSpec) -> Result<Guest> {
    let preset = match spec.guest_preset.as_str() {
        "" | "spread" => Preset::Spread,
        "isolate" => Preset::Isolate,
        "none" => Preset::None,
        other => bail!("spec.guest.preset: {other:?}"),
    };
    let permille = number("spec.guest.clockPermille", spec.guest_clock_permille)?;
    Ok(Guest {
        kernel: value("spec.guest.kernel", &spec.kernel)?,
        initrd: given("spec.guest.initrd", &spec.initrd)?,
        cmdline: spec.cmdline.clone(),
        preset,
        clock_permille: (permille != 0).then_some(permille),
    })
}

/// The file by which a cluster would be asked for this VM.
///
/// # Errors
/// No file can say it: another client has asked for it, or a later version.
pub(crate) fn file(vm: &ClusterVm) -> Result<VmFile> {
    let name = vm.name.strip_prefix("vms/").unwrap_or(&vm.name);
    said(name, vm).with_context(|| format!("no VM file can say what the cluster has as {name}"))
}

fn said(name: &str, vm: &ClusterVm) -> Result<VmFile> {
    let spec = vm.spec.as_ref().context("the answer does not say what is wanted of it")?;
    // Of a later version, maybe.
    let unknown = "a kind that this program does not know";
    let class = match SharingClass::try_from(spec.class).with_context(|| unknown)? {
        SharingClass::Independent => Class::Independent,
        SharingClass::Requests => Class::Requests,
        SharingClass::Default | SharingClass::Unspecified => Class::Default,
        SharingClass::Shared => Class::Shared,
    };
    let run = match RunStrategy::try_from(spec.run).with_context(|| unknown)? {
        RunStrategy::Always | RunStrategy::Unspecified => Run::Always,
        RunStrategy::RerunOnFailure => Run::RerunOnFailure,
        RunStrategy::Once => Run::Once,
        RunStrategy::Halted => Run::Halted,
    };
    let checkpoint = spec.checkpoint.as_ref().map(|policy| {
        let seconds = policy.every.map_or(0, |every| every.seconds);
        let every = Period::of_seconds(u64::try_from(seconds)?);
        anyhow::Ok(Checkpoint { every, keep: number("spec.checkpoint.keep", policy.keep)? })
    });
    let slices_max = number("spec.slicesMax", spec.slices_max)?;
    let file = VmFile {
        api_version: ApiVersion::V1,
        kind: Kind::VirtualMachine,
        metadata: Metadata { name: value("metadata.name", name)?, labels: BTreeMap::new() },
        spec: Spec {
            vcpus: number("spec.vcpus", spec.vcpus)?,
            memory: Size::of_bytes(spec.memory_bytes),
            class,
            run,
            slices_max: (slices_max != 0).then_some(slices_max),
            guest: file_guest(spec)?,
            disks: spec.disks.iter().enumerate().map(file_disk).collect::<Result<_>>()?,
            nics: spec.nics.iter().enumerate().map(file_nic).collect::<Result<_>>()?,
            // A cluster gives every VM one.
            rng: true,
            checkpoint: checkpoint.transpose()?,
            borrow: Borrow::default(),
            slices: Vec::new(),
        },
    };
    file.check()?;
    Ok(file)
}

/// Fields of the file in which two VMs differ, as `spec.guest.cmdline`.
pub(crate) fn differences(one: &VmFile, other: &VmFile) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    differ("", &serde_json::to_value(one)?, &serde_json::to_value(other)?, &mut paths);
    Ok(paths)
}

fn differ(path: &str, one: &Value, other: &Value, paths: &mut Vec<String>) {
    let (Value::Object(one), Value::Object(other)) = (one, other) else {
        if one != other {
            paths.push(path.to_owned());
        }
        return;
    };
    let names = |fields: &Map<String, Value>| fields.keys().cloned().collect::<BTreeSet<_>>();
    for name in &names(one) | &names(other) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let field = |fields: &Map<String, Value>| fields.get(&name).cloned().unwrap_or_default();
        differ(&path, &field(one), &field(other), paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_file::Format;

    const BARE: &str = r#"
apiVersion = "tessera/v1"
kind = "VirtualMachine"
metadata.name = "web"
[spec]
vcpus = 6
memory = "64M"
guest.kernel = "vmlinuz"
"#;

    fn read(more: &str) -> Result<ClusterVm> {
        vm(&Format::Toml.decode(format!("{BARE}{more}").as_bytes()).unwrap())
    }

    #[test]
    fn file_says_what_is_wanted() {
        let wanted =
            read("run = \"once\"\n[[spec.disks]]\nimage = \"root.qcow2\"\nformat = \"qcow2\"\n");
        let wanted = wanted.unwrap();
        let spec = wanted.spec.unwrap();
        assert_eq!((wanted.name.as_str(), spec.vcpus, spec.memory_bytes), ("vms/web", 6, 64 << 20));
        assert_eq!((spec.run(), spec.class()), (RunStrategy::Once, SharingClass::Default));
        assert_eq!(
            (spec.cmdline.as_str(), spec.guest_preset.as_str()),
            ("console=ttyS0", "spread")
        );
        assert_eq!(
            (spec.disks[0].image.as_str(), spec.disks[0].format.as_str()),
            ("root.qcow2", "qcow2")
        );
    }

    /// With all that a cluster takes.
    const FULL: &str = r#"
class = "requests"
run = "always"
slicesMax = 3
guest.initrd = "initrd.img"
guest.cmdline = "console=ttyS0 root=/dev/vda"
guest.preset = "isolate"
guest.clockPermille = 250
checkpoint = { every = "90s", keep = 7 }
rng = true
[[spec.disks]]
image = "root.qcow2"
format = "qcow2"
[[spec.disks]]
image = "data/one.img"
readonly = true
[[spec.nics]]
tap = "tap0"
mac = "02:00:00:00:00:07"
[[spec.nics]]
tap = "tap1"
"#;

    #[test]
    fn file_of_a_vm_asks_for_the_same() {
        for more in ["", FULL] {
            let wanted = read(more).unwrap();
            let told = file(&wanted).unwrap();
            assert_eq!(vm(&told).unwrap(), wanted);
            for format in [Format::Toml, Format::Yaml] {
                let text = format.encode(&told).unwrap();
                assert_eq!(format.decode(text.as_bytes()).unwrap(), told, "{text}");
            }
        }
        let full = Format::Toml.decode(format!("{BARE}{FULL}").as_bytes()).unwrap();
        assert_eq!(file(&vm(&full).unwrap()).unwrap(), full);
    }

    type Change = fn(&mut VmSpec);

    #[test]
    fn vm_that_no_file_can_say_is_refused() {
        let changes: [(&str, Change); 12] = [
            ("spec.guest.kernel", |it| it.kernel.clear()),
            ("spec.guest.preset", |it| it.guest_preset = "sideways".into()),
            ("spec.guest.clockPermille", |it| it.guest_clock_permille = 70_000),
            ("spec.disks[0].format", |it| it.disks[0].format = "vhdx".into()),
            ("spec.disks[1].image", |it| it.disks[1].image = "a,b".into()),
            ("spec.nics[0].mac", |it| it.nics[0].mac = "01:00:00:00:00:01".into()),
            ("spec.vcpus", |it| it.vcpus = 70_000),
            ("spec.memory", |it| it.memory_bytes = 3),
            ("spec.slicesMax", |it| it.slices_max = 40),
            ("spec.checkpoint.keep", |it| it.checkpoint.as_mut().unwrap().keep = 0),
            ("does not know", |it| it.class = 99),
            ("does not know", |it| it.run = 99),
        ];
        for (field, change) in changes {
            let mut wanted = read(FULL).unwrap();
            change(wanted.spec.as_mut().unwrap());
            let error = format!("{:#}", file(&wanted).unwrap_err());
            assert!(error.contains("has as web") && error.contains(field), "{field}: {error}");
        }
        assert!(file(&ClusterVm::default()).is_err());
    }

    #[test]
    fn fields_that_differ_are_named() {
        let full = file(&read(FULL).unwrap()).unwrap();
        assert!(differences(&full, &full).unwrap().is_empty());
        let mut other = full.clone();
        other.spec.guest.initrd = None;
        other.spec.disks.pop();
        other.spec.vcpus = 5;
        other.spec.checkpoint = None;
        let names = ["spec.checkpoint", "spec.disks", "spec.guest.initrd", "spec.vcpus"];
        assert_eq!(differences(&full, &other).unwrap(), names);
        assert_eq!(differences(&other, &full).unwrap(), names);
    }

    #[test]
    fn what_is_the_clusters_to_say_is_refused() {
        for more in [
            "[[spec.slices]]\nvcpus = 6\nmemory = \"64M\"\n",
            "[metadata.labels]\na = \"b\"\n",
            "borrow = \"adaptive\"\n",
            "[[spec.nics]]\ntap = \"tap0\"\nslice = 1\n",
        ] {
            let text = format!("{BARE}{more}");
            // What the file itself does not allow is refused sooner.
            let file = Format::Toml.decode(text.as_bytes());
            assert!(file.is_err() || vm(&file.unwrap()).is_err(), "{more}");
        }
    }
}
