//! VMs that are asked by their gRPC API: one of a single slice, and one of two by a client in another language.

use crate::rig::{Vm, is_possible};
use crate::{alone, guest};
use control::v1::vm_service_client::VmServiceClient;
use control::v1::{
    ConsolidateRequest, GetDsmReportRequest, GetVmRequest, PauseVmRequest, PowerButtonRequest,
    ResumeVmRequest, SpreadRequest, StopVmRequest, vm,
};
use std::path::Path;
use std::process::Command;
use tessera_vmm::slice::Interrupts;
use tokio::runtime::Builder;
use tonic::Status;
use tonic_types::StatusExt;
use transport::CarrierKind;

/// Where Debian puts what the other client needs; `./x test` installs it.
const GRPC: &str = "/usr/lib/python3/dist-packages/grpc/__init__.py";
const CLIENT: &str = "../cluster/vm-service/tests/foreign/client.py";

fn reason(status: &Status) -> String {
    status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

#[test]
fn kvm_vm_of_one_slice_is_asked_by_its_api() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start_without_secret();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let channel = vm_service::connect(&vm.socket(0)).await.expect("it is served");
        let mut api = VmServiceClient::new(channel);
        let seen = api.get_vm(GetVmRequest::default()).await.expect("it is there").into_inner();
        assert_eq!((seen.slices.len(), seen.state()), (1, vm::State::Running));
        assert_eq!(seen.slices[0].vcpus, [0, 1]);
        let etag = seen.etag;
        let paused = api.pause_vm(PauseVmRequest { etag, ..Default::default() }).await;
        let paused = paused.expect("it can be paused").into_inner();
        assert_eq!(paused.vm.expect("it is told").state(), vm::State::Paused);
        let again = api.pause_vm(PauseVmRequest::default()).await.unwrap_err();
        assert_eq!(reason(&again), "VM_PAUSED");
        let deaf = api.power_button(PowerButtonRequest::default()).await.unwrap_err();
        assert_eq!(reason(&deaf), "VM_PAUSED");
        api.resume_vm(ResumeVmRequest::default()).await.expect("it goes on");
        let running = api.resume_vm(ResumeVmRequest::default()).await.unwrap_err();
        assert_eq!(reason(&running), "VM_NOT_PAUSED");
        let report = api.get_dsm_report(GetDsmReportRequest::default()).await.unwrap_err();
        assert_eq!(reason(&report), "NO_MEMORY_ENGINE");
        let look = |validate_only| ConsolidateRequest { validate_only, ..Default::default() };
        let alone = api.consolidate(look(true)).await.unwrap_err();
        assert_eq!(reason(&alone), "NOTHING_TO_DO");
        let spread = SpreadRequest { validate_only: true, ..Default::default() };
        let alone = api.spread(spread).await.unwrap_err();
        assert_eq!(reason(&alone), "NOTHING_TO_DO");
        api.stop_vm(StopVmRequest::default()).await.expect("it is asked");
        // Asked twice so, the guest still has its time, if it has not ended by then.
        if let Err(over) = api.stop_vm(StopVmRequest::default()).await {
            assert_eq!(reason(&over), "VM_OVER");
        }
    });
    assert_eq!(vm.powers_off(), guest::AGREE);
}

#[test]
fn kvm_vm_of_two_slices_is_moved_and_drained_by_a_foreign_client() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    if !Path::new(GRPC).exists() {
        needs::skip("there is no python3-grpcio: ./x test installs it");
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(CLIENT);
    let client =
        Command::new("/usr/bin/python3").arg(script).arg(vm.socket(0)).output().expect("python3");
    let said = String::from_utf8_lossy(&client.stdout);
    let complained = String::from_utf8_lossy(&client.stderr);
    assert!(client.status.success() && said.ends_with("done\n"), "{said}\n{complained}");
    vm.wait_until_drained(1);
    vm.moves_on();
    assert_eq!(vm.power_off_alone(0), guest::AGREE, "additions to the page of both are lost");
}
