//! What a bootstrap and a companion are to be, as words.

use super::{Folders, Result, UNIT, Words, bytes, invalid};
use control::v1::{BootstrapSpec, CompanionSpec, DiskSpec, NicSpec, RestoreSpec, SlicePart};
use prost_types::Duration as ProtoDuration;
use scheduler::Resources;
use std::fmt::Write;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// What a VM has at most (docs/options.md).
const SLICES_MAX: usize = 32;
const VCPUS_MAX: u32 = 256;
/// Of 31 devices, with a source of randomness and a console.
const DEVICES_MAX: usize = 29;
/// The least memory of a VM, and more than any has.
const MEMORY_MIN: u64 = 32 << 20;
const MEMORY_MAX: u64 = 1 << 46;
/// Linux takes no more.
const CMDLINE_MAX: usize = 2047;
/// The name of an interface has at most so many letters.
const TAP_MAX: usize = 15;
const LEASE_MS: RangeInclusive<u64> = 20..=3_600_000;

pub(super) fn bootstrap(
    spec: &BootstrapSpec,
    resources: Resources,
    folders: &Folders,
    words: &mut Words,
) -> Result<()> {
    parts(&spec.parts, resources, words)?;
    match &spec.restore {
        Some(restore) => go_on(spec, restore, folders, words)?,
        None => begin(spec, folders, words)?,
    }
    if spec.disks.len() + spec.nics.len() > DEVICES_MAX {
        return invalid("bootstrap.disks", format!("a VM has at most {DEVICES_MAX} of both"));
    }
    for (number, it) in spec.disks.iter().enumerate() {
        let field = format!("bootstrap.disks[{number}]");
        disk(&field, it, (spec.parts.len(), folders), words)?;
    }
    for (number, it) in spec.nics.iter().enumerate() {
        nic(&format!("bootstrap.nics[{number}]"), it, spec.parts.len(), words)?;
    }
    if spec.rng {
        words.plain("--rng");
    }
    if let Some(lease) = &spec.lease {
        words.option("lease", &lease_ms(lease)?.to_string());
    }
    carriers(&spec.transports, words)
}

fn parts(parts: &[SlicePart], resources: Resources, words: &mut Words) -> Result<()> {
    if parts.is_empty() || parts.len() > SLICES_MAX {
        return invalid("bootstrap.parts", format!("a VM has 1 to {SLICES_MAX} slices"));
    }
    let (mut vcpus, mut memory) = (0u32, 0u64);
    let mut addresses = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let field = |of: &str| format!("bootstrap.parts[{number}].{of}");
        let place = match (number, part.address.as_str()) {
            (0, "") => "local".to_owned(),
            (0, _) => return invalid(field("address"), "the first part is the bootstrap's own"),
            (_, address) => {
                let address = companion_address(&field("address"), address)?;
                if addresses.contains(&address) {
                    return invalid(field("address"), "another part is there already");
                }
                addresses.push(address);
                address.to_string()
            }
        };
        if part.memory_bytes % UNIT != 0 {
            return invalid(field("memory_bytes"), "it is not a multiple of 2 MiB");
        }
        vcpus = vcpus.saturating_add(part.vcpus);
        memory = memory.saturating_add(part.memory_bytes);
        let slice = format!("{place},cpus={},memory={}", part.vcpus, part.memory_bytes);
        words.option("slice", &slice);
    }
    let own = &parts[0];
    if own.vcpus == 0 {
        return invalid("bootstrap.parts[0].vcpus", "the bootstrap has a vCPU at least");
    }
    if own.vcpus > resources.cores || own.memory_bytes > bytes(resources) {
        return invalid("resources", "they are less than what the VM has here at first");
    }
    if vcpus > VCPUS_MAX {
        return invalid("bootstrap.parts", format!("a VM has at most {VCPUS_MAX} vCPUs"));
    }
    if !(MEMORY_MIN..=MEMORY_MAX).contains(&memory) {
        return invalid("bootstrap.parts", "a VM has 32 MiB to 64 TiB of memory");
    }
    Ok(())
}

fn companion_address(field: &str, text: &str) -> Result<SocketAddr> {
    let address = text.parse::<SocketAddr>().ok();
    let can_be = |it: &SocketAddr| it.port() != 0 && !it.ip().is_unspecified();
    let message = "it is not where a companion listens, ADDRESS:PORT with a numeric address";
    address.filter(can_be).map_or_else(|| invalid(field, message), Ok)
}

/// A VM that begins.
fn begin(spec: &BootstrapSpec, folders: &Folders, words: &mut Words) -> Result<()> {
    let kernel = words.own_path("bootstrap.kernel", &folders.images, &spec.kernel)?;
    words.option("kernel", &kernel);
    if !spec.initrd.is_empty() {
        let initrd = words.own_path("bootstrap.initrd", &folders.images, &spec.initrd)?;
        words.option("initrd", &initrd);
    }
    if spec.cmdline.len() > CMDLINE_MAX || spec.cmdline.chars().any(char::is_control) {
        let message = format!("it has at most {CMDLINE_MAX} bytes, and no control characters");
        return invalid("bootstrap.cmdline", message);
    }
    words.option("cmdline", &spec.cmdline);
    match spec.guest_preset.as_str() {
        "" => {}
        preset @ ("spread" | "isolate" | "none") => words.option("guest-preset", preset),
        _ => return invalid("bootstrap.guest_preset", "it is none of spread, isolate and none"),
    }
    match spec.guest_clock_permille {
        0 => Ok(()),
        permille @ 1..=1000 => {
            words.option("guest-clock-rate", &(f64::from(permille) / 1000.0).to_string());
            Ok(())
        }
        _ => invalid("bootstrap.guest_clock_permille", "it is 1 to 1000"),
    }
}

/// A VM that goes on from a checkpoint, which says what it is.
fn go_on(
    spec: &BootstrapSpec,
    restore: &RestoreSpec,
    folders: &Folders,
    words: &mut Words,
) -> Result<()> {
    for (name, is_given) in [
        ("kernel", !spec.kernel.is_empty()),
        ("initrd", !spec.initrd.is_empty()),
        ("cmdline", !spec.cmdline.is_empty()),
        ("guest_preset", !spec.guest_preset.is_empty()),
        ("guest_clock_permille", spec.guest_clock_permille != 0),
    ] {
        if is_given {
            let field = format!("bootstrap.{name}");
            return invalid(field, "the VM goes on from a checkpoint, which says that");
        }
    }
    let field = "bootstrap.restore.checkpoint";
    let checkpoint = words.own_path(field, &folders.checkpoints, &restore.checkpoint)?;
    words.option("restore", &checkpoint);
    if restore.lazy {
        words.plain("--lazy");
    }
    Ok(())
}

fn disk(
    field: &str,
    disk: &DiskSpec,
    (slices, folders): (usize, &Folders),
    words: &mut Words,
) -> Result<()> {
    let image = format!("{field}.image");
    // That of another host cannot be looked at here.
    let mut text = if disk.slice == 0 || disk.standby.contains(&0) {
        words.own_path(&image, &folders.images, &disk.image)?
    } else {
        words.path(&image, &folders.images, &disk.image)?
    };
    if disk.read_only {
        text.push_str(",readonly");
    }
    match disk.format.as_str() {
        "" => {}
        format @ ("raw" | "qcow2") => {
            let _ = write!(text, ",format={format}");
        }
        _ => return invalid(format!("{field}.format"), "it is neither raw nor qcow2"),
    }
    places(field, (disk.slice, &disk.standby), slices, &mut text)?;
    words.option("disk", &text);
    Ok(())
}

fn nic(field: &str, nic: &NicSpec, slices: usize, words: &mut Words) -> Result<()> {
    let mut text = tap(&format!("{field}.tap"), &nic.tap)?.to_owned();
    if !nic.mac.is_empty() {
        let bytes: Vec<&str> = nic.mac.split(':').collect();
        let is_byte =
            |part: &&str| part.len() == 2 && part.bytes().all(|letter| letter.is_ascii_hexdigit());
        if bytes.len() != 6 || !bytes.iter().all(is_byte) {
            return invalid(format!("{field}.mac"), "it is not as 02:00:00:00:00:01");
        }
        let _ = write!(text, ",mac={}", nic.mac);
    }
    places(field, (nic.slice, &nic.standby), slices, &mut text)?;
    words.option("net", &text);
    Ok(())
}

/// Which slice has a device, and where it may go.
fn places(
    field: &str,
    (slice, standby): (u32, &[u32]),
    slices: usize,
    text: &mut String,
) -> Result<()> {
    let exists = |number: u32| usize::try_from(number).is_ok_and(|number| number < slices);
    if !exists(slice) {
        return invalid(format!("{field}.slice"), "it is not the index of a part");
    }
    if slice != 0 {
        let _ = write!(text, ",slice={slice}");
    }
    for (index, number) in standby.iter().enumerate() {
        let is_new = *number != slice && !standby[..index].contains(number);
        if !exists(*number) || !is_new {
            let message = "it is not the index of another part, or is there twice";
            return invalid(format!("{field}.standby"), message);
        }
        let _ = write!(text, ",standby={number}");
    }
    Ok(())
}

fn tap<'a>(field: &str, name: &'a str) -> Result<&'a str> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = (1..=TAP_MAX).contains(&name.len()) && name.bytes().all(is_letter);
    if fits && !matches!(name, "." | "..") {
        Ok(name)
    } else {
        invalid(field, "a tap's name has 1 to 15 letters, digits, and - _ .")
    }
}

fn lease_ms(lease: &ProtoDuration) -> Result<u64> {
    let (seconds, nanos) = (u64::try_from(lease.seconds), u64::try_from(lease.nanos));
    let ms = seconds.ok().zip(nanos.ok()).filter(|(_, nanos)| *nanos < 1_000_000_000);
    let ms =
        ms.and_then(|(seconds, nanos)| seconds.checked_mul(1000)?.checked_add(nanos / 1_000_000));
    let ms = ms.filter(|ms| LEASE_MS.contains(ms));
    ms.map_or_else(|| invalid("bootstrap.lease", "a lease is 20 ms to an hour"), Ok)
}

fn carriers(names: &[String], words: &mut Words) -> Result<()> {
    let field = "bootstrap.transports";
    for (index, name) in names.iter().enumerate() {
        if !matches!(name.as_str(), "tcp" | "rdma" | "shm") || names[..index].contains(name) {
            return invalid(field, "each is one of tcp, rdma and shm, and is there once");
        }
    }
    if !names.is_empty() {
        words.option("transport", &names.join(","));
    }
    Ok(())
}

pub(super) fn companion(spec: &CompanionSpec, folders: &Folders, words: &mut Words) -> Result<()> {
    if spec.disks.len() + spec.taps.len() > DEVICES_MAX {
        return invalid("companion.disks", format!("a VM has at most {DEVICES_MAX} of both"));
    }
    for (number, disk) in spec.disks.iter().enumerate() {
        let field = format!("companion.disks[{number}].image");
        let path = words.own_path(&field, &folders.images, &disk.image)?;
        let mode = if disk.read_only { "ro" } else { "rw" };
        words.option("lend", &format!("disk:{mode}:{path}"));
    }
    for (number, name) in spec.taps.iter().enumerate() {
        let name = tap(&format!("companion.taps[{number}]"), name)?;
        words.option("lend", &format!("tap:{name}"));
    }
    Ok(())
}
