use super::super::{Look, Said, Seen};
use super::*;
use crate::inventory::{Ability, Inventory, Node};
use crate::shape::Fixed;
use agent::decide::{
    End, Generation, Journal, Manner, Operation, Order, Process, Reserved, Slice, Token, Vm,
};
use control::v1::dsm_report::Faults;
use control::v1::{self, Slice as Part};
use metrics_text::{Exposition, read};
use std::sync::Arc;

#[path = "../../../../metrics/tests/http/exposition.rs"]
mod metrics_text;

const NAME: SliceName = SliceName { vm: Vm(0xbeef), number: 1 };
const ID: &str = "0000000000000000000000000000beef";

fn fixed() -> Arc<Fixed> {
    let capacity = Resources::new(4, 512);
    let why_not = Some("there is \"none\"\n".to_owned());
    let inventory = Inventory {
        nodes: vec![Node { number: 0, capacity }],
        boot_id: "boot".into(),
        kernel: "6.18".into(),
        cpu_model: "A CPU".into(),
        cpu_features: Vec::new(),
        abilities: vec![Ability { name: "kvm", why_not: None }, Ability { name: "rdma", why_not }],
    };
    let (images, checkpoints) = ("/i".into(), "/c".into());
    let (name, agent_id) = ("hosts/h1".into(), ID.into());
    Arc::new(Fixed { name, agent_id, inventory, images, checkpoints })
}

fn slice(phase: Phase, stop: Option<Manner>) -> Slice {
    let order = Order { resources: Resources::new(1, 32), words: Vec::new() };
    Slice { generation: Generation(3), order, token: Token(1), phase, stop }
}

fn running() -> Phase {
    Phase::Running(Process { id: 1, began: 1 })
}

fn said(local: u32, coordinator: u32) -> Said {
    let part =
        |number: u32, vcpus: &[u32]| Part { number, vcpus: vcpus.to_vec(), ..Part::default() };
    let vm = v1::Vm {
        state: vm::State::Running.into(),
        local_slice: local,
        coordinator,
        slices: vec![part(0, &[0, 2]), part(1, &[1, 3])],
        ..v1::Vm::default()
    };
    let time = |nanos| Some(ProtoDuration { seconds: 1, nanos });
    let counts = [
        ("memory.epoch_refused", 4),
        ("memory.messages_out", 500),
        ("delegated.bytes_sent", 70),
        ("delegated.dropped", 1),
    ];
    let report = DsmReport {
        faults: Some(Faults { read: 10, write: 20, upgrade: 5 }),
        local_faults: 7,
        waited: time(500_000_000),
        held: time(0),
        pages_in: 30,
        pages_out: 40,
        invalidations: 9,
        counters: counts.map(|(name, count)| (name.to_owned(), count)).into(),
        ..DsmReport::default()
    };
    Said { vm, report: Some(report) }
}

fn told(seen: Vec<Seen>) -> Exposition {
    let mut journal = Journal { term: agent::decide::Term(6), ..Journal::default() };
    let resources = Resources::new(1, 16);
    let generation = Generation(1);
    for (number, until) in [(1, 99), (2, 101)] {
        let reserved = Reserved { slice: NAME, generation, resources, until };
        journal.reserved.insert(Operation(number), reserved);
    }
    for it in &seen {
        journal.slices.insert(it.name, it.slice.clone());
    }
    let look = Look { fixed: fixed(), journal: Arc::new(journal), now: 100, seen };
    let text = page(&look).text();
    read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

#[test]
fn host_without_slices_tells_of_itself() {
    let told = told(Vec::new());

    let value = |name, labels: &[(&str, &str)]| told.value(name, labels);
    assert_eq!(value("tessera_host_cores", &[("state", "capacity")]), Some(4.0));
    assert_eq!(value("tessera_host_cores", &[("state", "free")]), Some(3.0));
    let free = f64::from((512 - 16) * (2 << 20));
    assert_eq!(value("tessera_host_memory_bytes", &[("state", "free")]), Some(free));
    assert_eq!(value("tessera_host_ability", &[("ability", "kvm")]), Some(1.0));
    assert_eq!(value("tessera_host_ability", &[("ability", "rdma")]), Some(0.0));
    assert_eq!(value("tessera_agent_term", &[]), Some(6.0));
    assert_eq!(value("tessera_agent_reservations", &[]), Some(1.0));
    assert_eq!(told.rows("tessera_build_info").len(), 1);
    assert!(told.rows("tessera_slice_up").is_empty());
}

#[test]
fn slice_that_answers_tells_what_it_has_counted() {
    let seen = Seen { name: NAME, slice: slice(running(), None), said: Some(said(1, 0)) };

    let told = told(vec![seen]);
    let of = |name, label: &str, value: &str| {
        let own = [("vm", ID), ("slice", "1"), (label, value)];
        told.value(name, &own[..if label.is_empty() { 2 } else { 3 }])
    };
    for (name, label, of_label, expected) in [
        ("tessera_slice_up", "", "", 1.0),
        ("tessera_slice_life", "", "", 3.0),
        ("tessera_slice_state", "state", "running", 1.0),
        ("tessera_slice_memory_bytes", "", "", f64::from(64 << 20)),
        ("tessera_dsm_faults_total", "kind", "read", 10.0),
        ("tessera_dsm_faults_total", "kind", "local", 7.0),
        ("tessera_dsm_transfers_total", "direction", "out", 40.0),
        ("tessera_dsm_invalidations_total", "", "", 9.0),
        ("tessera_vm_stall_seconds_total", "cause", "held", 1.0),
        ("tessera_vm_stall_seconds_total", "cause", "fetch", 0.5),
        ("tessera_dsm_bypass_bytes_total", "direction", "out", 70.0),
        ("tessera_dsm_bypass_bytes_total", "direction", "in", 0.0),
        ("tessera_transport_dropped_total", "reason", "epoch", 4.0),
        ("tessera_transport_dropped_total", "reason", "device", 1.0),
        ("tessera_dsm_messages_total", "", "", 500.0),
    ] {
        assert_eq!(of(name, label, of_label), Some(expected), "{name} {of_label}");
    }
    let places = told.rows("tessera_vm_vcpu_location");
    let vcpus: Vec<&str> = places.iter().map(|(labels, _)| labels["vcpu"].as_str()).collect();
    assert!(vcpus.len() == 2 && vcpus.contains(&"1") && vcpus.contains(&"3"), "{vcpus:?}");
    assert!(places.iter().all(|(labels, _)| labels["host"] == "h1"), "{places:?}");
    // Another host has the slice that coordinates.
    assert!(told.rows("tessera_vm_info").is_empty() && told.rows("tessera_vm_slices").is_empty());
}

#[test]
fn host_of_the_slice_that_coordinates_tells_of_the_vm() {
    let seen = Seen { name: NAME, slice: slice(running(), None), said: Some(said(1, 1)) };

    let told = told(vec![seen]);
    assert_eq!(told.value("tessera_vm_info", &[("vm", ID), ("state", "running")]), Some(1.0));
    assert_eq!(told.value("tessera_vm_slices", &[("vm", ID)]), Some(2.0));
}

#[test]
fn slice_that_does_not_answer_is_down_and_one_without_engine_is_up() {
    let other = SliceName { vm: Vm(1), number: 0 };
    let third = SliceName { vm: Vm(2), number: 0 };
    let without = Said { report: None, ..said(0, 0) };
    let seen = vec![
        Seen { name: other, slice: slice(running(), Some(Manner::Orderly)), said: None },
        Seen { name: third, slice: slice(running(), None), said: Some(without) },
        Seen { name: NAME, slice: slice(Phase::Ended(End::Unseen), None), said: None },
    ];

    let told = told(seen);
    let up = told.rows("tessera_slice_up");
    assert_eq!(up.iter().map(|(_, value)| value).sum::<f64>(), 1.0);
    assert_eq!(up.len(), 3);
    let mut states: Vec<&str> =
        told.rows("tessera_slice_state").iter().map(|(of, _)| of["state"].as_str()).collect();
    states.sort_unstable();
    assert_eq!(states, ["ended", "running", "stopping"]);
    assert!(told.rows("tessera_dsm_faults_total").is_empty());
}
