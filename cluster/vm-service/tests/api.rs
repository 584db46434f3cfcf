//! The API as a client sees it, over the control socket of a VM that is none.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use control::longrunning::operation::Result as Outcome;
use control::longrunning::operations_client::OperationsClient;
use control::longrunning::{Operation, WaitOperationRequest};
use control::v1::vm_service_client::VmServiceClient;
use control::v1::watch_vm_response::Kind;
use control::v1::{
    AddSliceRequest, AdviseRequest, AdviseResponse, CreateCheckpointRequest,
    CreateCheckpointResponse, DrainSliceRequest, GetDsmReportRequest, GetTraceRequest,
    GetVcpusRequest, GetVmRequest, MovePartsResponse, MoveVcpusRequest, PauseVmRequest,
    PowerButtonRequest, ResumeVmRequest, SetVcpusRequest, SpreadRequest, StopVmRequest, Vcpus,
    WatchVmRequest, move_vcpus_request, vm,
};
use migrate::Change;
use prost::Message;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use support::{NAME, Served};
use tessera_vm_service::{Channel, Problem, QUEUE_MAX, row};
use tonic::{Code, Status};
use tonic_types::StatusExt;
use vmm::control::{
    Activity, Answer, Client, PauseRequest, PlacementRequest, Reason, Refusal, Request,
};
use wire::{SliceId, VcpuId};

const ID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const OTHER_ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

type Vm = VmServiceClient<Channel>;

fn reason(status: &Status) -> String {
    status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

async fn wait(channel: &Channel, operation: Operation) -> Operation {
    let mut operations = OperationsClient::new(channel.clone());
    let request = WaitOperationRequest { name: operation.name, timeout: None };
    operations.wait_operation(request).await.unwrap().into_inner()
}

/// What has come of an operation that was done.
async fn outcome<M: Message + Default>(channel: &Channel, operation: Operation) -> M {
    match wait(channel, operation).await.result {
        Some(Outcome::Response(any)) => M::decode(&any.value[..]).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn vm_is_seen_paused_and_resumed_in_both_languages() {
    let served = Served::new();
    let mut api = Vm::new(served.channel().await);
    let seen = api.get_vm(GetVmRequest::default()).await.unwrap().into_inner();
    assert_eq!((seen.name.as_str(), seen.state()), (NAME, vm::State::Running));
    let vcpus: Vec<_> = seen.slices.iter().map(|slice| slice.vcpus.clone()).collect();
    assert_eq!(vcpus, [vec![0, 1], vec![2]]);

    let request = PauseVmRequest { etag: seen.etag.clone(), ..Default::default() };
    let paused = api.pause_vm(request.clone()).await.unwrap().into_inner();
    assert_eq!(paused.vm.unwrap().state(), vm::State::Paused);
    assert_eq!(paused.took.unwrap().nanos, 12_000_000);
    let stale = api.pause_vm(request).await.unwrap_err();
    assert_eq!((stale.code(), reason(&stale).as_str()), (Code::Aborted, "ETAG_MISMATCH"));
    let mut lines = Client::connect(&served.path()).unwrap();
    let refused = lines.ask(&Request::Pause(PauseRequest {})).unwrap_err();
    assert!(refused.to_string().contains("it is paused"), "{refused}");
    match lines.ask(&Request::Placement(PlacementRequest {})).unwrap() {
        Answer::Placement(places) => assert_eq!(places.slices.len(), 2),
        other => panic!("{other:?}"),
    }
    api.resume_vm(ResumeVmRequest::default()).await.unwrap();
    let seen = api.get_vm(GetVmRequest { name: "vms/-".into() }).await.unwrap().into_inner();
    assert_eq!(seen.state(), vm::State::Running);
    let other = api.get_vm(GetVmRequest { name: "vms/other".into() }).await.unwrap_err();
    assert_eq!((other.code(), reason(&other).as_str()), (Code::NotFound, "VM_NOT_FOUND"));
}

#[tokio::test]
async fn each_reason_of_a_vm_reaches_the_client() {
    let served = Served::new();
    let mut api = Vm::new(served.channel().await);
    for reason_of_vm in [
        Reason::Malformed,
        Reason::NotAllowed,
        Reason::TooManyClients,
        Reason::NoVm,
        Reason::Over,
        Reason::NotLeader { leader: Some(1) },
        Reason::NoEngine,
        Reason::EngineSilent,
        Reason::Busy(Activity::Moving),
        Reason::Paused,
        Reason::NotPaused,
        Reason::Invalid { field: "path".into() },
        Reason::NothingToDo,
        Reason::NoCapacity,
        Reason::HostUnfit,
        Reason::SliceLost { slice: 1 },
        Reason::Unsupported,
        Reason::GuestRefused,
        Reason::Silent,
        Reason::Partly { done: 1, total: 2 },
        Reason::Failed,
    ] {
        served.vm.refuse(Some(Refusal::new(reason_of_vm.clone(), "as it was told")));
        let status = api.power_button(PowerButtonRequest::default()).await.unwrap_err();
        let expected = row(&Problem::Vm(reason_of_vm));
        assert_eq!((status.code(), reason(&status).as_str()), (expected.code, expected.reason));
        assert_eq!(status.message(), "as it was told");
    }
    assert_eq!(served.vm.effects(), 0);
}

/// All calls that change something, each by a client that makes the same request twice.
#[tokio::test]
async fn request_id_makes_two_requests_one_effect() {
    let served = Served::new();
    let channel = served.channel().await;
    let mut api = Vm::new(channel.clone());
    let id = || ID.to_owned();
    let mut expected = 0;
    // Ids are of one request: each call is on a VM of its own turn.
    macro_rules! twice {
        ($method:ident, $request:expr, $id:expr) => {{
            let mut request = $request.clone();
            request.request_id.clone_from(&$id);
            let first = api.$method(request.clone()).await.unwrap().into_inner();
            let second = api.$method(request).await.unwrap().into_inner();
            assert_eq!(first, second);
            expected += 1;
            first
        }};
    }
    let uuid = |number: u32| format!("00000000-0000-4000-8000-{number:012x}");
    twice!(pause_vm, PauseVmRequest::default(), id());
    twice!(resume_vm, ResumeVmRequest::default(), uuid(1));
    twice!(power_button, PowerButtonRequest::default(), uuid(2));
    twice!(stop_vm, StopVmRequest::default(), uuid(3));
    assert_eq!(served.vm.effects(), expected);
    let moves = vec![move_vcpus_request::Move { vcpu: 2, slice: 0 }];
    let request = MoveVcpusRequest { moves, ..Default::default() };
    served.vm.gate.close();
    let begun = twice!(move_vcpus, request, uuid(4));
    served.vm.gate.open();
    let _: MovePartsResponse = outcome(&channel, begun).await;
    let begun = twice!(spread, SpreadRequest::default(), uuid(5));
    wait(&channel, begun).await;
    let name = "slices/1".to_owned();
    served.vm.gate.close();
    let begun = twice!(drain_slice, DrainSliceRequest { name, ..Default::default() }, uuid(6));
    served.vm.gate.open();
    wait(&channel, begun).await;
    assert_eq!(served.vm.effects(), expected);
    let count = SetVcpusRequest { count: 2, ..Default::default() };
    let begun = api.set_vcpus(SetVcpusRequest { request_id: uuid(7), ..count.clone() }).await;
    let begun = begun.unwrap().into_inner();
    let again = api.set_vcpus(SetVcpusRequest { request_id: uuid(7), ..count }).await.unwrap();
    assert_eq!(again.into_inner().name, begun.name);
    let vcpus: Vcpus = outcome(&channel, begun).await;
    assert_eq!(vcpus.present, [0, 1]);
    let address = "10.9.0.2:7100".to_owned();
    let add = AddSliceRequest { address, request_id: uuid(8), ..Default::default() };
    let begun = api.add_slice(add.clone()).await.unwrap().into_inner();
    assert_eq!(api.add_slice(add).await.unwrap().into_inner().name, begun.name);
    wait(&channel, begun).await;
    let path = "/srv/monday".to_owned();
    let write = CreateCheckpointRequest { path, request_id: uuid(9), ..Default::default() };
    let begun = api.create_checkpoint(write.clone()).await.unwrap().into_inner();
    assert_eq!(api.create_checkpoint(write).await.unwrap().into_inner().name, begun.name);
    let written: CreateCheckpointResponse = outcome(&channel, begun).await;
    assert_eq!(written.checkpoint.unwrap().digest, "of /srv/monday");
    assert_eq!(served.vm.effects(), expected + 3);
    let reused = PowerButtonRequest { request_id: id(), ..Default::default() };
    let status = api.power_button(reused).await.unwrap_err();
    assert_eq!(reason(&status), "REQUEST_ID_REUSED");
}

#[tokio::test]
async fn operation_is_seen_from_its_begin_to_its_end() {
    let served = Served::new();
    let channel = served.channel().await;
    let mut api = Vm::new(channel.clone());
    served.vm.gate.close();
    let name = format!("{NAME}/slices/0");
    let request = DrainSliceRequest { name, request_id: OTHER_ID.into(), ..Default::default() };
    let begun = api.drain_slice(request).await.unwrap().into_inner();
    assert!(!begun.done);
    // It is seen that parts move.
    loop {
        let seen = api.get_vm(GetVmRequest::default()).await.unwrap().into_inner();
        if seen.activity() == vm::Activity::Moving {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    served.vm.gate.open();
    let done = wait(&channel, begun).await;
    let progress = done.metadata.unwrap();
    assert_eq!(progress.type_url, "type.googleapis.com/tessera.control.v1.OperationProgress");
    let progress = control::v1::OperationProgress::decode(&progress.value[..]).unwrap();
    assert_eq!((progress.method.as_str(), progress.total_units), ("DrainSlice", 2));
    assert_eq!(progress.request_id, OTHER_ID);
    let seen = api.get_vm(GetVmRequest::default()).await.unwrap().into_inner();
    assert!(seen.slices[0].vcpus.is_empty());
    assert_eq!(seen.slices[1].vcpus, [0, 1, 2]);
    // What cannot be done is told by the operation.
    let name = "slices/0".to_owned();
    let again = api.drain_slice(DrainSliceRequest { name, ..Default::default() }).await.unwrap();
    let Some(Outcome::Error(error)) = wait(&channel, again.into_inner()).await.result else {
        panic!("it was done twice");
    };
    assert_eq!(error.code, i32::from(Code::FailedPrecondition));
    let count_for = Some(prost_types::Duration { seconds: 7, nanos: 0 });
    let begun = api.advise(AdviseRequest { count_for, ..Default::default() }).await.unwrap();
    let advice: AdviseResponse = outcome(&channel, begun.into_inner()).await;
    assert_eq!(advice.proposals, ["counted for 7 s: stay"]);
}

#[tokio::test]
async fn several_vcpus_move_in_order_and_a_failure_says_how_far_it_came() {
    let served = Served::new();
    let channel = served.channel().await;
    let mut api = Vm::new(channel.clone());
    let to = |vcpu, slice| move_vcpus_request::Move { vcpu, slice };
    let moves = vec![to(0, 1), to(1, 1), to(9, 0)];
    let begun = api.move_vcpus(MoveVcpusRequest { moves, ..Default::default() }).await.unwrap();
    let Some(Outcome::Error(error)) = wait(&channel, begun.into_inner()).await.result else {
        panic!("there is no vCPU 9");
    };
    assert!(error.message.starts_with("2 of 3 moves are done"), "{}", error.message);
    let seen = api.get_vm(GetVmRequest::default()).await.unwrap().into_inner();
    assert_eq!(seen.slices[1].vcpus, [0, 1, 2]);
    for moves in [Vec::new(), vec![to(0, 0); 257], vec![to(0, 70_000)]] {
        let request = MoveVcpusRequest { moves, ..Default::default() };
        assert_eq!(api.move_vcpus(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn plan_is_told_and_nothing_is_done() {
    let served = Served::new();
    let channel = served.channel().await;
    let mut api = Vm::new(channel.clone());
    let drain = |name: &str| DrainSliceRequest {
        name: name.into(),
        validate_only: true,
        ..Default::default()
    };
    let done = api.drain_slice(drain("slices/0")).await.unwrap().into_inner();
    assert!(done.done);
    let plan: MovePartsResponse = outcome(&channel, done).await;
    assert_eq!(plan.steps.len(), 2);
    assert_eq!(served.vm.effects(), 0);
    served.vm.change(&[Change::Vcpu { vcpu: VcpuId(2), to: SliceId(0) }]);
    let refused = api.drain_slice(drain("slices/1")).await.unwrap_err();
    assert_eq!(reason(&refused), "NOTHING_TO_DO");
    let malformed = api.drain_slice(drain("slice 1")).await.unwrap_err();
    assert_eq!(malformed.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn watcher_sees_each_change_and_a_slow_one_is_ended() {
    let served = Served::new();
    let mut api = Vm::new(served.channel().await);
    let mut watch = api.watch_vm(WatchVmRequest::default()).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert!(matches!(first.kind, Some(Kind::Snapshot(vm)) if vm.placement_epoch == 1));
    served.vm.change(&[Change::Vcpu { vcpu: VcpuId(0), to: SliceId(1) }]);
    let change = watch.message().await.unwrap().unwrap();
    match change.kind {
        Some(Kind::Change(vm)) => assert_eq!(vm.slices[1].vcpus, [0, 2]),
        other => panic!("{other:?}"),
    }
    let resume_token = change.resume_token;
    drop(watch);
    served.vm.change(&[Change::Vcpu { vcpu: VcpuId(0), to: SliceId(0) }]);
    let request = WatchVmRequest { resume_token, ..Default::default() };
    let mut again = api.watch_vm(request).await.unwrap().into_inner();
    let missed = again.message().await.unwrap().unwrap();
    assert!(matches!(missed.kind, Some(Kind::Change(vm)) if vm.placement_epoch == 3));
    let foreign = WatchVmRequest { resume_token: "1-1".into(), ..Default::default() };
    let status = api.watch_vm(foreign).await.unwrap_err();
    assert_eq!(reason(&status), "RESUME_TOKEN_EXPIRED");
}

/// Watches of a client that never reads stay within their queues; when there are too many they are refused.
#[tokio::test]
async fn watchers_of_a_client_that_does_not_read_are_bounded() {
    let served = Served::new();
    let (mut watches, mut refused) = (Vec::new(), 0);
    for _ in 0..5 {
        let mut api = Vm::new(served.channel().await);
        for _ in 0..250 {
            match api.watch_vm(WatchVmRequest::default()).await {
                Ok(watch) => watches.push(watch.into_inner()),
                Err(status) => {
                    assert_eq!(reason(&status), "TOO_MANY_WATCHERS");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((watches.len(), refused), (1024, 226));
    const { assert!(QUEUE_MAX < 100) };
    drop(watches);
    // Their places are free again, once the server has heard of it.
    let mut api = Vm::new(served.channel().await);
    loop {
        if api.watch_vm(WatchVmRequest::default()).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_needs_an_engine_or_another_slice_says_so() {
    let served = Served::new();
    let mut api = Vm::new(served.channel().await);
    let report = api.get_dsm_report(GetDsmReportRequest::default()).await.unwrap_err();
    assert_eq!(reason(&report), "NO_MEMORY_ENGINE");
    let trace = api.get_trace(GetTraceRequest::default()).await.unwrap_err();
    assert_eq!(reason(&trace), "NO_MEMORY_ENGINE");
    let vcpus = api.get_vcpus(GetVcpusRequest::default()).await.unwrap().into_inner();
    assert_eq!((vcpus.present, vcpus.absent), (vec![0, 1], vec![2]));
    served.vm.change(&[Change::Coordinator(SliceId(1))]);
    served.desk.detach_vm();
    let elsewhere = api.pause_vm(PauseVmRequest::default()).await.unwrap_err();
    assert_eq!((elsewhere.code(), reason(&elsewhere).as_str()), (Code::Unavailable, "NOT_LEADER"));
    let details = elsewhere.get_error_details();
    assert_eq!(details.error_info().unwrap().metadata["leader"], "slices/1");
    let seen = api.get_vm(GetVmRequest::default()).await.unwrap().into_inner();
    assert_eq!((seen.coordinator, seen.state()), (1, vm::State::Unspecified));
}

#[tokio::test]
async fn slice_without_a_vm_says_that_there_is_none_yet() {
    let (folder, desk) = (support::Folder::new(), vmm::control::Desk::new());
    let path = folder.0.join("vm.sock");
    let _server = tessera_vm_service::Server::start(&desk, None).unwrap();
    let _socket = vmm::control::ControlSocket::open(&path, desk.clone()).unwrap();
    let mut api = Vm::new(support::connect(&path).await);
    let none = api.get_vm(GetVmRequest::default()).await.unwrap_err();
    assert_eq!((none.code(), reason(&none).as_str()), (Code::Unavailable, "VM_NOT_STARTED"));
}

#[tokio::test]
async fn effect_of_a_client_that_goes_is_whole_and_seen_by_the_next() {
    let served = Served::new();
    let mut api = Vm::new(served.channel().await);
    served.vm.gate.close();
    let request = SpreadRequest { request_id: ID.into(), ..Default::default() };
    let begun = api.spread(request.clone()).await.unwrap().into_inner();
    drop(api);
    served.vm.gate.open();
    let channel = served.channel().await;
    let mut api = Vm::new(channel.clone());
    assert_eq!(api.spread(request).await.unwrap().into_inner().name, begun.name);
    let _: MovePartsResponse = outcome(&channel, begun).await;
    assert_eq!(served.vm.effects(), 1);
}

/// What is no HTTP/2, or breaks off, ends its own connection and nothing else.
#[tokio::test]
async fn malformed_frames_end_their_connection_only() {
    let served = Served::new();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let garbage: [&[u8]; 7] = [
        b"",
        &[0; 64],
        &[0xff; 64],
        // A frame that says that it is larger than any may be.
        &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1],
        // Settings whose length is no multiple of six.
        &[0, 0, 5, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5],
        // Headers that HPACK cannot read.
        &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 3, 1, 5, 0, 0, 0, 1, 0x80, 0xff, 0xff],
        // Data for a stream that was never opened.
        &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 9, 7],
    ];
    let path = served.path();
    tokio::task::spawn_blocking(move || {
        for bytes in garbage {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.write_all(preface).unwrap();
            // It may have been closed by then.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let mut rest = Vec::new();
            // The server closes it, in whichever way.
            let _ = stream.read_to_end(&mut rest);
            assert!(rest.len() < 4096);
        }
    })
    .await
    .unwrap();
    let mut api = Vm::new(served.channel().await);
    api.get_vm(GetVmRequest::default()).await.unwrap();
    let large = GetVmRequest { name: "x".repeat(100 << 10) };
    assert_eq!(api.get_vm(large).await.unwrap_err().code(), Code::OutOfRange);
    api.get_vm(GetVmRequest::default()).await.unwrap();
}

#[tokio::test]
async fn server_ends_with_watches_and_waits_open() {
    let mut served = Served::new();
    let channel = served.channel().await;
    let mut api = Vm::new(channel.clone());
    let mut watch = api.watch_vm(WatchVmRequest::default()).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    served.vm.gate.close();
    let begun = api.spread(SpreadRequest::default()).await.unwrap().into_inner();
    let waiting = tokio::spawn(async move {
        let mut operations = OperationsClient::new(channel);
        let request = WaitOperationRequest { name: begun.name, timeout: None };
        operations.wait_operation(request).await
    });
    let server = served.server.take();
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    assert!(waiting.await.unwrap().is_err());
    // The watch ends, and nothing more comes.
    while let Ok(Some(_)) = watch.message().await {}
    served.vm.gate.open();
}
