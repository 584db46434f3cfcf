use super::*;
use std::sync::mpsc;
use tonic::Code;
use vmm::control::Reason;

fn begin(operations: &Operations, result: Result<Any>) -> (Operation, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel();
    let begun = operations.begin(("DrainSlice", "id", "steps"), move |tell| {
        tell(Progress { done: 1, total: 3, next: "vcpu1".into() });
        // Dropped is the same.
        let _ = wait.recv();
        result
    });
    (begun.unwrap(), go)
}

async fn wait(operations: &Operations, name: &str) -> Operation {
    let request = WaitOperationRequest { name: name.into(), timeout: None };
    operations.wait_operation(Request::new(request)).await.unwrap().into_inner()
}

fn named(name: &str) -> GetOperationRequest {
    GetOperationRequest { name: name.into() }
}

fn progress(operation: &Operation) -> OperationProgress {
    OperationProgress::decode(&operation.metadata.as_ref().unwrap().value[..]).unwrap()
}

#[tokio::test]
async fn operation_is_told_while_it_goes_on_and_when_it_is_over() {
    let operations = Operations::new(Desk::new());
    let response = any("Vcpus", &control::v1::Vcpus { present: vec![1], ..Default::default() });
    let (begun, go) = begin(&operations, Ok(response.clone()));
    assert!(!begun.done && begun.name.starts_with("operations/"));
    assert_eq!(progress(&begun).method, "DrainSlice");
    let limit = Some(shape::duration(Duration::ZERO));
    let request = WaitOperationRequest { name: begun.name.clone(), timeout: limit };
    let soon = operations.wait_operation(Request::new(request)).await.unwrap().into_inner();
    assert!(!soon.done);
    let delete = DeleteOperationRequest { name: begun.name.clone() };
    let error = operations.delete_operation(Request::new(delete.clone())).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    let cancel = CancelOperationRequest { name: begun.name.clone() };
    let error = operations.cancel_operation(Request::new(cancel.clone())).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);

    drop(go);
    let done = wait(&operations, &begun.name).await;
    assert_eq!(done.result, Some(Outcome::Response(response)));
    let far = progress(&done);
    assert_eq!((far.done_units, far.total_units, far.phase.as_str()), (1, 3, "vcpu1"));
    assert!(far.start_time.is_some() && far.end_time.is_some());
    operations.cancel_operation(Request::new(cancel)).await.unwrap();
    operations.delete_operation(Request::new(delete)).await.unwrap();
    let gone = operations.get_operation(Request::new(named(&begun.name))).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

#[tokio::test]
async fn operation_that_fails_says_why_in_full() {
    let operations = Operations::new(Desk::new());
    let why = status(&Problem::Vm(Reason::Partly { done: 1, total: 2 }), "half");
    let (begun, go) = begin(&operations, Err(why));
    drop(go);
    let Some(Outcome::Error(error)) = wait(&operations, &begun.name).await.result else {
        panic!("it has not failed");
    };
    assert_eq!((error.code, error.message.as_str()), (Code::Aborted.into(), "half"));
    assert!(error.details[0].type_url.ends_with("google.rpc.ErrorInfo"), "{error:?}");
}

#[tokio::test]
async fn running_and_known_operations_are_bounded() {
    let operations = Operations::new(Desk::new());
    let running: Vec<_> =
        (0..RUNNING_MAX).map(|_| begin(&operations, Ok(Any::default()))).collect();
    let more = operations.begin(("Spread", "", ""), |_| Ok(Any::default())).unwrap_err();
    assert_eq!(more.code(), Code::ResourceExhausted);
    for _ in 0..2 * KNOWN_MAX {
        operations.done(("Spread", ""), Any::default()).unwrap();
        assert!(operations.table().known.len() <= KNOWN_MAX);
    }
    // Those that go on are still known.
    for (operation, go) in running {
        drop(go);
        assert!(wait(&operations, &operation.name).await.done);
    }
}

#[tokio::test]
async fn pages_follow_each_other() {
    let operations = Operations::new(Desk::new());
    let names: Vec<_> =
        (0..7).map(|_| operations.done(("Spread", ""), Any::default()).unwrap().name).collect();
    let (mut token, mut seen) = (String::new(), Vec::new());
    loop {
        let request =
            ListOperationsRequest { page_size: 3, page_token: token, ..Default::default() };
        let page = operations.list_operations(Request::new(request)).await.unwrap().into_inner();
        assert!(page.operations.len() <= 3);
        seen.extend(page.operations.into_iter().map(|operation| operation.name));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    seen.reverse();
    assert_eq!(seen, names);
    let bad = |request| async { operations.list_operations(Request::new(request)).await };
    for wrong in [
        ListOperationsRequest { page_token: "x".into(), ..Default::default() },
        ListOperationsRequest { page_size: -1, ..Default::default() },
        ListOperationsRequest { filter: "done".into(), ..Default::default() },
        ListOperationsRequest { name: "vms".into(), ..Default::default() },
    ] {
        assert_eq!(bad(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
    for wrong in ["", "operations/", "operations/1", "operations/00000000-1", "vms/1-1"] {
        let error = operations.get_operation(Request::new(named(wrong))).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{wrong}");
    }
}

#[tokio::test]
async fn end_of_the_process_waits_for_who_waits_for_an_operation() {
    let desk = Desk::new();
    let operations = Operations::new(desk.clone());
    let is_awaited = |desk: &Desk| {
        let start = std::time::Instant::now();
        desk.wait_until_answered(Duration::from_millis(50));
        start.elapsed() >= Duration::from_millis(50)
    };
    let (begun, go) = begin(&operations, Ok(Any::default()));
    drop(go);
    // The client has not seen yet that it is over.
    assert!(is_awaited(&desk));
    wait(&operations, &begun.name).await;
    assert!(!is_awaited(&desk));
}
