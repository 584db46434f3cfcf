//! What a slice is asked to write.

use crate::control::RELEASED_MAX;
use crate::slice::checkpoint_link::DiskPolicy;
use checkpoint::PartSummary;
use migrate::saved::encode;
use migrate::{Invalid, SavedError, SavedState};
use serde::{Deserialize, Serialize};
use wire::control::CHECKPOINT_BYTES_MAX;

/// Bytes of a name at most.
const NAME_MAX: usize = 128;

/// The part that a slice is to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartRequest {
    /// Name of the checkpoint's folder.
    pub(crate) name: String,
    /// Identity of the VM.
    pub(crate) vm: [u8; 16],
    /// Which of its lives.
    pub(crate) generation: u64,
    /// Whether the guest runs on while it is written.
    pub(crate) live: bool,
    /// The number of the checkpoint that it is an increment of.
    pub(crate) base: Option<u64>,
    /// Whether pages are made shorter.
    pub(crate) compressed: bool,
    /// What becomes of the slice's disks.
    pub(crate) disks: DiskPolicy,
    /// Numbers of checkpoints that were deleted: states of disks that are kept for them are not needed any more.
    pub(crate) released: Vec<u64>,
}

impl SavedState for PartRequest {
    const NAME: &'static str = "part of a checkpoint";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = CHECKPOINT_BYTES_MAX - 128;

    fn check(&self) -> Result<(), Invalid> {
        check_name(&self.name)?;
        Invalid::unless(self.released.len() <= RELEASED_MAX, "released", "too many at a time")
    }
}

/// The part that a slice has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct WrittenPart(pub(crate) PartSummary);

impl SavedState for WrittenPart {
    const NAME: &'static str = "written part";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = CHECKPOINT_BYTES_MAX - 128;

    fn check(&self) -> Result<(), Invalid> {
        self.0.check()
    }
}

/// What a slice says of its part.
///
/// # Errors
/// It cannot be.
pub(super) fn encode_summary(summary: &PartSummary) -> Result<Vec<u8>, SavedError> {
    encode(&WrittenPart(summary.clone()))
}

/// Whether a folder of a checkpoint can have this name: it is one, and nobody is led elsewhere by it.
///
/// # Errors
/// Why not.
pub(crate) fn check_name(name: &str) -> Result<(), Invalid> {
    let short = (1..=NAME_MAX).contains(&name.len());
    Invalid::unless(short, "name", "empty, or longer than 128 bytes")?;
    let plain = name.chars().all(|one| one.is_alphanumeric() || "-_.+:@".contains(one));
    Invalid::unless(plain, "name", "letters, digits and any of -_.+:@ are allowed")?;
    Invalid::unless(!name.starts_with('.'), "name", "it begins with a dot")
}

#[cfg(test)]
mod tests {
    use super::*;
    use migrate::saved::decode;
    use proptest::prelude::*;

    #[test]
    fn name_leads_nowhere_else() {
        for name in ["a", "2026-11-26_10:00", "nightly.3", "Ärger"] {
            check_name(name).unwrap();
        }
        for name in ["", ".", "..", "../a", "a/b", ".a", "a\0", "a b", "a\n", &"a".repeat(129)] {
            check_name(name).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn request_comes_back_and_damage_is_refused_or_a_request(at in any::<prop::sample::Index>(), to: u8) {
            let request = PartRequest {
                name: "one".into(),
                vm: [7; 16],
                generation: 3,
                live: true,
                base: Some(8),
                compressed: true,
                disks: DiskPolicy::Keep,
                released: (0..RELEASED_MAX as u64).map(|number| u64::MAX - number).collect(),
            };
            let mut bytes = encode(&request).unwrap();
            prop_assert!(bytes.len() <= CHECKPOINT_BYTES_MAX);
            prop_assert_eq!(decode::<PartRequest>(&bytes).unwrap(), request);
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(request) = decode::<PartRequest>(&bytes) {
                request.check().unwrap();
            }
        }
    }
}
