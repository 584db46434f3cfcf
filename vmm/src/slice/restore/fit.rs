//! Whether a VM, and the hosts that it is to run on, fit a checkpoint.

use super::{RestoreError, Restored};
use crate::cpuid::{intersect, lacks};
use crate::interrupts::{InterruptBackEnd, Moment};
use crate::machine::saved::VcpuState;
use crate::slice::host::HostFacts;
use crate::slice::peripherals::BackEndShape;
use crate::slice::spec::{Shape, VmSpec};
use devices::back_end::image::GENERATION_MAX;
use wire::SliceId;

impl Restored {
    /// Whether manifest, description and forms are of the same VM.
    pub(super) fn agrees(&self) -> Result<(), RestoreError> {
        let contents = self.checkpoint.contents();
        let shape = self.vm.spec.shape().map_err(RestoreError::Spec)?;
        let unless = |holds: bool, what| {
            if holds { Ok(()) } else { Err(RestoreError::Contradicts(what)) }
        };
        unless(shape.placement.frames() == contents.frames, "the memory")?;
        let identity = self.vm.identity;
        let same = (identity.vm, identity.generation) == (contents.vm, contents.generation);
        unless(same && identity.generation < GENERATION_MAX, "the identity")?;
        let placement = &self.states[0].placement;
        unless(placement.vcpus.len() == shape.placement.vcpus().len(), "the number of vCPUs")?;
        let devices = [placement.devices.len(), self.vm.devices.len()];
        unless(devices == [shape.devices.len(); 2], "the number of devices")
    }

    /// Whether it is the same VM for its guest: as much memory, as many vCPUs, devices of the same kinds in the same order.
    ///
    /// # Errors
    /// In what it differs.
    pub(in crate::slice) fn fits(&self, spec: &VmSpec, shape: &Shape) -> Result<(), RestoreError> {
        let saved = &self.vm.spec;
        let saved_shape = saved.shape().map_err(RestoreError::Spec)?;
        let same = |what, saved: String, asked: String| {
            if saved == asked { Ok(()) } else { Err(RestoreError::Shape { what, saved, asked }) }
        };
        let mib = |shape: &Shape| format!("{} MiB", shape.layout.total() >> 20);
        same("memory", mib(&saved_shape), mib(shape))?;
        let vcpus = |spec: &VmSpec| {
            let (there, more) = spec
                .slices
                .iter()
                .fold((0, 0), |sum, slice| (sum.0 + slice.vcpus, sum.1 + slice.spare_vcpus));
            if more == 0 { there.to_string() } else { format!("{there}, and {more} more") }
        };
        same("vCPUs", vcpus(saved), vcpus(spec))?;
        let kinds = |spec: &VmSpec| {
            let kinds = spec.devices.iter().map(|device| device.kind.option());
            let kinds = kinds.collect::<Vec<_>>().join(", ");
            if kinds.is_empty() { "none".to_owned() } else { kinds }
        };
        same("devices", kinds(saved), kinds(spec))?;
        same("guest clock rate", saved.clock_rate.to_string(), spec.clock_rate.to_string())
    }

    /// Whether devices of these shapes can take the places of those that the guest knows.
    ///
    /// # Errors
    /// The first that cannot, and in what it differs.
    pub(in crate::slice) fn devices_fit(
        &self,
        shapes: &[BackEndShape],
    ) -> Result<(), RestoreError> {
        for (device, (shape, known)) in shapes.iter().zip(&self.vm.devices).enumerate() {
            if shape != known {
                let known = &self.known(known, shape);
                shape.carries_on(known).map_err(|why| RestoreError::Device { device, why })?;
            }
        }
        Ok(())
    }

    /// Whether all hosts can show the guest the processors that it knows.
    ///
    /// # Errors
    /// One lacks something.
    pub(in crate::slice) fn hosts_fit(&self, hosts: &[HostFacts]) -> Result<(), RestoreError> {
        for (slice, host) in (0u16..).map(SliceId).zip(hosts) {
            let common = intersect(&[self.vm.cpuid.clone(), host.cpuid.clone()]);
            let lacks = match common {
                Ok(common) => lacks(&self.vm.cpuid, &common),
                Err(error) => vec![error.to_string()],
            };
            if !lacks.is_empty() {
                return Err(RestoreError::Lacks { slice, lacks });
            }
        }
        Ok(())
    }

    /// Whether all vCPUs can go on with these interrupts.
    ///
    /// # Errors
    /// The first that cannot, and why.
    pub(in crate::slice) fn interrupts_fit(
        &self,
        interrupts: InterruptBackEnd,
    ) -> Result<(), RestoreError> {
        let ticks = self.states.iter().map(|state| state.ticks).max().unwrap_or(0);
        let at = Moment { ticks, khz: self.vm.tsc_khz };
        let mut vcpus = self.states.iter().flat_map(|state| &state.vcpus);
        vcpus.try_for_each(|vcpu| with_interrupts(vcpu, interrupts, at).map(drop))
    }
}

/// The vCPU with these interrupts.
pub(in crate::slice) fn with_interrupts(
    state: &VcpuState,
    interrupts: InterruptBackEnd,
    at: Moment,
) -> Result<VcpuState, RestoreError> {
    let refused = |source| RestoreError::Interrupts { vcpu: state.vcpu, interrupts, source };
    state.with_interrupts(interrupts, at).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::saved::tests::some_state;
    use crate::slice::one_line;

    #[test]
    fn vcpu_that_cannot_have_other_interrupts_is_named() {
        let at = Moment { ticks: 0, khz: 1_000_000 };
        let mut state = some_state();
        let with = |state: &VcpuState, interrupts| with_interrupts(state, interrupts, at);
        with(&state, InterruptBackEnd::Userspace).unwrap();
        state.system.apic_base = 0xfee0_0800;
        with(&state, InterruptBackEnd::Ghost).unwrap();
        let refused = with(&state, InterruptBackEnd::Userspace).unwrap_err();
        let expected = "vCPU 1 cannot go on with --interrupts userspace: ";
        let said = one_line(&refused);
        assert!(said.starts_with(expected), "{said}");
        assert!(said.ends_with("its APIC is not in x2APIC mode"), "{said}");
    }
}
