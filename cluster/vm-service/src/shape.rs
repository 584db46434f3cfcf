//! What the VM says, in the shapes of the API; and what requests say, in those of the VM.

use crate::problem::{Problem, invalid, status};
use control::v1::dsm_report::{Faults, PagesFrom};
use control::v1::trace::Page;
use control::v1::{Checkpoint, DsmReport, Queue, Slice, Trace, Vcpus, Vm, vm};
use prost_types::Duration as ProtoDuration;
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;
use tonic::Status;
use vmm::control::{
    Activity, CheckpointAnswer, Look, ReportAnswer, SlicePlaces, TraceAnswer, VcpusAnswer, VmName,
};

/// vms/ID of a VM.
pub(crate) fn name(name: &VmName) -> String {
    let mut text = "vms/".to_owned();
    for byte in name.vm {
        // Text takes everything.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Whether a name is that of this VM.
pub(crate) fn check_name(asked: &str, look: &Look) -> Result<(), Status> {
    let own = name(&look.name);
    if asked.is_empty() || asked == "vms/-" || asked == own {
        return Ok(());
    }
    Err(status(&Problem::VmNotFound, &format!("the VM here is {own}")))
}

/// The number in [VM/]slices/NUMBER.
pub(crate) fn slice_number(asked: &str, look: &Look) -> Result<u16, Status> {
    let (vm, number) = match asked.strip_prefix("slices/") {
        Some(number) => ("", number),
        None => asked.split_once("/slices/").unwrap_or_default(),
    };
    check_name(vm, look)?;
    // Without a number it is none.
    number.parse().map_err(|_| invalid("name", "name is vms/ID/slices/NUMBER"))
}

/// A VM as it stands.
pub(crate) fn vm(look: &Look) -> Vm {
    let name = name(&look.name);
    let (state, activity) = (state(look), doing(look.activity));
    let placement = &look.placement;
    Vm {
        etag: etag(look),
        state: state.into(),
        activity: activity.into(),
        life: look.name.life,
        local_slice: look.local.into(),
        coordinator: placement.coordinator.into(),
        placement_epoch: placement.epoch,
        slices: placement.slices.iter().map(|slice| slice_of(&name, slice)).collect(),
        name,
    }
}

/// Differs when anything of the VM differs.
pub(crate) fn etag(look: &Look) -> String {
    let (state, activity) = (i32::from(state(look)), i32::from(doing(look.activity)));
    format!("{}.{}.{state}.{activity}", look.name.life, look.placement.epoch)
}

fn state(look: &Look) -> vm::State {
    match (look.leads, look.activity) {
        (false, _) => vm::State::Unspecified,
        (true, Some(Activity::Pausing)) => vm::State::Paused,
        (true, _) => vm::State::Running,
    }
}

fn doing(activity: Option<Activity>) -> vm::Activity {
    match activity {
        None => vm::Activity::Unspecified,
        Some(Activity::Moving) => vm::Activity::Moving,
        Some(Activity::Checkpointing) => vm::Activity::Checkpointing,
        Some(Activity::ChangingVcpus) => vm::Activity::ChangingVcpus,
        Some(Activity::Pausing) => vm::Activity::Pausing,
    }
}

fn slice_of(vm: &str, places: &SlicePlaces) -> Slice {
    let queue = |(device, queue): &(u16, u16)| Queue {
        device: u32::from(*device),
        queue: u32::from(*queue),
    };
    Slice {
        name: format!("{vm}/slices/{}", places.slice),
        number: places.slice.into(),
        vcpus: places.vcpus.clone(),
        memory_bytes: places.memory_mib.saturating_mul(1 << 20),
        devices: places.devices.iter().copied().map(u32::from).collect(),
        queues: places.queues.iter().map(queue).collect(),
    }
}

/// A time as the API says it.
pub(crate) fn duration(time: Duration) -> ProtoDuration {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    // Less than a billion.
    let nanos = i32::try_from(time.subsec_nanos()).unwrap_or(0);
    ProtoDuration { seconds, nanos }
}

pub(crate) fn milliseconds(milliseconds: f64) -> ProtoDuration {
    duration(Duration::try_from_secs_f64(milliseconds / 1e3).unwrap_or_default())
}

/// A time as a request says it, which is none below zero.
pub(crate) fn time(field: &str, time: ProtoDuration) -> Result<Duration, Status> {
    Duration::try_from(time).map_err(|_| invalid(field, "this is no time"))
}

pub(crate) fn vcpus(VcpusAnswer { present, coming, leaving, absent }: VcpusAnswer) -> Vcpus {
    Vcpus { present, coming, leaving, absent }
}

pub(crate) fn checkpoint(path: String, answer: &CheckpointAnswer) -> Checkpoint {
    let CheckpointAnswer { bytes, pages, digest, cut, .. } = answer;
    Checkpoint { path, digest: digest.clone(), bytes: *bytes, pages: *pages, cut: *cut }
}

pub(crate) fn report(report: &ReportAnswer) -> Result<DsmReport, Status> {
    let json = |error: serde_json::Error| Status::internal(format!("write the report: {error}"));
    let mut counters = HashMap::new();
    flatten("", &serde_json::to_value(report).map_err(json)?, &mut counters);
    let memory = &report.memory;
    let faults = &memory.faults;
    Ok(DsmReport {
        slice: report.slice.into(),
        process: report.process,
        faults: Some(Faults { read: faults.read, write: faults.write, upgrade: faults.upgrade }),
        local_faults: memory.faults_local,
        waited: Some(duration(Duration::from_micros(memory.waited_us))),
        held: Some(duration(Duration::from_micros(memory.held_us))),
        pages_in: memory.pages_in,
        pages_out: memory.pages_out,
        pages_from: memory
            .pages_from
            .iter()
            .map(|from| PagesFrom { slice: from.slice.into(), pages: from.pages })
            .collect(),
        invalidations: memory.invalidations,
        counters,
        json: serde_json::to_string(report).map_err(json)?,
    })
}

/// All numbers that are in objects, by their paths. Lists are no counters.
fn flatten(path: &str, value: &serde_json::Value, into: &mut HashMap<String, u64>) {
    if let Some(number) = value.as_u64() {
        into.insert(path.to_owned(), number);
    }
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    for (key, value) in value.as_object().into_iter().flatten() {
        flatten(&below(key), value, into);
    }
}

pub(crate) fn trace(trace: TraceAnswer) -> Trace {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let pages = trace.pages.into_iter().map(|page| Page {
        frame: page.gfn,
        read: page.read,
        write: page.write,
        upgrade: page.upgrade,
        as_table: page.as_table,
        taken: page.taken,
        shared: page.shared,
        ping_pongs: page.ping_pongs,
        peer: page.peer.map(u32::from),
    });
    Trace {
        slice: trace.slice.into(),
        on: trace.on,
        counted: Some(milliseconds(trace.seconds * 1e3)),
        samples_asked: trace.samples_asked,
        samples_kept: trace.samples_kept,
        pages_known: count(trace.pages_known),
        faults: trace.faults,
        pages: pages.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tonic::Code;
    use vmm::control::PlacementAnswer;

    fn look() -> Look {
        let slice = SlicePlaces { slice: 3, memory_mib: 2, ..SlicePlaces::default() };
        let placement = PlacementAnswer { epoch: 7, coordinator: 3, life: 2, slices: vec![slice] };
        let name = VmName { vm: [0xab; 16], life: 2 };
        Look { name, local: 3, placement, leads: true, activity: None }
    }

    #[test]
    fn names_are_of_this_vm_or_refused() {
        let (look, id) = (look(), "ab".repeat(16));
        for name in ["", "vms/-", &format!("vms/{id}")] {
            check_name(name, &look).unwrap();
        }
        for name in ["slices/5", "vms/-/slices/5", &format!("vms/{id}/slices/5")] {
            assert_eq!(slice_number(name, &look).unwrap(), 5);
        }
        let code = |name: &str| slice_number(name, &look).unwrap_err().code();
        assert_eq!(code("vms/00/slices/5"), Code::NotFound);
        for name in ["", "slices/", "slices/x", "slices/70000", "vms/-/slices/-1", "vms/-"] {
            assert_eq!(code(name), Code::InvalidArgument, "{name}");
        }
    }

    #[test]
    fn vm_has_its_parts_and_an_etag_of_its_state() {
        let mut look = look();
        let running = vm(&look);
        assert_eq!(running.name, format!("vms/{}", "ab".repeat(16)));
        assert_eq!(running.slices[0].name, format!("{}/slices/3", running.name));
        assert_eq!((running.slices[0].memory_bytes, running.life), (2 << 20, 2));
        assert_eq!(running.state(), vm::State::Running);
        let mut etags = vec![running.etag];
        look.activity = Some(Activity::Pausing);
        assert_eq!(vm(&look).state(), vm::State::Paused);
        etags.push(etag(&look));
        look.leads = false;
        assert_eq!(vm(&look).state(), vm::State::Unspecified);
        etags.push(etag(&look));
        look.placement.epoch += 1;
        etags.push(etag(&look));
        etags.dedup();
        assert_eq!(etags.len(), 4);
    }

    #[test]
    fn counters_have_paths() {
        let value = serde_json::json!({ "a": 1, "b": { "c": 2, "d": [3], "e": -4, "f": "g" } });
        let mut counters = HashMap::new();
        flatten("", &value, &mut counters);
        let expected = [("a".to_owned(), 1), ("b.c".to_owned(), 2)];
        assert_eq!(counters, HashMap::from(expected));
    }

    proptest! {
        #[test]
        fn any_name_is_survived(name in ".{0,80}") {
            let _ = check_name(&name, &look());
            let _ = slice_number(&name, &look());
        }

        #[test]
        fn times_come_back(nanos in 0u64..u64::MAX / 2) {
            let at = Duration::from_nanos(nanos);
            prop_assert_eq!(time("x", duration(at)).unwrap(), at);
        }

        #[test]
        fn any_time_is_survived(seconds: i64, nanos: i32) {
            let _ = time("x", ProtoDuration { seconds, nanos });
        }
    }
}
