//! What a request wants of a VM, checked; and the same as the API says it.
//!
//! ```text
//!   VmSpec --field by field--> VmDesired --> VmSpec        what agents would refuse is refused here already: nobody waits for it
//! ```

use super::problem::invalid;
use control::v1::{
    CheckpointPolicy as CheckpointMessage, DiskSpec, NicSpec, RunStrategy as RunMessage,
    SharingClass as ClassMessage, VmSpec,
};
use state::{
    CheckpointPolicy, Disk, EVERY_S, Guest, KEEP, Nic, RunStrategy, SharingClass, VmDesired,
};
use tonic::Status;

const MIB: u64 = 1 << 20;
/// Memory is counted in such units, and a VM has 16 at least.
const UNIT: u64 = 2 * MIB;
const MEMORY_MIN: u64 = 16 * UNIT;
/// Of the name of a file.
const NAME_MAX: usize = 1024;
/// Linux takes no more.
const CMDLINE_MAX: usize = 2047;
/// The name of an interface has at most so many letters.
const TAP_MAX: usize = 15;
/// Disks and network devices together, as agents take them: of 31 devices, with a source of randomness and a console.
const DEVICES_MAX: usize = 29;
/// Parts of a VM, as agents take them.
const SLICES_MAX: u32 = 32;
/// Bytes of all words of a VM together: what is written at once has its bounds.
const WORDS_MAX: usize = 8192;

/// When a VM is to run.
pub(crate) fn run(field: &str, run: i32) -> Result<RunStrategy, Status> {
    match RunMessage::try_from(run) {
        Ok(RunMessage::Unspecified | RunMessage::Always) => Ok(RunStrategy::Always),
        Ok(RunMessage::RerunOnFailure) => Ok(RunStrategy::RerunOnFailure),
        Ok(RunMessage::Once) => Ok(RunStrategy::Once),
        Ok(RunMessage::Halted) => Ok(RunStrategy::Halted),
        Err(_) => Err(invalid(field, "there is no such strategy")),
    }
}

fn class(class: i32) -> Result<SharingClass, Status> {
    match ClassMessage::try_from(class) {
        Ok(ClassMessage::Unspecified | ClassMessage::Default) => Ok(SharingClass::Default),
        Ok(ClassMessage::Independent) => Ok(SharingClass::Independent),
        Ok(ClassMessage::Requests) => Ok(SharingClass::Requests),
        Ok(ClassMessage::Shared) => Ok(SharingClass::Shared),
        Err(_) => Err(invalid("vm.spec.class", "there is no such class")),
    }
}

/// A file that hosts name from their folder of images.
fn image(field: &str, name: &str) -> Result<(), Status> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(invalid(field, &format!("a name has 1 to {NAME_MAX} bytes")));
    }
    if name.chars().any(|letter| letter.is_control() || letter == ',') {
        return Err(invalid(field, "a name has no commas and no control characters"));
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(invalid(field, &format!("{name:?} is no name below the folder of images")));
    }
    Ok(())
}

fn disk(field: &str, disk: &DiskSpec) -> Result<Disk, Status> {
    image(&format!("{field}.image"), &disk.image)?;
    if !matches!(disk.format.as_str(), "" | "raw" | "qcow2") {
        return Err(invalid(&format!("{field}.format"), "it is neither raw nor qcow2"));
    }
    not_chosen(field, disk.slice, &disk.standby)?;
    let (image, format) = (disk.image.clone(), or(&disk.format, "raw"));
    Ok(Disk { image, read_only: disk.read_only, format })
}

fn nic(field: &str, nic: &NicSpec) -> Result<Nic, Status> {
    let is_tap = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    let fits = (1..=TAP_MAX).contains(&nic.tap.len()) && nic.tap.bytes().all(is_tap);
    if !fits || matches!(nic.tap.as_str(), "." | "..") {
        let text = format!("a tap's name has 1 to {TAP_MAX} letters, digits, and - _ .");
        return Err(invalid(&format!("{field}.tap"), &text));
    }
    let pair = |pair: &str| pair.len() == 2 && pair.bytes().all(|it| it.is_ascii_hexdigit());
    let pairs = nic.mac.split(':');
    if !(nic.mac.is_empty() || pairs.clone().count() == 6 && pairs.clone().all(pair)) {
        return Err(invalid(&format!("{field}.mac"), "it is no address as 02:00:00:00:00:01"));
    }
    not_chosen(field, nic.slice, &nic.standby)?;
    Ok(Nic { tap: nic.tap.clone(), mac: nic.mac.to_ascii_lowercase() })
}

/// What is not given is written down as what it means, so that the same VM is the same to whoever compares.
fn or(given: &str, default: &str) -> String {
    if given.is_empty() { default } else { given }.to_owned()
}

/// On which slice a device is, is the orchestrator's to say.
fn not_chosen(field: &str, slice: u32, standby: &[u32]) -> Result<(), Status> {
    if slice == 0 && standby.is_empty() {
        return Ok(());
    }
    Err(invalid(field, "slice and standby are the orchestrator's to choose"))
}

fn clock_permille(permille: u32) -> Result<u16, Status> {
    let permille = u16::try_from(permille).ok().filter(|permille| *permille <= 1000);
    let text = "it is 1 to 1000 guest milliseconds per real second";
    permille.ok_or_else(|| invalid("vm.spec.guest_clock_permille", text))
}

fn slices_max(slices: u32) -> Result<Option<u16>, Status> {
    let fits = u16::try_from(slices).ok().filter(|_| slices <= SLICES_MAX);
    let text = format!("a VM has 1 to {SLICES_MAX}");
    let slices = fits.ok_or_else(|| invalid("vm.spec.slices_max", &text))?;
    Ok((slices > 0).then_some(slices))
}

fn guest(spec: &VmSpec) -> Result<Guest, Status> {
    image("vm.spec.kernel", &spec.kernel)?;
    if !spec.initrd.is_empty() {
        image("vm.spec.initrd", &spec.initrd)?;
    }
    if spec.cmdline.len() > CMDLINE_MAX || spec.cmdline.chars().any(char::is_control) {
        let text = format!("it has at most {CMDLINE_MAX} bytes, and no control characters");
        return Err(invalid("vm.spec.cmdline", &text));
    }
    if !matches!(spec.guest_preset.as_str(), "" | "spread" | "isolate" | "none") {
        let text = "it is none of spread, isolate and none";
        return Err(invalid("vm.spec.guest_preset", text));
    }
    if spec.disks.len() + spec.nics.len() > DEVICES_MAX {
        let text = format!("a VM has at most {DEVICES_MAX} disks and network devices together");
        return Err(invalid("vm.spec.disks", &text));
    }
    let disks = spec.disks.iter().enumerate();
    let disks = disks.map(|(number, it)| disk(&format!("vm.spec.disks[{number}]"), it));
    let nics = spec.nics.iter().enumerate();
    let nics = nics.map(|(number, it)| nic(&format!("vm.spec.nics[{number}]"), it));
    let guest = Guest {
        kernel: spec.kernel.clone(),
        initrd: spec.initrd.clone(),
        cmdline: spec.cmdline.clone(),
        preset: or(&spec.guest_preset, "spread"),
        clock_permille: clock_permille(spec.guest_clock_permille)?,
        disks: disks.collect::<Result<_, _>>()?,
        nics: nics.collect::<Result<_, _>>()?,
    };
    let of_disks = guest.disks.iter().map(|it| it.image.len() + it.format.len());
    let words = guest.kernel.len() + guest.initrd.len() + guest.cmdline.len();
    if words + of_disks.sum::<usize>() > WORDS_MAX {
        let text = format!("names and the command line have at most {WORDS_MAX} bytes together");
        return Err(invalid("vm.spec.disks", &text));
    }
    Ok(guest)
}

/// How often it is written down. Fractions of a second do not count.
fn checkpoint(message: &CheckpointMessage) -> Result<CheckpointPolicy, Status> {
    let every = message.every.as_ref().and_then(|every| u64::try_from(every.seconds).ok());
    let every = every.filter(|seconds| EVERY_S.contains(seconds));
    let every_s = every.ok_or_else(|| {
        let text = format!("it is {} s to {} s", EVERY_S.start(), EVERY_S.end());
        invalid("vm.spec.checkpoint.every", &text)
    })?;
    if !KEEP.contains(&message.keep) {
        let text = format!("{} to {} are kept", KEEP.start(), KEEP.end());
        return Err(invalid("vm.spec.checkpoint.keep", &text));
    }
    Ok(CheckpointPolicy { every_s, keep: message.keep })
}

/// What is wanted of a VM. The machine checks numbers once more.
pub(crate) fn desired(spec: Option<&VmSpec>) -> Result<VmDesired, Status> {
    let spec = spec.ok_or_else(|| invalid("vm.spec", "it is missing"))?;
    let vcpus = u16::try_from(spec.vcpus);
    let vcpus = vcpus.map_err(|_| invalid("vm.spec.vcpus", "a VM has 1 to 255"))?;
    if spec.memory_bytes % UNIT != 0 || spec.memory_bytes < MEMORY_MIN {
        let text = "it is a multiple of 2 MiB, and 32 MiB at least";
        return Err(invalid("vm.spec.memory_bytes", text));
    }
    Ok(VmDesired {
        vcpus,
        memory_mib: spec.memory_bytes / MIB,
        class: class(spec.class)?,
        run: run("vm.spec.run", spec.run)?,
        slices_max: slices_max(spec.slices_max)?,
        guest: guest(spec)?,
        checkpoint: spec.checkpoint.as_ref().map(checkpoint).transpose()?,
        deleted: false,
    })
}

/// When it runs, as the API says it.
pub(crate) fn run_message(run: RunStrategy) -> RunMessage {
    match run {
        RunStrategy::Always => RunMessage::Always,
        RunStrategy::RerunOnFailure => RunMessage::RerunOnFailure,
        RunStrategy::Once => RunMessage::Once,
        RunStrategy::Halted => RunMessage::Halted,
    }
}

/// What is wanted, as the API says it.
pub(crate) fn spec(desired: &VmDesired) -> VmSpec {
    let guest = &desired.guest;
    let class = match desired.class {
        SharingClass::Independent => ClassMessage::Independent,
        SharingClass::Requests => ClassMessage::Requests,
        SharingClass::Default => ClassMessage::Default,
        SharingClass::Shared => ClassMessage::Shared,
    };
    let disk = |it: &Disk| DiskSpec {
        image: it.image.clone(),
        read_only: it.read_only,
        format: it.format.clone(),
        ..DiskSpec::default()
    };
    let nic = |it: &Nic| NicSpec { tap: it.tap.clone(), mac: it.mac.clone(), ..NicSpec::default() };
    let checkpoint = desired.checkpoint.map(|policy| CheckpointMessage {
        every: Some(prost_types::Duration {
            seconds: i64::try_from(policy.every_s).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        keep: policy.keep,
    });
    VmSpec {
        vcpus: desired.vcpus.into(),
        memory_bytes: desired.memory_mib.saturating_mul(MIB),
        class: class.into(),
        run: run_message(desired.run).into(),
        slices_max: desired.slices_max.unwrap_or(0).into(),
        kernel: guest.kernel.clone(),
        initrd: guest.initrd.clone(),
        cmdline: guest.cmdline.clone(),
        disks: guest.disks.iter().map(disk).collect(),
        nics: guest.nics.iter().map(nic).collect(),
        guest_preset: guest.preset.clone(),
        checkpoint,
        guest_clock_permille: guest.clock_permille.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::StatusExt;

    fn every(seconds: i64, keep: u32) -> CheckpointMessage {
        CheckpointMessage { every: Some(prost_types::Duration { seconds, nanos: 0 }), keep }
    }

    fn full() -> VmSpec {
        let disk = |image: &str| DiskSpec { image: image.into(), ..DiskSpec::default() };
        VmSpec {
            vcpus: 6,
            memory_bytes: 64 << 20,
            class: ClassMessage::Requests.into(),
            run: RunMessage::Once.into(),
            slices_max: 2,
            kernel: "vmlinuz".into(),
            initrd: "a/initrd".into(),
            cmdline: "console=ttyS0 x=1,2".into(),
            disks: vec![DiskSpec { format: "qcow2".into(), read_only: true, ..disk("root") }],
            nics: vec![NicSpec {
                tap: "tap0".into(),
                mac: "02:00:00:00:00:0a".into(),
                ..NicSpec::default()
            }],
            guest_preset: "isolate".into(),
            guest_clock_permille: 100,
            checkpoint: Some(every(60, 2)),
        }
    }

    #[test]
    fn what_is_wanted_comes_back() {
        assert_eq!(spec(&desired(Some(&full())).unwrap()), full());
        let least =
            VmSpec { vcpus: 1, memory_bytes: 32 << 20, kernel: "k".into(), ..VmSpec::default() };
        let least_said = spec(&desired(Some(&least)).unwrap());
        assert_eq!(
            (least_said.class(), least_said.run()),
            (ClassMessage::Default, RunMessage::Always)
        );

        // What is not given, or given in other letters, is what it means.
        let mut short = full();
        short.guest_preset.clear();
        short.disks[0].format.clear();
        short.nics[0].mac = "02:00:00:00:00:0A".into();
        let mut long = full();
        long.guest_preset = "spread".into();
        long.disks[0].format = "raw".into();
        assert_eq!(spec(&desired(Some(&short)).unwrap()), long);
    }

    type Change = fn(&mut VmSpec);

    #[test]
    fn each_field_that_cannot_be_is_named() {
        let wrong: [(&str, Change); 25] = [
            ("vm.spec.vcpus", |it| it.vcpus = 70000),
            ("vm.spec.memory_bytes", |it| it.memory_bytes = (64 << 20) + 1),
            ("vm.spec.memory_bytes", |it| it.memory_bytes = 30 << 20),
            ("vm.spec.slices_max", |it| it.slices_max = 1 << 16),
            ("vm.spec.slices_max", |it| it.slices_max = 33),
            ("vm.spec.disks", |it| it.disks = vec![it.disks[0].clone(); 29]),
            ("vm.spec.class", |it| it.class = 99),
            ("vm.spec.run", |it| it.run = -1),
            ("vm.spec.kernel", |it| it.kernel.clear()),
            ("vm.spec.kernel", |it| it.kernel = "../vmlinuz".into()),
            ("vm.spec.initrd", |it| it.initrd = "/boot/initrd".into()),
            ("vm.spec.cmdline", |it| it.cmdline = "a\nb".into()),
            ("vm.spec.cmdline", |it| it.cmdline = "x".repeat(2048)),
            ("vm.spec.guest_preset", |it| it.guest_preset = "fast".into()),
            ("vm.spec.guest_clock_permille", |it| it.guest_clock_permille = 1001),
            ("vm.spec.checkpoint.every", |it| it.checkpoint = Some(CheckpointMessage::default())),
            ("vm.spec.checkpoint.every", |it| it.checkpoint = Some(every(9, 2))),
            ("vm.spec.checkpoint.keep", |it| it.checkpoint = Some(every(60, 0))),
            ("vm.spec.checkpoint.keep", |it| it.checkpoint = Some(every(60, 101))),
            ("vm.spec.disks[0].image", |it| it.disks[0].image = "a,b".into()),
            ("vm.spec.disks[0].format", |it| it.disks[0].format = "vmdk".into()),
            ("vm.spec.disks[0]", |it| it.disks[0].slice = 1),
            ("vm.spec.nics[0].tap", |it| it.nics[0].tap = "a/b".into()),
            ("vm.spec.nics[0].tap", |it| it.nics[0].tap = "tap@1".into()),
            ("vm.spec.nics[0].mac", |it| it.nics[0].mac = "02:00:00:00:00".into()),
        ];
        for (field, change) in wrong {
            let mut spec = full();
            change(&mut spec);
            let refused = desired(Some(&spec)).unwrap_err();
            let details = refused.get_error_details();
            assert_eq!(details.bad_request().unwrap().field_violations[0].field, field);
        }
        let mut many = full();
        let name = "n".repeat(1000);
        many.disks = vec![DiskSpec { image: name, ..DiskSpec::default() }; 9];
        assert!(desired(Some(&many)).is_err(), "too many bytes together");
        assert!(desired(None).is_err());
    }
}
