//! Floating point and vector registers: the XSAVE area, and the registers that say what is in it.

use kvm_bindings::{kvm_xcr, kvm_xcrs};
use migrate::Invalid;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Legacy region and header of an XSAVE area (SDM vol. 1, 13.4).
pub const XSAVE_BYTES_MIN: usize = 512 + 64;
/// More than any CPU has: with all tiles of AMX it is 11 KiB.
pub const XSAVE_BYTES_MAX: usize = 32 << 10;
/// `XCOMP_BV` and what is reserved in the header: all zero in the standard format (SDM vol. 1, 13.4.2).
const HEADER_ZERO: std::ops::Range<usize> = 520..576;
/// Registers that `KVM_GET_XCRS` can tell.
const XCRS_MAX: usize = 16;
/// XCR0: state of the FPU, of SSE and of AVX (SDM vol. 1, 13.3).
const X87: u64 = 1;
const SSE: u64 = 2;
const AVX: u64 = 4;

/// The XSAVE area in the standard format, without the zeros at its end. The one thing that is opaque: where each part
/// lies is for the CPU to say (SDM vol. 1, chapter 13), and it is the same on all CPUs that a VM may run on.
#[derive(Clone, PartialEq, Eq)]
pub struct XsaveArea(Vec<u8>);

impl XsaveArea {
    /// The area as KVM gives it, in words of 4 bytes.
    #[must_use]
    pub fn from_words(words: impl IntoIterator<Item = u32>) -> Self {
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.resize(used.next_multiple_of(4).max(XSAVE_BYTES_MIN), 0);
        Self(bytes)
    }

    /// The area in words, with zeros up to `bytes`, which is what KVM on this host reads.
    ///
    /// # Errors
    /// More of it is in use than this host has.
    pub fn to_words(&self, bytes: usize) -> Result<Vec<u32>, Invalid> {
        if self.0.len() > bytes {
            let why = format!("{} bytes are in use, this host has {bytes}", self.0.len());
            return Err(Invalid::new("xsave", why));
        }
        let word = |chunk: &[u8; 4]| u32::from_le_bytes(*chunk);
        let mut words: Vec<u32> = self.0.as_chunks().0.iter().map(word).collect();
        words.resize(bytes.div_ceil(4), 0);
        Ok(words)
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let unless = |holds, why| Invalid::unless(holds, "xsave", why);
        let bytes = self.0.len();
        unless(bytes >= XSAVE_BYTES_MIN, "shorter than its header")?;
        unless(bytes <= XSAVE_BYTES_MAX, "longer than that of any CPU")?;
        unless(bytes.is_multiple_of(4), "not made of words")?;
        unless(self.0[HEADER_ZERO].iter().all(|byte| *byte == 0), "not in the standard format")
    }
}

impl fmt::Debug for XsaveArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XsaveArea({} bytes)", self.0.len())
    }
}

impl Serialize for XsaveArea {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for XsaveArea {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = XsaveArea;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of an XSAVE area")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<XsaveArea, E> {
                Ok(XsaveArea(bytes.to_vec()))
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<XsaveArea, E> {
                Ok(XsaveArea(bytes))
            }
        }

        deserializer.deserialize_byte_buf(Bytes)
    }
}

/// An extended control register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xcr {
    /// Its number: 0 for XCR0.
    pub number: u32,
    /// Its value.
    pub value: u64,
}

/// Extended control registers, up to 16, each once. Without any the CPU has no XSAVE.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Xcrs(pub Vec<Xcr>);

impl Xcrs {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let unless = |holds, why| Invalid::unless(holds, "xcrs", why);
        unless(self.0.len() <= XCRS_MAX, "more than 16")?;
        let twice =
            |(at, one): (usize, &Xcr)| self.0[..at].iter().any(|two| two.number == one.number);
        unless(!self.0.iter().enumerate().any(twice), "one of them twice")?;
        let Some(zero) = self.0.iter().find(|xcr| xcr.number == 0) else { return Ok(()) };
        unless(zero.value & X87 != 0, "XCR0 without the FPU")?;
        unless(zero.value & AVX == 0 || zero.value & SSE != 0, "XCR0 with AVX but without SSE")
    }
}

impl From<kvm_xcrs> for Xcrs {
    fn from(from: kvm_xcrs) -> Self {
        let count = usize::try_from(from.nr_xcrs).unwrap_or(usize::MAX);
        let each = |xcr: &kvm_xcr| Xcr { number: xcr.xcr, value: xcr.value };
        Self(from.xcrs.iter().take(count).map(each).collect())
    }
}

/// Those beyond 16, which the check refuses, are left out.
impl From<&Xcrs> for kvm_xcrs {
    fn from(from: &Xcrs) -> Self {
        let mut xcrs = Self::default();
        for (slot, xcr) in xcrs.xcrs.iter_mut().zip(&from.0) {
            *slot = kvm_xcr { xcr: xcr.number, reserved: 0, value: xcr.value };
            xcrs.nr_xcrs += 1;
        }
        xcrs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn area_is_kept_without_the_zeros_at_its_end_and_padded_for_the_host() {
        let mut words = vec![0; 1024];
        (words[6], words[200]) = (0x1f80, 7);
        let area = XsaveArea::from_words(words.clone());
        assert_eq!(area.0.len(), 804);
        assert_eq!(area.to_words(4096).unwrap(), words);
        assert_eq!(area.to_words(11_008).unwrap().len(), 2752);
        assert_eq!(XsaveArea::from_words([]).0.len(), XSAVE_BYTES_MIN);
    }

    #[test]
    fn area_that_this_host_does_not_have_is_refused() {
        let area = XsaveArea::from_words(vec![1; 2000]);
        assert_eq!(area.to_words(4096).unwrap_err().field, "xsave");
        assert_eq!(XsaveArea(vec![1; 577]).to_words(576).unwrap_err().field, "xsave");
    }

    #[test]
    fn lengths_and_formats_that_no_cpu_has_are_refused() {
        let good = XsaveArea(vec![0; XSAVE_BYTES_MIN]);
        good.check().unwrap();
        for bytes in [0, 512, 575, 577, XSAVE_BYTES_MAX + 4] {
            assert!(XsaveArea(vec![0; bytes]).check().is_err(), "{bytes}");
        }
        for at in [520, 575] {
            let mut compact = good.clone();
            compact.0[at] = 0x80;
            assert!(compact.check().is_err(), "{at}");
        }
    }

    /// The count that KVM gives is not trusted, and neither is the length that a state has.
    #[test]
    fn counts_of_control_registers_that_lie_stay_within_bounds() {
        let lie = kvm_xcrs { nr_xcrs: u32::MAX, ..kvm_xcrs::default() };
        assert_eq!(Xcrs::from(lie).0.len(), 16);
        let many = Xcrs((0..40).map(|number| Xcr { number, value: 1 }).collect());
        assert!(many.check().is_err());
        assert_eq!(kvm_xcrs::from(&many).nr_xcrs, 16);
    }

    #[test]
    fn control_registers_that_no_cpu_has_are_refused() {
        let of = |value| Xcrs(vec![Xcr { number: 0, value }]);
        Xcrs::default().check().unwrap();
        of(7).check().unwrap();
        assert!([of(0), of(2), of(5)].iter().all(|xcrs| xcrs.check().is_err()));
        let twice = Xcrs(vec![Xcr { number: 1, value: 1 }; 2]);
        assert!(twice.check().is_err());
    }
}
