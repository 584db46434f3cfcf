//! What the fields of a VM file say together.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::spec::{Class, Metadata, Slice, Spec, Standby, VmFile};
use crate::values::Size;

/// vCPUs of a VM.
pub const VCPUS_MAX: u16 = 256;
/// Slices of a VM.
pub const SLICES_MAX: usize = 32;
/// Labels of a VM.
pub const LABELS_MAX: usize = 64;
/// Slots of the guest's bus.
const DEVICES_MAX: usize = 31;
const LABEL_BYTES_MAX: usize = 63;
/// Linux takes no longer one.
const CMDLINE_BYTES_MAX: usize = 2047;
const KEEP_MAX: u16 = 1000;
const CHUNK: u64 = 2 << 20;
const MEMORY_MIN: u64 = 32 << 20;
/// A checkpoint takes some time itself.
const EVERY_SECONDS: (u64, u64) = (10, 7 * 86_400);

/// Fields that make no sense, alone or together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {what}")]
pub struct CheckError {
    path: String,
    what: String,
}

impl CheckError {
    /// The field, as `spec.slices[1].memory`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

type Checked = Result<(), CheckError>;

fn fail<T>(path: impl Into<String>, what: impl Into<String>) -> Result<T, CheckError> {
    Err(CheckError { path: path.into(), what: what.into() })
}

impl VmFile {
    /// Checks what no single field can.
    ///
    /// # Errors
    /// The first that makes no sense.
    pub fn check(&self) -> Checked {
        labels(&self.metadata)?;
        let spec = &self.spec;
        sizes(spec)?;
        guest(spec)?;
        slices(spec)?;
        devices(spec)?;
        checkpoint(spec)
    }
}

fn labels(metadata: &Metadata) -> Checked {
    let labels = &metadata.labels;
    if labels.len() > LABELS_MAX {
        let count = labels.len();
        return fail(
            "metadata.labels",
            format!("{count} labels; at most {LABELS_MAX} are allowed"),
        );
    }
    let allowed = |text: &str| {
        text.len() <= LABEL_BYTES_MAX
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
    };
    for (key, value) in labels {
        if key.is_empty() || !allowed(key) || !allowed(value) {
            return fail(
                "metadata.labels",
                format!(
                    "{:?}: keys and values are up to {LABEL_BYTES_MAX} letters, digits, '-', '_', '.' and '/'",
                    key.chars().take(LABEL_BYTES_MAX + 1).collect::<String>()
                ),
            );
        }
    }
    Ok(())
}

fn sizes(spec: &Spec) -> Checked {
    if spec.vcpus == 0 || spec.vcpus > VCPUS_MAX {
        return fail("spec.vcpus", format!("{}; 1 to {VCPUS_MAX} are allowed", spec.vcpus));
    }
    chunks("spec.memory", spec.memory)?;
    if spec.memory.bytes() < MEMORY_MIN {
        let least = Size::of_bytes(MEMORY_MIN);
        return fail("spec.memory", format!("{}; at least {least} is needed", spec.memory));
    }
    let Some(most) = spec.slices_max else { return Ok(()) };
    if most == 0 || usize::from(most) > SLICES_MAX {
        return fail("spec.slicesMax", format!("{most}; 1 to {SLICES_MAX} are allowed"));
    }
    if most > 1 && spec.class == Class::Shared {
        return fail("spec.slicesMax", "a VM of class shared is never split; leave it out, or 1");
    }
    Ok(())
}

fn chunks(path: &str, size: Size) -> Checked {
    if size.bytes().is_multiple_of(CHUNK) {
        return Ok(());
    }
    fail(path, format!("{size} is no multiple of {}", Size::of_bytes(CHUNK)))
}

fn guest(spec: &Spec) -> Checked {
    let cmdline = &spec.guest.cmdline;
    let path = "spec.guest.cmdline";
    if cmdline.len() > CMDLINE_BYTES_MAX {
        return fail(path, format!("longer than {CMDLINE_BYTES_MAX} bytes"));
    }
    if cmdline.contains(char::is_control) {
        return fail(path, "it has a control character");
    }
    if let Some(permille) = spec.guest.clock_permille
        && !(1..=1000).contains(&permille)
    {
        return fail("spec.guest.clockPermille", format!("{permille}; 1 to 1000 are allowed"));
    }
    Ok(())
}

fn slices(spec: &Spec) -> Checked {
    let Spec { slices, .. } = spec;
    if slices.is_empty() {
        return Ok(());
    }
    let path = "spec.slices";
    let most = spec.slices_max.map_or(SLICES_MAX, usize::from);
    if slices.len() > most {
        return fail(path, format!("{} slices; at most {most} are allowed", slices.len()));
    }
    if slices.len() > 1 && spec.class == Class::Shared {
        return fail(path, "a VM of class shared is never split");
    }
    let mut addresses = BTreeSet::new();
    for (index, slice) in slices.iter().enumerate() {
        let path = format!("{path}[{index}]");
        match &slice.address {
            Some(_) if index == 0 => {
                return fail(
                    format!("{path}.address"),
                    "the first slice is the bootstrap's own and has none",
                );
            }
            None if index > 0 => {
                return fail(
                    path,
                    "only the first slice has no address; where does its companion listen?",
                );
            }
            Some(address) if !addresses.insert(address) => {
                return fail(format!("{path}.address"), format!("another slice has {address}"));
            }
            _ => {}
        }
        one_slice(&path, slice)?;
    }
    if slices[0].vcpus == 0 {
        return fail("spec.slices[0].vcpus", "the first slice has one at least");
    }
    sums(spec)
}

fn one_slice(path: &str, slice: &Slice) -> Checked {
    chunks(&format!("{path}.memory"), slice.memory)?;
    match slice.vcpus_max {
        Some(most) if most < slice.vcpus || most > VCPUS_MAX => fail(
            format!("{path}.vcpusMax"),
            format!("{most}; {} to {VCPUS_MAX} are allowed", slice.vcpus),
        ),
        _ => Ok(()),
    }
}

fn sums(spec: &Spec) -> Checked {
    let vcpus: u32 = spec.slices.iter().map(|slice| u32::from(slice.vcpus)).sum();
    if vcpus != u32::from(spec.vcpus) {
        return fail(
            "spec.slices",
            format!("they have {vcpus} vCPUs together, and spec.vcpus says {}", spec.vcpus),
        );
    }
    let memory =
        spec.slices.iter().try_fold(0_u64, |sum, slice| sum.checked_add(slice.memory.bytes()));
    match memory {
        Some(memory) if memory == spec.memory.bytes() => Ok(()),
        Some(memory) => fail(
            "spec.slices",
            format!(
                "they have {} of memory together, and spec.memory says {}",
                Size::of_bytes(memory),
                spec.memory
            ),
        ),
        None => fail("spec.slices", "their memory is more than there is"),
    }
}

fn devices(spec: &Spec) -> Checked {
    let count = spec.disks.len() + spec.nics.len() + usize::from(spec.rng);
    if count > DEVICES_MAX {
        return fail("spec", format!("{count} devices; at most {DEVICES_MAX} are allowed"));
    }
    let slices = match spec.slices.len() {
        0 => SLICES_MAX,
        given => given,
    };
    for (index, disk) in spec.disks.iter().enumerate() {
        places(&format!("spec.disks[{index}]"), disk.slice, &disk.standby, slices)?;
    }
    for (index, nic) in spec.nics.iter().enumerate() {
        places(&format!("spec.nics[{index}]"), nic.slice, &nic.standby, slices)?;
    }
    Ok(())
}

fn places(path: &str, own: u16, standby: &[Standby], slices: usize) -> Checked {
    let mut seen = BTreeSet::new();
    let all = [(format!("{path}.slice"), own)].into_iter();
    let others = standby.iter().enumerate();
    let others = others.map(|(at, other)| (format!("{path}.standby[{at}].slice"), other.slice));
    for (path, slice) in all.chain(others) {
        if usize::from(slice) >= slices {
            return fail(path, format!("there is no slice {slice}; the VM has {slices} at most"));
        }
        if !seen.insert(slice) {
            return fail(path, format!("slice {slice} has it already"));
        }
    }
    Ok(())
}

fn checkpoint(spec: &Spec) -> Checked {
    let Some(checkpoint) = spec.checkpoint else { return Ok(()) };
    let (least, most) = EVERY_SECONDS;
    if !(least..=most).contains(&checkpoint.every.seconds()) {
        let every = checkpoint.every;
        return fail("spec.checkpoint.every", format!("{every}; 10s to 7d are allowed"));
    }
    if checkpoint.keep == 0 || checkpoint.keep > KEEP_MAX {
        let keep = checkpoint.keep;
        return fail("spec.checkpoint.keep", format!("{keep}; 1 to {KEEP_MAX} are allowed"));
    }
    Ok(())
}
