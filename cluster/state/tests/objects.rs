//! Forms and rules of all objects.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use state::rules::{
    Accepted, NotNext, NotYours, Verdict, Writer, host_may_become, in_progress, is_lost,
    may_follow, may_start, superseded, vm_may_become,
};
use state::{
    Asked, Assignment, AssignmentError, Checkpoint, CheckpointPolicy, Disk, Epoch, FORM_BYTES_MAX,
    Facts, FormError, Former, Generation, Guest, Host, HostDesired, Name, Nic, NumaNode, Object,
    Operation, OperationResult, Part, RunStrategy, Secret, SharingClass, Slice, SliceState, Step,
    Term, Uid, Verb, Vm, VmDesired, VmObserved, VmState,
};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn vm() -> Vm {
    Vm {
        name: name("web-1"),
        uid: Uid::new(7),
        life: 1,
        generation: Generation(2),
        desired: VmDesired {
            vcpus: 4,
            memory_mib: 4096,
            class: SharingClass::Requests,
            run: RunStrategy::Always,
            slices_max: Some(2),
            guest: Guest {
                kernel: "vmlinuz".to_owned(),
                disks: vec![Disk {
                    image: "a.raw".to_owned(),
                    read_only: false,
                    format: String::new(),
                }],
                nics: vec![Nic { tap: "tap0".to_owned(), mac: String::new() }],
                ..Guest::default()
            },
            checkpoint: Some(CheckpointPolicy { every_s: 60, keep: 2 }),
            deleted: false,
        },
        former_run: None,
        observed: VmObserved {
            generation: Generation(1),
            state: VmState::Running,
            assignment: Some(Generation(1)),
            why: "its guest runs".to_owned(),
            goes_on: None,
            line: 0,
        },
    }
}

fn part(host: &str, vcpus: &[u16], memory_mib: u64) -> Part {
    Part { host: name(host), vcpus: vcpus.to_vec(), memory_mib, devices: vec![], number: None }
}

fn assignment(generation: u64, parent: Option<u64>, term: u64) -> Assignment {
    Assignment {
        vm: name("web-1"),
        generation: Generation(generation),
        parent: parent.map(Generation),
        term: Term(term),
        epoch: Epoch(generation),
        slices: vec![part("a", &[0, 1], 2048), part("b", &[3, 2], 2048)],
        former: vec![],
    }
}

fn facts() -> Facts {
    Facts {
        boot_id: "b1".to_owned(),
        generation: Generation(7),
        nodes: vec![NumaNode { cores: 12, memory_mib: 65536 }],
        version: "0.1.0".to_owned(),
        agent: "0f".repeat(16),
    }
}

fn host() -> Host {
    Host {
        name: name("a"),
        facts: Some(facts()),
        desired: HostDesired { agent: "https://a:7000".to_owned(), ..HostDesired::default() },
    }
}

fn slice() -> Slice {
    Slice {
        vm: name("web-1"),
        number: 1,
        host: name("b"),
        boot_id: "b1".to_owned(),
        generation: Generation(1),
        epoch: Epoch(3),
        revision: 9,
        state: SliceState::Running,
        pid: Some(123),
        cause: None,
    }
}

fn step(done: bool, undone: bool) -> Step {
    Step { what: "reserve".to_owned(), done, undone }
}

fn operation() -> Operation {
    Operation {
        id: name("op-1"),
        request: "00".repeat(16),
        vm: name("web-1"),
        verb: Verb::Start,
        life: 1,
        generation: Generation(2),
        term: Term(5),
        steps: vec![step(true, false), step(false, false)],
        undoing: None,
        began: 10,
        result: None,
    }
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        id: name("c-1"),
        vm: name("web-1"),
        generation: Generation(1),
        manifest: "ab".repeat(32),
        path: "web-1.c1".to_owned(),
        bytes: 1 << 30,
        at: 1_700_000_000,
        cut: 17,
        released: vec![15],
    }
}

fn secret() -> Secret {
    Secret { vm: Uid::new(7), digits: "0a".repeat(32) }
}

fn asked() -> Asked {
    Asked { id: Uid::new(9), content: "0f".to_owned(), answer: "vms/web-1".to_owned(), at: 10 }
}

/// There and back; and each form is refused as each other kind, cut anywhere, with another version, with a field more.
fn strict<T: Object + Clone + PartialEq + std::fmt::Debug>(object: &T, key: &str) {
    let bytes = object.to_form().unwrap();
    assert_eq!(T::from_form(&bytes).as_ref(), Ok(object));
    assert_eq!(object.key(), key);
    for length in 0..bytes.len() {
        assert!(T::from_form(&bytes[..length]).is_err(), "{length} bytes of {}", T::KIND);
    }
    let text = String::from_utf8(bytes).unwrap();
    let other = text.replace("\"version\":1", "\"version\":2");
    let version = FormError::Version { kind: T::KIND, found: 2, known: 1 };
    assert_eq!(T::from_form(other.as_bytes()), Err(version));
    // A field more, in each of its objects.
    for (at, _) in text.match_indices('{') {
        let more = format!("{}\"unknown\":1,{}", &text[..=at], &text[at + 1..]);
        let empty = text[at + 1..].starts_with('}');
        let refused = T::from_form(more.as_bytes());
        assert!(refused.is_err() || empty, "{more}");
    }
    let twice = format!("{text} {text}");
    assert!(T::from_form(twice.as_bytes()).is_err());
}

#[test]
fn forms_are_strict() {
    strict(&vm(), "vms/web-1");
    strict(&assignment(2, Some(1), 5), "assignments/web-1/00000000000000000002");
    strict(&host(), "hosts/a");
    strict(&slice(), "slices/web-1/00001");
    strict(&operation(), "operations/op-1");
    strict(&checkpoint(), "checkpoints/web-1/c-1");
    strict(&secret(), "secrets/00000000000000000000000000000007");
    strict(&asked(), "asked/00000000000000000000000000000009");
    assert!(!format!("{:?}", secret()).contains("0a0a"), "a secret is shown to nobody");
    let kind = FormError::Kind { expected: "host", found: "vm".to_owned() };
    assert_eq!(Host::from_form(&vm().to_form().unwrap()), Err(kind));
    let large = vec![b' '; FORM_BYTES_MAX + 1];
    assert!(matches!(Vm::from_form(&large), Err(FormError::TooLarge { .. })));
}

#[test]
fn golden_form_is_read() {
    let text = r#"{"kind":"vm","version":1,"object":{"name":"web-1",
        "uid":"00000000000000000000000000000007","life":1,"generation":2,"desired":{"vcpus":4,"memory_mib":4096,"class":"requests",
        "run":"always","slices_max":2,"guest":{"kernel":"vmlinuz","initrd":"","cmdline":"","preset":"","disks":[{"image":"a.raw",
        "read_only":false,"format":""}],"nics":[{"tap":"tap0","mac":""}]},"checkpoint":{"every_s":60,"keep":2},"deleted":false},
        "observed":{"generation":1,"state":"running","assignment":1,"why":"its guest runs"}}}"#;
    assert_eq!(Vm::from_form(text.as_bytes()), Ok(vm()));
}

#[test]
fn fields_that_do_not_agree_are_refused() {
    let refused = |form: Result<Vec<u8>, FormError>| {
        assert!(matches!(form, Err(FormError::Invalid { .. })), "{form:?}");
    };
    let desired =
        |vcpus, memory_mib| Vm { desired: VmDesired { vcpus, memory_mib, ..vm().desired }, ..vm() };
    refused(desired(0, 1).to_form());
    refused(desired(256, 1).to_form());
    refused(desired(1, 0).to_form());
    refused(desired(1, 3).to_form());
    refused(Vm { generation: Generation(0), ..vm() }.to_form());
    refused(Vm { life: 0, ..vm() }.to_form());
    let wanted = |change: fn(&mut VmDesired)| {
        let mut vm = vm();
        change(&mut vm.desired);
        vm.to_form()
    };
    refused(wanted(|it| it.guest.kernel.clear()));
    refused(wanted(|it| it.guest.cmdline = "x".repeat(5000)));
    refused(wanted(|it| it.guest.disks = vec![it.guest.disks[0].clone(); 17]));
    refused(wanted(|it| it.guest.disks[0].image.clear()));
    refused(wanted(|it| it.guest.nics[0].tap.clear()));
    refused(wanted(|it| it.slices_max = Some(0)));
    refused(wanted(|it| it.checkpoint = Some(CheckpointPolicy { every_s: 9, keep: 1 })));
    refused(wanted(|it| it.checkpoint = Some(CheckpointPolicy { every_s: 10, keep: 0 })));
    refused(Secret { digits: "0a".to_owned(), ..secret() }.to_form());
    refused(Asked { content: String::new(), ..asked() }.to_form());
    let done = Some(OperationResult::Done);
    let undone = Operation { undoing: Some("no room".to_owned()), ..operation() };
    refused(Operation { result: done, steps: vec![], ..undone }.to_form());
    for wrong in ["", "7", &"g".repeat(32), &"A".repeat(32), &"0".repeat(33)] {
        assert!(Uid::try_from(wrong.to_owned()).is_err(), "{wrong}");
    }
    let seen = VmObserved { generation: Generation(3), ..vm().observed };
    refused(Vm { observed: seen, ..vm() }.to_form());
    let with = |change: fn(&mut Facts)| {
        let mut facts = facts();
        change(&mut facts);
        Host { facts: Some(facts), ..host() }
    };
    refused(with(|facts| facts.nodes.clear()).to_form());
    refused(with(|facts| facts.boot_id.clear()).to_form());
    refused(Host { desired: HostDesired::default(), ..host() }.to_form());
    Host { facts: None, ..host() }.to_form().unwrap();
    refused(Slice { pid: None, ..slice() }.to_form());
    refused(Slice { state: SliceState::Fenced, ..slice() }.to_form());
    let steps = |steps, result| Operation { steps, result, ..operation() };
    refused(steps(vec![step(false, false), step(true, false)], None).to_form());
    refused(steps(vec![step(false, true)], None).to_form());
    let failed = || Some(OperationResult::Failed { why: "no room".to_owned() });
    refused(steps(vec![step(true, false)], failed()).to_form());
    refused(steps(vec![step(false, false)], Some(OperationResult::Done)).to_form());
    steps(vec![step(true, true), step(false, false)], failed()).to_form().unwrap();
    refused(Checkpoint { manifest: "xyz".to_owned(), ..checkpoint() }.to_form());
    refused(Checkpoint { path: "a/b".to_owned(), ..checkpoint() }.to_form());
    refused(Checkpoint { released: vec![1; 65], ..checkpoint() }.to_form());
    for wrong in ["", "-a", "a-", "A", "a_b", "a/b", &"a".repeat(64)] {
        assert!(Name::new(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn assignments_that_do_not_agree_are_refused() {
    let refused = |form: Result<Vec<u8>, FormError>| {
        assert!(matches!(form, Err(FormError::Invalid { .. })), "{form:?}");
    };
    let with = |slices| Assignment { slices, ..assignment(2, Some(1), 5) };
    refused(with(vec![]).to_form());
    refused(with(vec![part("a", &[0], 1), part("a", &[1], 1)]).to_form());
    refused(with(vec![part("a", &[0], 1), part("b", &[0], 1)]).to_form());
    refused(with(vec![part("a", &[], 0)]).to_form());
    let disk = |host| Part { devices: vec![name("disk")], ..part(host, &[], 1) };
    refused(with(vec![disk("a"), disk("b")]).to_form());
    refused(assignment(2, Some(2), 5).to_form());
    let former = vec![Former { host: name("c"), slice: 1, ended: true }];
    refused(Assignment { former, ..assignment(2, Some(1), 5) }.to_form());
    let third = Part { number: Some(2), ..part("b", &[3, 2], 2048) };
    let former = vec![Former { host: name("c"), slice: 1, ended: true }];
    let slices = vec![part("a", &[0, 1], 2048), third];
    let moved = Assignment { slices, former, ..assignment(2, Some(1), 5) };
    moved.to_form().unwrap();
    assert_eq!(moved.hosts().len(), 3);
    assert_eq!((moved.part(1), moved.slices_on(&name("c")).next()), (None, Some(1)));
}

#[test]
fn assignment_gives_what_is_wanted() {
    let desired = vm().desired;
    assert_eq!(assignment(2, None, 1).gives(&desired), Ok(()));
    let less = VmDesired { vcpus: 3, ..desired.clone() };
    let error = AssignmentError::Vcpus { found: 3, wanted: 3 };
    assert_eq!(assignment(2, None, 1).gives(&less), Err(error));
    let more = VmDesired { vcpus: 5, ..desired.clone() };
    let error = AssignmentError::Vcpus { found: 4, wanted: 5 };
    assert_eq!(assignment(2, None, 1).gives(&more), Err(error));
    let memory = VmDesired { memory_mib: 1, ..desired };
    let error = AssignmentError::Memory { found: 4096, wanted: 1 };
    assert_eq!(assignment(2, None, 1).gives(&memory), Err(error));
}

#[test]
fn each_field_has_one_writer() {
    let before = vm();
    let wants = Vm {
        generation: Generation(3),
        desired: VmDesired { vcpus: 8, ..before.desired.clone() },
        ..before.clone()
    };
    let seen = VmObserved { generation: Generation(2), ..before.observed.clone() };
    let sees = Vm { observed: seen, ..before.clone() };
    assert_eq!(vm_may_become(Writer::User, &before, &wants), Ok(()));
    assert_eq!(vm_may_become(Writer::Orchestrator, &before, &sees), Ok(()));
    for writer in [Writer::Orchestrator, Writer::Agent, Writer::Operator] {
        let error = NotYours::Field { field: "desired", writer };
        assert_eq!(vm_may_become(writer, &before, &wants), Err(error));
    }
    for writer in [Writer::User, Writer::Agent, Writer::Operator] {
        let error = NotYours::Field { field: "observed", writer };
        assert_eq!(vm_may_become(writer, &before, &sees), Err(error));
    }
    let silent = Vm { generation: before.generation, ..wants };
    let error = vm_may_become(Writer::User, &before, &silent);
    assert!(matches!(error, Err(NotYours::Generation { .. })), "{error:?}");
    let older = Vm { life: 0, ..before.clone() };
    assert!(vm_may_become(Writer::Orchestrator, &before, &older).is_err(), "a life goes on");
    let other = Vm { uid: Uid::new(8), ..before.clone() };
    assert!(vm_may_become(Writer::Orchestrator, &before, &other).is_err());
    let renamed = Vm { name: name("other"), ..before.clone() };
    assert!(vm_may_become(Writer::User, &before, &renamed).is_err());
    assert!(in_progress(&before));
    assert!(!in_progress(&sees));
}

#[test]
fn agents_write_facts_and_operators_what_they_want() {
    let before = host();
    let cordoned = Host {
        desired: HostDesired { cordoned: true, ..before.desired.clone() },
        ..before.clone()
    };
    let known = facts();
    let facts = |boot_id: &str, generation, version: &str| Host {
        facts: Some(Facts {
            boot_id: boot_id.to_owned(),
            generation: Generation(generation),
            version: version.to_owned(),
            ..known.clone()
        }),
        ..host()
    };
    assert_eq!(host_may_become(Writer::Operator, &before, &cordoned), Ok(()));
    assert!(host_may_become(Writer::Agent, &before, &cordoned).is_err());
    assert_eq!(host_may_become(Writer::Agent, &before, &facts("b1", 8, "0.2.0")), Ok(()));
    assert!(host_may_become(Writer::Operator, &before, &facts("b1", 8, "0.2.0")).is_err());
    assert!(host_may_become(Writer::Agent, &before, &facts("b1", 7, "0.2.0")).is_err());
    assert!(host_may_become(Writer::Agent, &before, &facts("b1", 9, "0.2.0")).is_err());
    assert_eq!(host_may_become(Writer::Agent, &before, &facts("b2", 1, "0.1.0")), Ok(()));
    let unknown = Host { facts: None, ..before.clone() };
    assert_eq!(host_may_become(Writer::Agent, &unknown, &before), Ok(()));
    assert!(host_may_become(Writer::Agent, &before, &unknown).is_err(), "facts are not forgotten");
}

#[test]
fn only_a_child_follows() {
    let current = assignment(4, Some(3), 5);
    assert_eq!(may_follow(Some(&current), &assignment(6, Some(4), 5)), Ok(()));
    assert_eq!(may_follow(None, &assignment(1, None, 5)), Ok(()));
    let parent = |parent: Option<u64>, current: Option<u64>| {
        Err(NotNext::Parent { parent: parent.map(Generation), current: current.map(Generation) })
    };
    assert_eq!(may_follow(Some(&current), &assignment(6, Some(3), 5)), parent(Some(3), Some(4)));
    assert_eq!(may_follow(Some(&current), &assignment(6, None, 5)), parent(None, Some(4)));
    assert_eq!(may_follow(None, &assignment(6, Some(4), 5)), parent(Some(4), None));
    let old = NotNext::Term { found: Term(4), current: Term(5) };
    assert_eq!(may_follow(Some(&current), &assignment(6, Some(4), 4)), Err(old));
    let back = Assignment { epoch: Epoch(3), ..assignment(6, Some(4), 5) };
    assert_eq!(may_follow(Some(&current), &back), Err(NotNext::Epoch));
    let other = Assignment { vm: name("other"), ..assignment(6, Some(4), 5) };
    assert_eq!(may_follow(Some(&current), &other), Err(NotNext::OtherVm));
}

#[test]
fn nothing_starts_before_all_have_reserved() {
    let assignment = assignment(2, None, 1);
    let all = BTreeMap::from([(name("a"), 30), (name("b"), 20), (name("c"), 0)]);
    assert_eq!(may_start(&assignment, &all, 19), Ok(()));
    assert_eq!(may_start(&assignment, &all, 20).unwrap_err().0, name("b"));
    assert!(may_start(&assignment, &BTreeMap::new(), 0).is_err());
}

#[test]
fn new_leader_waits_before_it_calls_a_host_lost() {
    assert!(!is_lost(105, None, 100, 10), "it has just begun to listen");
    assert!(is_lost(111, None, 100, 10));
    assert!(!is_lost(111, Some(105), 100, 10));
    assert!(!is_lost(111, Some(50), 105, 10), "what an earlier leader heard does not count");
    assert!(!is_lost(5, Some(10), 0, 10), "a clock that goes back");
}

#[test]
fn superseded_operation_stops() {
    let operation = operation();
    assert!(!superseded(&operation, Some(&assignment(2, Some(1), 5)), Term(5)));
    assert!(!superseded(&operation, Some(&assignment(1, None, 5)), Term(5)), "it is not there yet");
    assert!(superseded(&operation, Some(&assignment(3, Some(2), 5)), Term(5)));
    assert!(superseded(&operation, None, Term(6)));
}

fn order() -> impl Strategy<Value = Accepted> {
    (0_u64..4, 0_u64..4, 0_u8..2).prop_map(|(term, generation, content)| Accepted {
        term: Term(term),
        generation: Generation(generation),
        content: [content; 16],
    })
}

proptest! {
    /// Orders in any order: an agent never goes back, and never has two meanings of one generation.
    #[test]
    fn agent_never_goes_back(orders in prop::collection::vec(order(), 1..30)) {
        let mut known: Option<Accepted> = None;
        for order in orders {
            let verdict = Accepted::judge(known.as_ref(), &order);
            let back = known.as_ref().is_some_and(|known| {
                order.term < known.term || order.generation < known.generation
            });
            let other = known.as_ref().is_some_and(|known| {
                order.generation == known.generation && order.content != known.content
            });
            match verdict {
                Verdict::New => {
                    prop_assert!(!back && !other);
                    prop_assert_ne!(known.as_ref(), Some(&order));
                    known = Some(order);
                }
                Verdict::Again => prop_assert_eq!(known.as_ref(), Some(&order)),
                Verdict::Stale => prop_assert!(back),
                Verdict::Conflict => prop_assert!(other && !back),
            }
        }
    }

    #[test]
    fn other_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Vm::from_form(&bytes).is_err());
        prop_assert!(Assignment::from_form(&bytes).is_err());
    }

    /// A changed byte is refused, or it is another object that can be.
    #[test]
    fn changed_bytes_are_refused_or_can_be(at: prop::sample::Index, to: u8) {
        let mut bytes = assignment(2, Some(1), 5).to_form().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(object) = Assignment::from_form(&bytes) {
            prop_assert!(object.check().is_ok());
            let form = object.to_form().unwrap();
            prop_assert_eq!(Assignment::from_form(&form), Ok(object));
        }
    }
}
