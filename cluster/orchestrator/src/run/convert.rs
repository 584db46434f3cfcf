//! Between the words of the machine and those of agent.proto.

use crate::decide::{
    Call, Failure, LIFE_MAX, Phase, Place, Reply, Report, Restore, Role, SharePart, SliceReport,
    Target, Written,
};
use control::v1::ensure_slice_request::Role as RoleMessage;
use control::v1::host_slice::State;
use control::v1::{
    Ability, AddSliceRequest, BootstrapSpec, CompanionSpec, CreateCheckpointRequest,
    CreateCheckpointResponse, DeleteCheckpointsRequest, DiskSpec, DrainSliceRequest,
    EnsureSliceRequest, FenceVmRequest, Host, HostResources, HostSlice, NicSpec, ReleaseRequest,
    RemoveSliceRequest, ReserveRequest, ResizeSliceRequest, RestoreSpec, SlicePart,
    StopSliceRequest, Vm,
};
use state::{Guest, NumaNode, Secret, Term, Uid};
use tonic::{Code, Status};
use tonic_types::StatusExt;

const MIB: u64 = 1 << 20;

/// What is asked of an agent, as a message.
pub(super) enum Message {
    Reserve(ReserveRequest),
    Release(ReleaseRequest),
    Ensure(Box<EnsureSliceRequest>),
    Stop(StopSliceRequest),
    Fence(FenceVmRequest),
    /// What was not fenced is first: a host may be back that was taken to be lost.
    Remove(Option<FenceVmRequest>, Vec<RemoveSliceRequest>),
    Resize(ResizeSliceRequest),
    Discard(DeleteCheckpointsRequest),
    /// By an orchestrator of this term.
    Look(Term),
    /// Of the slice of this name.
    Ask(String),
    /// The same.
    Where(String),
    /// The same.
    Add(String, AddSliceRequest),
    /// The same.
    Drain(String, DrainSliceRequest),
    /// The same.
    WriteDown(String, CreateCheckpointRequest),
}

pub(super) fn slice_name(target: &Target) -> String {
    format!("vms/{}/slices/{}", target.uid, target.slice)
}

fn resources(cores: u16, memory_mib: u64) -> Option<HostResources> {
    let memory_bytes = memory_mib.saturating_mul(MIB);
    Some(HostResources { cores: u32::from(cores), memory_bytes })
}

fn bytes(secret: &Secret) -> Vec<u8> {
    let digits = secret.digits.as_bytes();
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let pairs = digits.chunks_exact(2);
    pairs.filter_map(|pair| Some(value(pair[0])? << 4 | value(pair[1])?)).collect()
}

fn bootstrap(parts: &[SharePart], guest: &Guest, restore: Option<&Restore>) -> BootstrapSpec {
    let part = |part: &SharePart| SlicePart {
        address: part.address.clone(),
        vcpus: u32::from(part.vcpus),
        memory_bytes: part.memory_mib.saturating_mul(MIB),
    };
    let disk = |disk: &state::Disk| DiskSpec {
        image: disk.image.clone(),
        read_only: disk.read_only,
        format: disk.format.clone(),
        slice: 0,
        standby: Vec::new(),
    };
    let nic = |nic: &state::Nic| NicSpec {
        tap: nic.tap.clone(),
        mac: nic.mac.clone(),
        slice: 0,
        standby: Vec::new(),
    };
    let spec = BootstrapSpec {
        parts: parts.iter().map(part).collect(),
        disks: guest.disks.iter().map(disk).collect(),
        nics: guest.nics.iter().map(nic).collect(),
        rng: true,
        ..BootstrapSpec::default()
    };
    if let Some(Restore { folder, lazy }) = restore {
        let restore = Some(RestoreSpec { checkpoint: folder.clone(), lazy: *lazy });
        return BootstrapSpec { restore, ..spec };
    }
    BootstrapSpec {
        kernel: guest.kernel.clone(),
        initrd: guest.initrd.clone(),
        cmdline: guest.cmdline.clone(),
        guest_preset: guest.preset.clone(),
        guest_clock_permille: guest.clock_permille.into(),
        ..spec
    }
}

pub(super) fn message(Term(term): Term, call: &Call) -> Message {
    match call {
        Call::Look => Message::Look(Term(term)),
        Call::Ask { target } => Message::Ask(slice_name(target)),
        Call::Reserve { operation, target, cores, memory_mib } => {
            Message::Reserve(ReserveRequest {
                term,
                operation: operation.to_string(),
                slice: slice_name(target),
                life: target.life,
                resources: resources(*cores, *memory_mib),
                ttl: None,
            })
        }
        Call::Release { operation } => {
            Message::Release(ReleaseRequest { term, operation: operation.to_string() })
        }
        Call::Ensure { target, cores, memory_mib, secret, role } => {
            let resources = resources(*cores, *memory_mib);
            Message::Ensure(Box::new(ensure(term, target, resources, (secret, role))))
        }
        Call::Resize { target, cores, memory_mib } => Message::Resize(ResizeSliceRequest {
            term,
            slice: slice_name(target),
            life: target.life,
            resources: resources(*cores, *memory_mib),
        }),
        Call::Bring { target, slice, to, request } => {
            Message::Drain(slice_name(target), drain(*slice, *to, request))
        }
        Call::Join { target, address, number, request } => {
            Message::Add(slice_name(target), add(address, *number, request))
        }
        Call::Where { target } => Message::Where(slice_name(target)),
        Call::WriteDown { target, path, released, request } => {
            let written = CreateCheckpointRequest {
                request_id: uuid(request),
                path: path.clone(),
                released: released.clone(),
                ..CreateCheckpointRequest::default()
            };
            Message::WriteDown(slice_name(target), written)
        }
        Call::Discard { folders } => {
            Message::Discard(DeleteCheckpointsRequest { term, checkpoints: folders.clone() })
        }
        Call::Stop { target } | Call::End { target } => Message::Stop(StopSliceRequest {
            term,
            slice: slice_name(target),
            life: target.life,
            force: matches!(call, Call::End { .. }),
        }),
        Call::Fence { uid, life } => {
            Message::Fence(FenceVmRequest { term, vm: format!("vms/{uid}"), life: *life })
        }
        Call::Remove { targets } => {
            let remove = |target: &Target| RemoveSliceRequest {
                term,
                slice: slice_name(target),
                life: target.life,
            };
            let fence = targets.first().map(|target| FenceVmRequest {
                term,
                vm: format!("vms/{}", target.uid),
                life: target.life,
            });
            Message::Remove(fence, targets.iter().map(remove).collect())
        }
    }
}

/// A slice runs.
fn ensure(
    term: u64,
    target: &Target,
    resources: Option<HostResources>,
    (secret, role): (&Secret, &Role),
) -> EnsureSliceRequest {
    let role = match role {
        Role::Companion => RoleMessage::Companion(CompanionSpec::default()),
        Role::Bootstrap { parts, guest, restore } => {
            RoleMessage::Bootstrap(bootstrap(parts, guest, restore.as_ref()))
        }
    };
    EnsureSliceRequest {
        term,
        slice: slice_name(target),
        life: target.life,
        resources,
        secret: bytes(secret),
        role: Some(role),
    }
}

/// All of a slice goes to another one of the VM.
fn drain(slice: u16, to: u16, request: &Uid) -> DrainSliceRequest {
    DrainSliceRequest {
        name: format!("slices/{slice}"),
        request_id: uuid(request),
        to: Some(u32::from(to)),
        ..DrainSliceRequest::default()
    }
}

/// A companion joins as an empty slice.
fn add(address: &str, number: u16, request: &Uid) -> AddSliceRequest {
    AddSliceRequest {
        request_id: uuid(request),
        address: address.to_owned(),
        empty: true,
        number: Some(u32::from(number)),
        ..AddSliceRequest::default()
    }
}

/// As a VM wants ids of requests.
fn uuid(id: &Uid) -> String {
    let digits = id.as_str();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// What was written, as the VM says.
pub(super) fn written(response: CreateCheckpointResponse) -> Written {
    let control::v1::Checkpoint { digest, bytes, cut, .. } =
        response.checkpoint.unwrap_or_default();
    Written { digest, bytes, cut }
}

/// Where parts of a VM are, as it says.
pub(super) fn places(vm: &Vm) -> Vec<Place> {
    let number = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    let place = |slice: &control::v1::Slice| {
        let mut vcpus: Vec<u16> = slice.vcpus.iter().copied().map(number).collect();
        vcpus.sort_unstable();
        let memory_mib = slice.memory_bytes / MIB;
        Place { slice: number(slice.number), vcpus, memory_mib }
    };
    vm.slices.iter().map(place).collect()
}

fn node(resources: &HostResources) -> NumaNode {
    NumaNode {
        cores: u16::try_from(resources.cores).unwrap_or(u16::MAX),
        memory_mib: resources.memory_bytes / MIB,
    }
}

fn slice(slice: &HostSlice) -> Option<SliceReport> {
    let mut parts = slice.name.split('/');
    let (vms, uid, slices, number) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if vms != "vms" || slices != "slices" || parts.next().is_some() {
        return None;
    }
    let uid = Uid::try_from(uid.to_owned()).ok()?;
    let end = slice.end.clone().unwrap_or_default();
    let phase = match slice.state() {
        State::Ended => Phase::Ended(end.status),
        State::Unspecified | State::Starting | State::Running | State::Stopping => Phase::Runs,
    };
    // What follows from a life that nobody has lived could not be written down.
    let life = Some(slice.life).filter(|life| *life < LIFE_MAX)?;
    let target = Target { uid, slice: number.parse().ok()?, life };
    Some(SliceReport { target, phase, cause: text(&end.cause) })
}

/// As much of a text of an agent as is kept: what it becomes a part of must fit the store.
pub(super) fn text(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].to_owned()
}

/// Bytes of a text.
const TEXT_MAX: usize = 1024;
/// No slice runs without these.
const NEEDED: [&str; 2] = ["kvm", "userfaultfd"];

fn lack(ability: &Ability) -> Option<String> {
    let lacks = !ability.present && NEEDED.contains(&ability.name.as_str());
    lacks.then(|| text(&format!("{}: {}", ability.name, ability.why_not)))
}

/// What an agent says of its host, to an orchestrator of this term. Slices of other names are nobody's here.
pub(super) fn report(term: Term, host: &Host) -> Report {
    let mut nodes: Vec<NumaNode> =
        host.nodes.iter().filter_map(|it| it.capacity.as_ref()).map(node).collect();
    if nodes.is_empty() {
        nodes.extend(host.capacity.as_ref().map(node));
    }
    Report {
        agent: host.agent_id.clone(),
        name: host.name.trim_start_matches("hosts/").to_owned(),
        boot_id: text(&host.boot_id),
        nodes,
        version: text(&host.version),
        lacks: host.abilities.iter().filter_map(lack).take(NEEDED.len()).collect(),
        checkpoints: host.checkpoints.clone(),
        slices: host.slices.iter().filter_map(slice).collect(),
        foreign: Some(Term(host.term)).filter(|heard| *heard > term),
    }
}

/// What follows from an error of a call.
pub(super) fn failed(call: &Call, status: &Status) -> Result<Reply, Failure> {
    let details = status.get_error_details();
    let reason = details.error_info().map(|info| info.reason.as_str()).unwrap_or_default();
    let text = text(format!("{reason} {}", status.message()).trim());
    // The agent says itself whether the same request may do better soon.
    let is_for_now = details.retry_info().is_some();
    match (status.code(), call) {
        _ if reason == "STALE_TERM" => Err(Failure::Deposed),
        // A slice that is not there yet, or does not answer yet, is asked again.
        (_, Call::Ask { .. } | Call::Where { .. } | Call::Look) => Err(Failure::Unreachable(text)),
        // What is not there needs not end.
        (Code::NotFound, Call::Stop { .. } | Call::End { .. } | Call::Remove { .. }) => {
            Ok(Reply::Done)
        }
        (
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal,
            _,
        ) => Err(Failure::Unreachable(text)),
        _ if is_for_now => Err(Failure::Unreachable(text)),
        _ => Err(Failure::Refused(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::v1::host_slice::End;
    use std::collections::HashMap;
    use tonic_types::ErrorDetails;

    fn status(code: Code, reason: &str, again: bool) -> Status {
        let mut details = ErrorDetails::with_error_info(reason, "tessera", HashMap::new());
        if again {
            details.set_retry_info(None);
        }
        Status::with_error_details(code, "why", details)
    }

    fn target() -> Target {
        Target { uid: Uid::new(5), slice: 1, life: 2 }
    }

    #[test]
    fn errors_mean_what_the_agent_says() {
        let (stop, ask) = (Call::Stop { target: target() }, Call::Ask { target: target() });
        let (end, request) = (Call::End { target: target() }, Uid::new(7));
        let bring = Call::Bring { target: target(), slice: 1, to: 0, request };
        let not_there = Err(Failure::Refused("SLICE_NOT_FOUND why".to_owned()));
        let fence = Call::Fence { uid: Uid::new(5), life: 2 };
        let refused = Err(Failure::Refused("NO_CAPACITY why".to_owned()));
        let unreachable = |reason: &str| Err(Failure::Unreachable(format!("{reason} why")));
        let precondition = Code::FailedPrecondition;
        let cases = [
            (&stop, status(precondition, "STALE_TERM", false), Err(Failure::Deposed)),
            (&stop, status(Code::NotFound, "SLICE_NOT_FOUND", false), Ok(Reply::Done)),
            (&end, status(Code::NotFound, "SLICE_NOT_FOUND", false), Ok(Reply::Done)),
            (&bring, status(Code::NotFound, "SLICE_NOT_FOUND", false), not_there),
            (&stop, status(Code::ResourceExhausted, "NO_CAPACITY", false), refused),
            (&fence, status(Code::ResourceExhausted, "NO_PORT", true), unreachable("NO_PORT")),
            (&fence, status(Code::Unavailable, "AGENT_ENDS", true), unreachable("AGENT_ENDS")),
            (
                &ask,
                status(precondition, "SLICE_NOT_RUNNING", false),
                unreachable("SLICE_NOT_RUNNING"),
            ),
        ];
        for (call, status, expected) in cases {
            assert_eq!(failed(call, &status), expected, "{call:?} {status:?}");
        }
        let other = failed(&fence, &status(Code::NotFound, "SLICE_NOT_FOUND", false));
        assert!(matches!(other, Err(Failure::Refused(_))), "a fence is no slice: {other:?}");
    }

    #[test]
    fn what_an_agent_says_of_its_host_is_read() {
        let resources = |cores| Some(HostResources { cores, memory_bytes: 64 * MIB });
        let slice = |name: &str, state: State, status| HostSlice {
            name: name.to_owned(),
            life: 2,
            state: state.into(),
            end: (state == State::Ended).then(|| End { cause: "power off".to_owned(), status }),
            ..HostSlice::default()
        };
        let uid = Uid::new(5);
        let host = Host {
            boot_id: "b".to_owned(),
            capacity: resources(3),
            slices: vec![
                slice(&format!("vms/{uid}/slices/1"), State::Ended, Some(0)),
                slice(&format!("vms/{uid}/slices/0"), State::Stopping, None),
                slice("vms/x/slices/0", State::Running, None),
                slice("other", State::Running, None),
            ],
            term: 8,
            ..Host::default()
        };
        assert_eq!(report(Term(7), &host).foreign, Some(Term(8)));
        let report = report(Term(8), &host);
        assert_eq!(report.foreign, None);
        assert_eq!(
            report.nodes,
            [NumaNode { cores: 3, memory_mib: 64 }],
            "without nodes: all of it"
        );
        let phases: Vec<_> = report.slices.iter().map(|it| (it.target.slice, it.phase)).collect();
        assert_eq!(phases, [(1, Phase::Ended(Some(0))), (0, Phase::Runs)]);
        assert_eq!(report.slices[0].target, target());
    }

    /// One host could end the leadership of the whole cluster: again and again, for the next leader hears the same.
    #[test]
    fn what_follows_from_any_report_fits_the_store() {
        let long = "\u{e9}".repeat(100_000);
        let uid = Uid::new(5);
        let slice = |life| HostSlice {
            name: format!("vms/{uid}/slices/1"),
            life,
            state: State::Ended.into(),
            end: Some(End { cause: long.clone(), status: None }),
            ..HostSlice::default()
        };
        let lack = Ability { name: "kvm".to_owned(), why_not: long.clone(), ..Ability::default() };
        let host = Host {
            boot_id: long.clone(),
            version: long.clone(),
            abilities: vec![lack; 50],
            slices: vec![slice(u64::MAX), slice(LIFE_MAX), slice(LIFE_MAX - 1)],
            ..Host::default()
        };
        let report = report(Term(8), &host);
        let texts = [&report.boot_id, &report.version, &report.slices[0].cause];
        // A letter has two bytes here.
        let is_cut = |text: &String| (TEXT_MAX - 1..=TEXT_MAX).contains(&text.len());
        assert!(texts.into_iter().chain(&report.lacks).all(is_cut));
        assert_eq!((report.slices.len(), report.slices[0].target.life), (1, LIFE_MAX - 1));
        assert_eq!(report.lacks.len(), NEEDED.len());
        let stop = Call::Stop { target: target() };
        let refused = failed(&stop, &Status::failed_precondition(long));
        assert!(matches!(refused, Err(Failure::Refused(why)) if is_cut(&why)));
    }

    #[test]
    fn slice_is_drained_to_another_one_by_one_request() {
        let request = Uid::new(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        let call = Call::Bring { target: target(), slice: 3, to: 0, request };
        let Message::Drain(slice, drain) = message(Term(7), &call) else { panic!("another one") };
        assert_eq!(slice, "vms/00000000000000000000000000000005/slices/1");
        assert_eq!((drain.name.as_str(), drain.to, drain.stay), ("slices/3", Some(0), false));
        assert_eq!(drain.request_id, "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn secret_is_handed_on_as_bytes() {
        let uid = Uid::new(5);
        let secret = Secret { vm: uid, digits: "0aff".repeat(16) };
        let (cores, memory_mib) = (2, 64);
        let call =
            Call::Ensure { target: target(), cores, memory_mib, secret, role: Role::Companion };
        let Message::Ensure(request) = message(Term(7), &call) else { panic!("another message") };
        assert_eq!(request.secret, [0x0a, 0xff].repeat(16));
        assert_eq!((request.term, request.life), (7, 2));
        assert_eq!(request.slice, "vms/00000000000000000000000000000005/slices/1");
    }
}
