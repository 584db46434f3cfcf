//! Calls that go on to a slice. The slice is a shell, and this test answers on its control socket.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "each test program uses a part of it")]
mod support;

use agent_service::METADATA;
use control::longrunning::operations_client::OperationsClient;
use control::longrunning::operations_server::{Operations, OperationsServer};
use control::longrunning::{
    CancelOperationRequest, DeleteOperationRequest, GetOperationRequest, ListOperationsRequest,
    ListOperationsResponse, Operation, WaitOperationRequest,
};
use control::v1::GetVmRequest;
use control::v1::host_slice::State;
use control::v1::vm_service_client::VmServiceClient;
use std::convert::Infallible;
use std::fs::remove_file;
use std::future::pending;
use std::path::Path;
use support::{Host, companion, fence, name, reason, until};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server as Http2;
use tonic::{Code, Request, Response, Status};

/// Answers with what it was asked.
struct Slice;

#[tonic::async_trait]
impl Operations for Slice {
    async fn get_operation(
        &self,
        request: Request<GetOperationRequest>,
    ) -> Result<Response<Operation>, Status> {
        let named = request.metadata().get(METADATA);
        assert!(named.is_none(), "what names the slice is the agent's");
        let name = request.into_inner().name;
        let answer = Operation { name, ..Operation::default() };
        let mut response = Response::new(answer);
        response.metadata_mut().insert("of-the-slice", "yes".parse().unwrap());
        Ok(response)
    }

    async fn list_operations(
        &self,
        _: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>, Status> {
        Err(Status::with_details(Code::DataLoss, "as it was told", vec![1, 2, 3].into()))
    }

    async fn delete_operation(
        &self,
        _: Request<DeleteOperationRequest>,
    ) -> Result<Response<()>, Status> {
        Ok(Response::new(()))
    }

    async fn cancel_operation(
        &self,
        _: Request<CancelOperationRequest>,
    ) -> Result<Response<()>, Status> {
        Ok(Response::new(()))
    }

    async fn wait_operation(
        &self,
        _: Request<WaitOperationRequest>,
    ) -> Result<Response<Operation>, Status> {
        pending().await
    }
}

fn serve(path: &Path) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    let (sender, streams) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if sender.send(Ok::<_, Infallible>(stream)).await.is_err() {
                return;
            }
        }
    });
    let serving = Http2::builder().add_service(OperationsServer::new(Slice));
    tokio::spawn(
        async move { serving.serve_with_incoming(ReceiverStream::new(streams)).await.unwrap() },
    )
}

fn of<T>(slice: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(METADATA, slice.parse().unwrap());
    request
}

#[tokio::test]
async fn call_goes_to_the_slice_that_it_names() {
    let host = Host::new();
    let _server = host.begin();
    let mut agent = host.agent().await;
    let channel = host.channel().await;
    let mut operations = OperationsClient::new(channel.clone());
    let mut vms = VmServiceClient::new(channel);

    let refused = vms.get_vm(GetVmRequest::default()).await.unwrap_err();
    assert_eq!(reason(&refused), "SLICE_NOT_NAMED");
    for (slice, why) in [("vms/x", "SLICE_NOT_NAMED"), (&name(1), "SLICE_NOT_FOUND")] {
        let refused = vms.get_vm(of(slice, GetVmRequest::default())).await.unwrap_err();
        assert_eq!(reason(&refused), why);
    }
    agent.ensure_slice(companion(1)).await.unwrap();
    until(&mut agent, 1, State::Running).await;
    let slice = name(1);
    let refused = vms.get_vm(of(&slice, GetVmRequest::default())).await.unwrap_err();
    assert_eq!(reason(&refused), "SLICE_UNREACHABLE", "it has no socket yet");

    let control = host.folders().pop().unwrap().join("control");
    let serving = serve(&control);
    let get = || of(&slice, GetOperationRequest { name: "operations/7".into() });
    let answer = operations.get_operation(get()).await.unwrap();
    assert_eq!(answer.metadata().get("of-the-slice").unwrap(), "yes");
    assert_eq!(answer.into_inner().name, "operations/7");
    let list = of(&slice, ListOperationsRequest::default());
    let refused = operations.list_operations(list).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::DataLoss, "as it was told"));
    assert_eq!(refused.details(), [1, 2, 3]);
    // The test's slice has no VmService: that is the slice's answer, and not the agent's.
    let refused = vms.get_vm(of(&slice, GetVmRequest::default())).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::Unimplemented, ""));

    // Its client goes while a call goes on, and the socket is another process's then.
    let mut waiting = operations.clone();
    let wait = of(&slice, WaitOperationRequest::default());
    let call = tokio::spawn(async move { waiting.wait_operation(wait).await });
    operations.get_operation(get()).await.unwrap();
    call.abort();
    serving.abort();
    let _ = serving.await;
    remove_file(&control).unwrap();
    fence(&mut agent, 1).await;
    until(&mut agent, 1, State::Ended).await;
    let refused = operations.get_operation(get()).await.unwrap_err();
    assert_eq!(reason(&refused), "SLICE_NOT_RUNNING");
    assert!(refused.message().contains("signal 9"), "{refused:?}");
}
