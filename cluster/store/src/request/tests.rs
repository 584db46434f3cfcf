//! Requests over a store in memory that loses answers.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::key::Key;
use crate::lease::Candidate;
use crate::memory::MemoryStore;

const ID: RequestId = RequestId([7; 16]);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn first() -> Attempt {
    Attempt::first(ID, Content::of(b"create a"))
}

fn create(value: &[u8]) -> Txn {
    Txn::unfenced().if_absent(key("vms/a")).put(key("vms/a"), value)
}

#[test]
fn request_is_done_once_and_answered_again() {
    runtime().block_on(async {
        let store = MemoryStore::default();
        let done = attempt(&store, &first(), create(b"1"), *b"yes", 5).await;
        assert_eq!(done, Ok(Outcome::Done(Revision(1))));

        // Who repeats it has prepared it anew, and knows nothing of the first time.
        let again = attempt(&store, &first(), create(b"2"), *b"no", 6).await;

        let answer = Value::from(*b"yes");
        assert_eq!(again, Ok(Outcome::Before { revision: Revision(1), answer }));
        assert_eq!(&*store.get(&key("vms/a")).await.unwrap().entry.unwrap().value, b"1");
        let other = Attempt::first(ID, Content::of(b"create b"));
        let reused = attempt(&store, &other, create(b"3"), *b"no", 7).await;
        assert_eq!(reused, Err(RequestError::Reused(ID)));
    });
}

#[test]
fn conflict_elsewhere_is_a_conflict() {
    runtime().block_on(async {
        let store = MemoryStore::default();
        store.commit(create(b"0")).await.unwrap();

        let refused = attempt(&store, &first(), create(b"1"), *b"", 5).await.unwrap_err();

        let RequestError::Commit(CommitError::Conflict(conflict)) = refused else {
            panic!("{refused}")
        };
        assert_eq!(conflict.key, key("vms/a"));
        let large = vec![0; ANSWER_BYTES_MAX + 1];
        let refused = attempt(&store, &first(), create(b"1"), large, 5).await.unwrap_err();
        assert!(matches!(refused, RequestError::Answer(_)));
    });
}

#[test]
fn what_happened_is_settled_so() {
    runtime().block_on(async {
        let store = MemoryStore::default();
        attempt(&store, &first(), create(b"1"), *b"yes", 5).await.unwrap();

        let settled = settle(&store, &first(), 6).await.unwrap();

        let answer = Value::from(*b"yes");
        assert_eq!(settled, Settled::Happened { revision: Revision(1), answer });
    });
}

#[test]
fn commit_that_comes_late_does_not_happen() {
    runtime().block_on(async {
        let store = MemoryStore::default();
        let late = first().txn(create(b"1"), *b"late", 5).unwrap();

        let Settled::Never(second) = settle(&store, &first(), 6).await.unwrap() else {
            panic!("it has not happened")
        };
        let refused = store.commit(late.clone()).await.unwrap_err();

        assert!(matches!(refused, CommitError::Conflict(_)), "{refused}");
        // The second one may be late as well.
        let late = second.txn(create(b"2"), *b"late", 7).unwrap();
        let Settled::Never(third) = settle(&store, &second, 8).await.unwrap() else {
            panic!("it has not happened")
        };
        let done = attempt(&store, &third, create(b"3"), *b"yes", 9).await.unwrap();
        assert!(matches!(done, Outcome::Done(_)));
        assert!(store.commit(late).await.is_err());
        // Somebody who still has the first attempt is told what happened.
        let before = attempt(&store, &first(), create(b"4"), *b"no", 10).await.unwrap();
        assert!(matches!(before, Outcome::Before { .. }), "{before:?}");
    });
}

#[test]
fn settling_twice_at_once_agrees() {
    runtime().block_on(async {
        let store = MemoryStore::default();
        let one = settle(&store, &first(), 5).await.unwrap();
        let other = settle(&store, &first(), 6).await.unwrap();
        assert_eq!(one, other);
    });
}

/// Whatever is asked for, the result is unknown.
#[test]
fn store_that_answers_nothing_is_given_up() {
    let mut settling = Settling::new(first());
    let empty = crate::Read { revision: Revision(1), entry: None };
    for _ in 0..TRIES {
        let settled = match settling.step(5) {
            Step::Read(_) => settling.read(&empty).unwrap(),
            Step::Commit(_) => {
                settling.committed(Err(CommitError::Unknown("lost".to_owned()))).unwrap()
            }
        };
        assert_eq!(settled, None);
    }
    let gone = CommitError::Unavailable("gone".to_owned());
    let _ = settling.read(&empty).unwrap();
    assert_eq!(settling.committed(Err(gone.clone())), Err(gone));
}

#[test]
fn old_records_expire_and_only_a_leader_removes_them() {
    runtime().block_on(async {
        let store = MemoryStore::default();
        for n in 0..250_u8 {
            let attempt = Attempt::first(RequestId([n; 16]), Content::of(&[n]));
            let txn = Txn::unfenced().put(key(&format!("vms/{n}")), [n]);
            let txn = attempt.txn(txn, *b"", u64::from(n)).unwrap();
            store.commit(txn).await.unwrap();
        }
        let never = expire(&store, Term(1), 100).await.unwrap_err();
        assert!(matches!(never, RequestError::Commit(CommitError::Deposed { .. })), "{never}");
        let candidate = Candidate {
            name: "a".to_owned(),
            lease: Duration::from_secs(60),
            clock_error: Duration::ZERO,
        };
        let leadership = store.campaign(&candidate).await.unwrap();

        assert_eq!(expire(&store, leadership.term(), 210).await, Ok(210));
        assert_eq!(expire(&store, leadership.term(), 210).await, Ok(0));

        let left = store.list(&prefix(), PAGE_MAX, None).await.unwrap();
        assert_eq!(left.entries.len(), 40);
    });
}
