//! Forms and rules of all objects.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use proptest::prelude::*;
use state::rules::{NotNext, is_lost, may_follow};
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
fn new_leader_waits_before_it_calls_a_host_lost() {
    assert!(!is_lost(105, None, 100, 10), "it has just begun to listen");
    assert!(is_lost(111, None, 100, 10));
    assert!(!is_lost(111, Some(105), 100, 10));
    assert!(!is_lost(111, Some(50), 105, 10), "what an earlier leader heard does not count");
    assert!(!is_lost(5, Some(10), 0, 10), "a clock that goes back");
}

proptest! {
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
