use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::Notify;
use tonic::Code;
use vmm::control::Reason;

const ID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

/// Any message will do.
type Request = prost_types::Duration;

fn request(seconds: i64) -> Request {
    Request { seconds, nanos: 0 }
}

/// An effect that counts.
fn work(count: &Arc<AtomicU32>, result: Result<i64, Problem>) -> impl FnOnce() -> Done + use<> {
    let count = Arc::clone(count);
    move || {
        count.fetch_add(1, Ordering::SeqCst);
        let result = result.map(request).map_err(|problem| status(&problem, "words"));
        std::future::ready(result)
    }
}

type Done = std::future::Ready<Result<Request, Status>>;

#[tokio::test]
async fn second_request_has_no_effect_and_the_same_answer() {
    let (requests, count) = (Requests::default(), Arc::new(AtomicU32::new(0)));
    for _ in 0..3 {
        let answer = requests.once(("Do", ID), &request(1), work(&count, Ok(7))).await;
        assert_eq!(answer.unwrap(), request(7));
    }
    assert_eq!(count.load(Ordering::SeqCst), 1);
    for other in [("Do", 2), ("Undo", 1)] {
        let refused = requests.once((other.0, ID), &request(other.1), work(&count, Ok(8))).await;
        assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    }
    let capital = ID.to_uppercase();
    let again = requests.once(("Do", &capital), &request(1), work(&count, Ok(9))).await;
    assert_eq!((again.unwrap(), count.load(Ordering::SeqCst)), (request(7), 1));
    for _ in 0..2 {
        requests.once(("Do", ""), &request(1), work(&count, Ok(7))).await.unwrap();
    }
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn answer_is_kept_unless_it_says_that_nothing_was_done() {
    for (reason, effects) in [(Reason::Paused, 2), (Reason::Failed, 1)] {
        let (requests, count) = (Requests::default(), Arc::new(AtomicU32::new(0)));
        let problem = Problem::Vm(reason);
        for _ in 0..2 {
            let failed = work(&count, Err(problem.clone()));
            let answer = requests.once(("Do", ID), &request(1), failed).await;
            assert_eq!(answer.unwrap_err().code(), crate::problem::row(&problem).code);
        }
        assert_eq!(count.load(Ordering::SeqCst), effects, "{problem:?}");
    }
}

#[tokio::test]
async fn effect_comes_to_its_end_though_its_client_goes() {
    let (requests, count) = (Requests::default(), Arc::new(AtomicU32::new(0)));
    let go = Arc::new(Notify::new());
    let slow = |go: Arc<Notify>, count: Arc<AtomicU32>| {
        move || async move {
            go.notified().await;
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Status>(request(5))
        }
    };
    let own = requests.clone();
    let work = slow(Arc::clone(&go), Arc::clone(&count));
    let first = tokio::spawn(async move { own.once(("Do", ID), &request(1), work).await });
    tokio::task::yield_now().await;
    first.abort();
    let _ = first.await;
    let own = requests.clone();
    let work = slow(Arc::clone(&go), Arc::clone(&count));
    let second = tokio::spawn(async move { own.once(("Do", ID), &request(1), work).await });
    tokio::task::yield_now().await;
    go.notify_one();
    assert_eq!(second.await.unwrap().unwrap(), request(5));
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn ids_are_bounded_in_number_and_time() {
    let (requests, start) = (Requests::default(), Instant::now());
    let asked = || Asked { method: "Do", request: Vec::new() };
    let id = |number: usize| u128::try_from(number).unwrap().to_be_bytes();
    for number in 0..2 * IDS_MAX {
        assert!(matches!(requests.turn(id(number), asked(), start), Ok(Turn::First(..))));
        assert!(requests.table().known.len() <= IDS_MAX && requests.table().order.len() <= IDS_MAX);
    }
    let again = |number, now| matches!(requests.turn(id(number), asked(), now), Ok(Turn::Again(_)));
    assert!(again(2 * IDS_MAX - 1, start));
    assert!(!again(0, start), "the oldest went first");
    assert!(!again(2 * IDS_MAX - 1, start + MEMORY + Duration::from_secs(1)));
    assert_eq!(requests.table().known.len(), 1);
}

#[test]
fn ids_are_uuids() {
    assert_eq!(parse("00000000-0000-0000-0000-0000000000ff").unwrap()[15], 255);
    for wrong in [
        "1",
        "0f8fad5bd9cb469fa16570867728950e",
        "0f8fad5b-d9cb-469f-a165-70867728950",
        "0f8fad5b-d9cb-469f-a165-70867728950g",
        "+f8fad5b-d9cb-469f-a165-70867728950e",
        "{0f8fad5b-d9cb-469f-a165-70867728950e}",
        "0f8fad5b-d9cb-469f-a165-70867728950e-",
    ] {
        assert_eq!(parse(wrong).unwrap_err().code(), Code::InvalidArgument, "{wrong}");
    }
}

proptest! {
    #[test]
    fn any_text_is_survived(text in ".{0,60}") {
        let _ = parse(&text);
    }

    #[test]
    fn all_uuids_are_taken(number: u128) {
        let hex = format!("{number:032x}");
        let uuid =
            [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        prop_assert_eq!(parse(&uuid).unwrap(), number.to_be_bytes());
    }
}
