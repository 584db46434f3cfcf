//! The table of all kinds of devices, at the end of this file. **A new kind is a module in this folder and a line in the
//! table**; its front end is a module of `devices::virtio`, its option a field in `cli/src/devices.rs`.

use super::console::ConsoleSpec;
use super::disk::DiskSpec;
use super::model::{BackEnd, FrontEnd, Lending, Model, Moves, Opening, Places};
use super::nic::NicSpec;
use super::open_error::OpenError;
use super::parts::RealPart;
use super::remote::Remote;
use super::rng::RngSpec;
use super::vsock::{VsockShape, VsockSpec};
use devices::back_end::image::snapshot::cloned_from;
use devices::back_end::{DiskShape, NicShape};
use devices::virtio::DeviceShape;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::{SliceId, VcpuId};

/// Where the rings of a device are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rings {
    /// On the slice of the queue's vCPU: requests and payload travel in messages.
    #[default]
    Bypass,
    /// On the slice with the real device: rings and payload travel as pages of the distributed memory. For
    /// comparison.
    Coherent,
}

/// Another slice that may have the real part of a device later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standby {
    /// The slice.
    pub slice: u16,
    /// What it is called on its host, if not as on the first one.
    #[serde(default)]
    pub name: Option<String>,
}

impl Standby {
    /// `K` or `K:NAME`
    fn parse(value: &str) -> Result<Self, String> {
        let (slice, name) = match value.split_once(':') {
            Some((_, "")) => return Err(format!("standby={value:?}: the name is missing")),
            Some((slice, name)) => (slice, Some(name.to_owned())),
            None => (value, None),
        };
        let error = |_| format!("standby={value:?} does not begin with the number of a slice");
        Ok(Self { slice: slice.parse().map_err(error)?, name })
    }
}

/// A device of the VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// The slice with the real device.
    pub slice: u16,
    /// Where its rings are read.
    #[serde(default)]
    pub rings: Rings,
    /// Slices that may have the real device later.
    #[serde(default)]
    pub standby: Vec<Standby>,
    /// What it is.
    pub kind: DeviceKind,
}

impl DeviceSpec {
    /// Reads what is said behind `--option`: the device's own words, with `slice=K` and, where vCPUs' slices may
    /// read its rings, `rings=WHERE`, and, where it may move, `standby=K` or `standby=K:NAME` among them. The first word is always the device's own.
    ///
    /// # Errors
    /// What is wrong, for who has typed it.
    pub fn parse(option: &str, text: &str) -> Result<Self, String> {
        let mut own = Vec::new();
        let (mut slice, mut rings, mut standby) = (0, None, Vec::new());
        for part in text.split(',') {
            match part.split_once('=') {
                Some(("slice", value)) if !own.is_empty() => {
                    let error = |_| format!("slice={value:?} is no number of a slice");
                    slice = value.parse().map_err(error)?;
                }
                Some(("standby", value)) if !own.is_empty() => standby.push(Standby::parse(value)?),
                Some(("rings", value)) if !own.is_empty() => rings = Some(value),
                _ => own.push(part),
            }
        }
        let kind = DeviceKind::parse(option, &own)?;
        let rings = match rings {
            None => Rings::Bypass,
            Some(_) if kind.is_at_owner() => {
                return Err("rings= makes no sense: they are always where this device is".into());
            }
            Some("bypass") => Rings::Bypass,
            Some("coherent") => Rings::Coherent,
            Some(value) => {
                return Err(format!("rings={value:?} is neither bypass nor coherent"));
            }
        };
        if !standby.is_empty() && kind.moves() != Moves::ByName {
            return Err(
                "standby= makes no sense: this device has no real part that can move".into()
            );
        }
        let mut places = standby.iter().map(|other: &Standby| other.slice).chain([slice]);
        let mut seen = BTreeSet::new();
        if let Some(twice) = places.find(|place| !seen.insert(*place)) {
            return Err(format!("standby={twice}: that slice has it already"));
        }
        Ok(Self { slice, rings, standby, kind })
    }

    /// The device in a VM whose slices have other numbers now: `were[k]` is what slice k was. If its slice is left out, the device is
    /// at the first of its standby slices that is there, or at slice 0.
    #[must_use]
    pub fn renumbered(&self, were: &[u16]) -> Self {
        let now = |slice: u16| (0..).zip(were).find(|(_, was)| **was == slice).map(|(now, _)| now);
        let standby = |other: &Standby| {
            let slice = now(other.slice)?;
            Some(Standby { slice, name: other.name.clone() })
        };
        let mut standby: Vec<_> = self.standby.iter().filter_map(standby).collect();
        if let Some(slice) = now(self.slice) {
            return Self { slice, standby, ..self.clone() };
        }
        if standby.is_empty() {
            return Self { slice: 0, standby, ..self.clone() };
        }
        let Standby { slice, name } = standby.remove(0);
        let named = name.and_then(|name| self.kind.named(&name));
        if named.is_some() {
            // Those without a name have that of the slice that is gone.
            standby.retain(|other| other.name.is_some());
        }
        let kind = named.unwrap_or_else(|| self.kind.clone());
        Self { slice, standby, kind, rings: self.rings }
    }

    /// The real device as a slice has it, or may have it later.
    pub(super) fn at(&self, slice: SliceId) -> Option<DeviceKind> {
        if self.slice == slice.0 {
            return Some(self.kind.clone());
        }
        let standby = self.standby.iter().find(|standby| standby.slice == slice.0)?;
        match &standby.name {
            Some(name) => self.kind.named(name),
            None => Some(self.kind.clone()),
        }
    }

    /// Whether a slice can have the real device.
    pub(crate) fn reaches(&self, slice: SliceId) -> bool {
        self.kind.moves() == Moves::Anywhere || self.at(slice).is_some()
    }

    /// True when its rings are read on its own slice, wherever vCPUs are.
    pub(crate) fn has_rings_at_home(&self) -> bool {
        self.rings == Rings::Coherent || self.kind.is_at_owner()
    }
}

impl DeviceKind {
    /// What it is a clone of, by its name.
    pub(super) fn cloned_from(&self) -> Option<Self> {
        let Self::Disk(disk) = self else { return None };
        let path = cloned_from(&disk.path)?;
        Some(Self::Disk(DiskSpec { path, ..disk.clone() }))
    }
}

impl BackEndShape {
    /// The home of each queue, by number. `vcpus` has the slice of each vCPU.
    pub(crate) fn homes(&self, device: &DeviceSpec, vcpus: &[SliceId]) -> Vec<SliceId> {
        let owner = SliceId(device.slice);
        let at = |vcpu: &SliceId| if device.has_rings_at_home() { owner } else { *vcpu };
        self.homes_at(&Places { owner, vcpus: vcpus.iter().map(at).collect() })
    }
}

impl BackEndShape {
    /// The vCPU that each queue belongs to, of so many; none for a queue that stays with its device.
    pub(crate) fn owners(&self, device: &DeviceSpec, vcpus: u32) -> Vec<Option<VcpuId>> {
        // Homes are told of places. Here each vCPU is a place of its own, and the device is at one more.
        let place = |number: u32| SliceId(u16::try_from(number).unwrap_or(u16::MAX));
        let owner = place(vcpus);
        let at = |vcpu| if device.has_rings_at_home() { owner } else { place(vcpu) };
        let places = Places { owner, vcpus: (0..vcpus).map(at).collect() };
        let vcpu = |home: SliceId| (home != owner).then(|| VcpuId(home.0.into()));
        self.homes_at(&places).into_iter().map(vcpu).collect()
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $spec:ty => $shape:ty,)*) => {
        /// What a device is made of, as the VM's description says it.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum DeviceKind { $($(#[$doc])* $kind($spec),)* }

        /// What the slice with a device tells the others of it.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum BackEndShape { $($(#[$doc])* $kind($shape),)* }

        $(impl From<$spec> for DeviceKind {
            fn from(spec: $spec) -> Self {
                Self::$kind(spec)
            }
        })*

        impl DeviceKind {
            fn parse(option: &str, parts: &[&str]) -> Result<Self, String> {
                $(if option == <$spec as Model>::OPTION {
                    return <$spec as Model>::parse(parts).map(Self::$kind);
                })*
                Err(format!("no device has the option --{option}"))
            }

            /// The option that asks for one, without dashes.
            pub(crate) fn option(&self) -> &'static str {
                match self { $(Self::$kind(_) => <$spec as Model>::OPTION,)* }
            }

            /// Its rings are read on the slice with the real device, wherever vCPUs are.
            fn is_at_owner(&self) -> bool {
                match self { $(Self::$kind(_) => <$spec as Model>::AT_OWNER,)* }
            }

            /// Whether its real part can move.
            fn moves(&self) -> Moves {
                match self { $(Self::$kind(_) => <$spec as Model>::MOVES,)* }
            }

            /// The same by another name, if it can be elsewhere.
            fn named(&self, name: &str) -> Option<Self> {
                match self { $(Self::$kind(spec) => spec.named(name).map(Self::$kind),)* }
            }

            /// Looks at a real device that may be opened here later.
            pub(super) fn stand_by(
                &self,
                opening: &Opening<'_>,
            ) -> Result<(BackEndShape, Arc<dyn RealPart>), OpenError> {
                match self {
                    $(Self::$kind(spec) => {
                        let (shape, part) = spec.stand_by(opening)?;
                        Ok((BackEndShape::$kind(shape), part))
                    })*
                }
            }

            /// Names under which it may be lent.
            pub(super) fn names(&self) -> Vec<String> {
                match self { $(Self::$kind(spec) => spec.names(),)* }
            }

            /// Opens the real device.
            pub(super) fn open(
                &self,
                opening: &Opening<'_>,
            ) -> Result<(BackEndShape, Arc<dyn BackEnd>), OpenError> {
                match self {
                    $(Self::$kind(spec) => {
                        let (shape, back_end) = spec.open(opening)?;
                        Ok((BackEndShape::$kind(shape), back_end))
                    })*
                }
            }
        }

        impl BackEndShape {
            /// Whether it is what was asked for.
            pub(crate) fn fits(&self, kind: &DeviceKind) -> bool {
                match (self, kind) {
                    $((Self::$kind(shape), DeviceKind::$kind(spec)) => spec.fits(shape),)*
                    _ => false,
                }
            }

            /// Whether a real device like this can take the place of that one, which the guest knows.
            ///
            /// # Errors
            /// In what it differs.
            pub(crate) fn carries_on(&self, of: &Self) -> Result<(), String> {
                match (self, of) {
                    $((Self::$kind(shape), Self::$kind(of)) => <$spec as Model>::carries_on(shape, of),)*
                    _ => Err("it is of another kind".into()),
                }
            }

            fn homes_at(&self, places: &Places) -> Vec<SliceId> {
                match self { $(Self::$kind(shape) => <$spec as Model>::homes(shape, places),)* }
            }

            /// The device with so many queues, as drivers see it.
            pub(super) fn seen(&self, queues: u16) -> DeviceShape {
                match self { $(Self::$kind(shape) => <$spec as Model>::seen(shape, queues),)* }
            }

            /// The front end of a device of another slice.
            pub(super) fn remote(&self, at: &Remote<'_>) -> Arc<dyn FrontEnd> {
                match self { $(Self::$kind(shape) => <$spec as Model>::remote(shape, at),)* }
            }
        }

        /// How things are lent to each kind.
        pub(super) fn lendings() -> impl Iterator<Item = Lending> {
            [$(<$spec as Model>::LENDING,)*].into_iter().flatten()
        }
    };
}

// The table: what a VM's description says of a device, and what the slice that has it tells the others.
kinds! {
    /// An image file or block device.
    Disk: DiskSpec => DiskShape,
    /// A tap interface.
    Nic: NicSpec => NicShape,
    /// A source of randomness.
    Rng: RngSpec => (),
    /// A console beside the serial line.
    Console: ConsoleSpec => (),
    /// Sockets between guest and host.
    Vsock: VsockSpec => VsockShape,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_a_device_are_read_whatever_it_is() {
        let disk = DeviceSpec::parse("disk", "/d,slice=2,rings=coherent").unwrap();
        assert_eq!((disk.slice, disk.rings), (2, Rings::Coherent));
        let console = DeviceSpec::parse("console", "stdio,slice=1").unwrap();
        assert_eq!((console.slice, console.rings), (1, Rings::Bypass));
        for (option, text) in [
            ("disk", "/d,slice=x"),
            ("disk", "/d,slice=70000"),
            ("net", "t,rings=x"),
            ("console", "stdio,rings=bypass"),
            ("vsock", "cid=3,socket=/s,rings=coherent"),
            ("floppy", "/d"),
            ("disk", "/d,standby=x"),
            ("disk", "/d,standby=1:"),
            ("disk", "/d,standby=0"),
            ("disk", "/d,standby=1,standby=1:/e"),
            ("console", "stdio,standby=1"),
        ] {
            assert!(DeviceSpec::parse(option, text).is_err(), "--{option} {text}");
        }
    }

    #[test]
    fn queues_are_at_home_with_their_vcpus_or_with_the_device() {
        let vcpus = [SliceId(0), SliceId(0), SliceId(1)];
        let homes = |shape: &BackEndShape, option, text| {
            shape.homes(&DeviceSpec::parse(option, text).unwrap(), &vcpus)
        };
        let (sectors, block_bytes, id) = (8, 512, [0; 20]);
        let disk = DiskShape { sectors, block_bytes, read_only: false, discard: true, id };
        let disk = BackEndShape::Disk(disk);
        assert_eq!(homes(&disk, "disk", "/d,slice=2"), vcpus);
        assert_eq!(homes(&disk, "disk", "/d,slice=2,rings=coherent"), [SliceId(2); 3]);
        let nic = NicShape { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, pairs: 3, offloads: 0 };
        let nic = BackEndShape::Nic(nic);
        assert_eq!(homes(&nic, "net", "t,slice=1"), [0, 0, 0, 0, 1, 1, 0].map(SliceId));
        assert_eq!(homes(&BackEndShape::Rng(()), "rng", ""), [SliceId(0)]);
        let owners = |shape: &BackEndShape, option, text| {
            let vcpus = shape.owners(&DeviceSpec::parse(option, text).unwrap(), 3);
            vcpus.into_iter().map(|vcpu| vcpu.map(|vcpu| vcpu.0)).collect::<Vec<_>>()
        };
        assert_eq!(owners(&disk, "disk", "/d,slice=2"), [0, 1, 2].map(Some));
        assert_eq!(owners(&disk, "disk", "/d,slice=2,rings=coherent"), [None; 3]);
        assert_eq!(owners(&nic, "net", "t,slice=1"), [0, 0, 1, 1, 2, 2, 0].map(Some));
        let console = BackEndShape::Console(());
        assert_eq!(owners(&console, "console", "stdio,slice=2"), [None; 2]);
        assert_eq!(homes(&console, "console", "stdio,slice=2"), [SliceId(2); 2]);
        let vsock = BackEndShape::Vsock(VsockShape { cid: 3 });
        assert_eq!(homes(&vsock, "vsock", "cid=3,socket=/s,slice=1"), [SliceId(1); 3]);
    }

    #[test]
    fn other_slices_reach_what_is_named_there() {
        let disk = DeviceSpec::parse("disk", "/d,slice=1,readonly,standby=0,standby=3:/e").unwrap();
        let path = |slice| match disk.at(SliceId(slice)) {
            Some(DeviceKind::Disk(disk)) if disk.read_only => Some(disk.path),
            _ => None,
        };
        let paths = [0, 1, 2, 3].map(path);
        assert_eq!(paths, [Some("/d"), Some("/d"), None, Some("/e")].map(|it| it.map(Into::into)));
        assert_eq!(
            [0, 1, 2, 3].map(|slice| disk.reaches(SliceId(slice))),
            [true, true, false, true]
        );
        let console = DeviceSpec::parse("console", "stdio,slice=1").unwrap();
        assert!(!console.reaches(SliceId(0)));
        let rng = DeviceSpec::parse("rng", "").unwrap();
        assert!(rng.reaches(SliceId(7)));
    }

    #[test]
    fn shape_of_another_kind_fits_nothing() {
        let rng = DeviceKind::Rng(RngSpec {});
        let console = DeviceSpec::parse("console", "stdio").unwrap().kind;
        assert!(BackEndShape::Rng(()).fits(&rng) && BackEndShape::Console(()).fits(&console));
        assert!(!BackEndShape::Rng(()).fits(&console) && !BackEndShape::Console(()).fits(&rng));
    }

    #[test]
    fn description_survives_the_way_to_another_slice() {
        for (option, text) in [
            ("disk", "/d,readonly"),
            ("disk", "/d,standby=1,standby=2:/e"),
            ("net", "t"),
            ("rng", ""),
            ("console", "file=/f"),
            ("vsock", "cid=3,socket=/s"),
        ] {
            let spec = DeviceSpec::parse(option, text).unwrap();
            let bytes = serde_json::to_vec(&spec).unwrap();
            assert_eq!(serde_json::from_slice::<DeviceSpec>(&bytes).unwrap(), spec);
        }
    }

    #[test]
    fn device_follows_its_slice_or_goes_to_where_it_is_reached() {
        let disk = |text| DeviceSpec::parse("disk", text).unwrap();
        let device = disk("/a,slice=2,standby=1:/b,standby=3,standby=0:/c");
        assert_eq!(
            device.renumbered(&[0, 2, 3]),
            disk("/a,slice=1,standby=2,standby=0:/c"),
            "slice 1 is left out"
        );
        // A standby slice without a name means /a, which the disk is not called any more.
        assert_eq!(device.renumbered(&[0, 1, 3]), disk("/b,slice=1,standby=0:/c"));
        assert_eq!(device.renumbered(&[0, 3]), disk("/a,slice=1,standby=0:/c"));
        assert_eq!(disk("/a,slice=2").renumbered(&[0, 1]), disk("/a"));
        assert_eq!(device.renumbered(&[0, 1, 2, 3]), device);
    }
}
