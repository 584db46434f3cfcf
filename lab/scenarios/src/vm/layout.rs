//! vCPUs of each slice.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

/// vCPUs of each slice in order, written `2+1+0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout(Vec<u32>);

impl Layout {
    /// One vCPU on each of this many slices.
    pub(crate) fn even(slices: usize) -> Result<Self> {
        Self::of(vec![1; slices])
    }

    /// So many vCPUs on each slice.
    pub(crate) fn of(vcpus: Vec<u32>) -> Result<Self> {
        ensure!(
            (1..=lab::MAX_HOSTS).contains(&vcpus.len()),
            "{} slices: use 1 to {}",
            vcpus.len(),
            lab::MAX_HOSTS
        );
        ensure!(vcpus[0] > 0, "the first slice starts the guest, so it needs a vCPU");
        ensure!(vcpus.iter().all(|&count| count <= 64), "a slice has at most 64 vCPUs");
        Ok(Self(vcpus))
    }

    /// Number of slices.
    pub(crate) fn slices(&self) -> usize {
        self.0.len()
    }

    /// vCPUs of each slice.
    pub(crate) fn vcpus(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// vCPUs of the VM.
    pub(crate) fn all(&self) -> u32 {
        self.0.iter().sum()
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&counts.join("+"))
    }
}

impl FromStr for Layout {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let count = |part: &str| {
            part.parse::<u32>().with_context(|| format!("'{part}' is no number of vCPUs"))
        };
        Self::of(text.split('+').map(count).collect::<Result<_>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_read_and_written_alike() {
        let layout: Layout = "2+1+0".parse().unwrap();

        assert_eq!((layout.slices(), layout.all()), (3, 3));
        assert_eq!(layout.to_string(), "2+1+0");
    }

    #[test]
    fn first_slice_without_vcpu_is_refused() {
        assert!("0+1".parse::<Layout>().is_err());
        assert!("".parse::<Layout>().is_err());
        assert!("1+x".parse::<Layout>().is_err());
    }
}
