//! What VMs want, and how many come together.
//!
//! | published of Azure, 2019 | here |
//! |---|---|
//! | at most 2, 4, 8, 24 cores: 58, 81, 93, 99 % | 1, 2, 4, 8, 16, 24, 32 cores |
//! | at most 2, 4, 8, 32, 64 GB: 12, 29, 61, 90, 97 % | 1, 2, 4, 8 GiB for each core, whatever the cores |
//! | deployments of 1, at most 5, 10, 20 VMs: 47, 79, 88, 93 % | even between these, and up to 50 |
//!
//! Classes are a guess: nobody has published how much the vCPUs of VMs share.

use scheduler::{Class, Resources, Spec};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

/// Units of 2 MiB in a GiB.
pub(crate) const UNITS_PER_GIB: u32 = 512;

/// Which VMs come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// As in Azure, 2019.
    #[default]
    Azure,
    /// Fewer small ones, and a tenth with 32 cores and more: databases, analyses.
    Big,
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(text: &str) -> Result<Self, UnknownPreset> {
        match text {
            "azure" => Ok(Self::Azure),
            "big" => Ok(Self::Big),
            _ => Err(UnknownPreset { name: text.to_owned() }),
        }
    }
}

/// No VMs have this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there are no VMs {name:?}; there are: azure, big")]
pub struct UnknownPreset {
    /// What was asked for.
    name: String,
}

impl Preset {
    /// Cores, and of a thousand VMs how many have so many.
    fn cores(self) -> &'static [(u32, u32)] {
        match self {
            Self::Azure => &[(1, 290), (2, 290), (4, 230), (8, 120), (16, 50), (24, 12), (32, 8)],
            Self::Big => &[(2, 250), (4, 250), (8, 200), (16, 150), (24, 60), (32, 60), (40, 30)],
        }
    }
}

/// GiB for each core, and of a hundred VMs how many have so many.
const GIB_PER_CORE: [(u32, u32); 4] = [(1, 10), (2, 25), (4, 35), (8, 30)];
const CLASSES: [(Class, u32); 4] =
    [(Class::Independent, 20), (Class::Requests, 40), (Class::Default, 30), (Class::Shared, 10)];
/// From how many to how many VMs, and of a hundred deployments how many are of such a size.
const DEPLOYMENTS: [(u32, u32, u32); 5] =
    [(1, 1, 47), (2, 5, 32), (6, 10, 9), (11, 20, 5), (21, 50, 7)];

/// Kinds of VMs, each as often as it comes. VMs of a kind share their words.
#[derive(Clone, Debug)]
pub struct Shapes {
    cores: &'static [(u32, u32)],
    /// For each number of cores, for each GiB per core, for each class.
    specs: Vec<Vec<Vec<Arc<Spec>>>>,
}

impl Shapes {
    /// Those of a preset.
    #[must_use]
    pub fn new(preset: Preset) -> Self {
        let cores = preset.cores();
        let of_class = |cores: u32, gib: u32| {
            let needs = Resources::new(cores, cores * gib * UNITS_PER_GIB);
            CLASSES.iter().map(|(class, _)| Arc::new(Spec::new(needs, *class))).collect()
        };
        let of_memory =
            |cores: u32| GIB_PER_CORE.iter().map(|(gib, _)| of_class(cores, *gib)).collect();
        Self { cores, specs: cores.iter().map(|(cores, _)| of_memory(*cores)).collect() }
    }

    /// Cores, and the share of VMs that have so many.
    pub(super) fn cores(&self) -> Vec<(u32, f64)> {
        let all: u32 = self.cores.iter().map(|it| it.1).sum();
        self.cores.iter().map(|it| (it.0, f64::from(it.1) / f64::from(all))).collect()
    }

    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> Arc<Spec> {
        let cores = drawn(random, self.cores.iter().map(|it| it.1));
        let memory = drawn(random, GIB_PER_CORE.iter().map(|it| it.1));
        let class = drawn(random, CLASSES.iter().map(|it| it.1));
        Arc::clone(&self.specs[cores][memory][class])
    }
}

/// Which of several, each as often as its weight says.
fn drawn(random: &mut fastrand::Rng, weights: impl Iterator<Item = u32> + Clone) -> usize {
    let all: u32 = weights.clone().sum();
    let mut rest = random.u32(..all);
    for (at, weight) in weights.enumerate() {
        if rest < weight {
            return at;
        }
        rest -= weight;
    }
    0
}

/// How many VMs come together.
pub(super) fn deployment_size(random: &mut fastrand::Rng) -> u32 {
    let (least, most, _) = DEPLOYMENTS[drawn(random, DEPLOYMENTS.iter().map(|it| it.2))];
    random.u32(least..=most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(of: impl Fn(&Spec) -> bool) -> f64 {
        let shapes = Shapes::new(Preset::Azure);
        let mut random = fastrand::Rng::with_seed(1);
        let fits = (0..100_000).filter(|_| of(&shapes.draw(&mut random))).count();
        f64::from(u32::try_from(fits).unwrap()) / 100_000.0
    }

    #[test]
    fn cores_and_memory_are_as_published() {
        for (cores, published) in [(2, 0.58), (4, 0.81), (8, 0.93), (24, 0.99)] {
            let found = share(|spec| spec.needs.cores <= cores);
            assert!((found - published).abs() < 0.01, "{cores} cores: {found}");
        }
        for (gib, published) in [(2, 0.12), (4, 0.29), (8, 0.61), (32, 0.90), (64, 0.97)] {
            let found = share(|spec| spec.needs.memory <= gib * UNITS_PER_GIB);
            assert!((found - published).abs() < 0.05, "{gib} GiB: {found}");
        }
    }

    #[test]
    fn presets_have_names() {
        assert_eq!("azure".parse(), Ok(Preset::Azure));
        assert_eq!("big".parse(), Ok(Preset::Big));
        let error = "huge".parse::<Preset>().unwrap_err().to_string();
        assert_eq!(error, "there are no VMs \"huge\"; there are: azure, big");
    }

    #[test]
    fn deployments_are_as_large_as_published() {
        let mut random = fastrand::Rng::with_seed(1);
        let sizes: Vec<u32> = (0..100_000).map(|_| deployment_size(&mut random)).collect();
        for (most, published) in [(1, 47), (5, 79), (10, 88), (20, 93), (50, 100)] {
            let found = sizes.iter().filter(|size| **size <= most).count() / 1000;
            assert!(found.abs_diff(published) <= 1, "at most {most}: {found} %");
        }
    }
}
