//! From a VM file to what a cluster is asked to have.
//!
//! A cluster says itself on which host each part is, so what a file says about that is refused, and not left out without a word.

use anyhow::{Result, bail};
use control::v1::{
    CheckpointPolicy, ClusterVm, DiskSpec, NicSpec, RunStrategy, SharingClass, VmSpec,
};
use vm_file::{Class, Disk, DiskFormat, Nic, Preset, Run, VmFile};

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

    #[test]
    fn what_is_the_clusters_to_say_is_refused() {
        for more in [
            "[[spec.slices]]\nvcpus = 6\nmemory = \"64M\"\n",
            "[metadata.labels]\na = \"b\"\n",
            "[[spec.nics]]\ntap = \"tap0\"\nslice = 1\n",
        ] {
            let text = format!("{BARE}{more}");
            // What the file itself does not allow is refused sooner.
            let file = Format::Toml.decode(text.as_bytes());
            assert!(file.is_err() || vm(&file.unwrap()).is_err(), "{more}");
        }
    }
}
