//! What every store does.

use std::collections::BTreeMap;
use std::time::Duration;

use store::request::{self, Attempt, Content, Outcome, RequestId, Settled};
use store::{
    Batch, Candidate, Change, CommitError, Conflict, Key, Limits, Lost, Notice, Page, Prefix,
    RenewError, Revision, Store, StoreError, TXN_PARTS_MAX, Term, Txn, VALUE_BYTES_MAX, Value,
    Watch, WatchError, keep,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::histories;
use crate::setup::{PATIENCE, Setup};

/// So many commits a slow watcher may be behind.
const FEW: usize = 64;

/// What a store is limited to in a test.
pub(crate) fn limits(test: &str) -> Limits {
    let usual = crate::usual();
    if test == "slow_watcher_is_told" { Limits { history_max: FEW, ..usual } } else { usual }
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(crate) fn below(text: &str) -> Prefix {
    Prefix::below(&key(text))
}

fn put(name: &str, value: &str) -> Txn {
    Txn::unfenced().put(key(name), value.as_bytes())
}

async fn read(store: &impl Store, name: &str) -> Option<String> {
    let entry = store.get(&key(name)).await.unwrap().entry;
    entry.map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
}

pub(crate) async fn commit(store: &impl Store, txn: Txn) -> Revision {
    store.commit(txn).await.unwrap()
}

/// The next commit that a watcher hears of.
pub(crate) async fn heard(watcher: &mut impl Watch) -> Result<Batch, WatchError> {
    loop {
        let next = timeout(PATIENCE, watcher.next()).await.expect("nothing is heard");
        if let Notice::Batch(batch) = next? {
            return Ok(Batch::clone(&batch));
        }
    }
}

/// What it hears, in short: `a=1` was put, and `a-` deleted.
fn short(batch: &Batch) -> Vec<String> {
    let of = |change: &Change| match change {
        Change::Put(entry) => format!("{}={}", entry.key, String::from_utf8_lossy(&entry.value)),
        Change::Delete(key) => format!("{key}-"),
    };
    batch.changes.iter().map(of).collect()
}

pub(crate) async fn objects_come_and_go<S: Setup>(setup: &S) {
    let store = setup.client();
    let nothing = store.get(&key("vms/a")).await.unwrap();
    assert_eq!(nothing.entry, None);

    let first = commit(&store, put("vms/a", "1")).await;
    assert!(first > nothing.revision);
    let second = commit(&store, put("vms/a", "2").put(key("vms/b"), *b"x")).await;
    assert!(second > first);
    let entry = setup.client().get(&key("vms/a")).await.unwrap().entry.unwrap();
    assert_eq!((entry.created, entry.modified), (first, second));
    assert_eq!(&*entry.value, b"2");

    let txn = Txn::unfenced().delete(key("vms/a")).if_unchanged(key("vms/a"), second);
    let third = commit(&store, txn).await;
    assert!(third > second);
    assert_eq!(read(&store, "vms/a").await, None);
    let again = commit(&store, put("vms/a", "3").if_absent(key("vms/a"))).await;
    let entry = store.get(&key("vms/a")).await.unwrap().entry.unwrap();
    assert_eq!((entry.created, entry.modified), (again, again), "it is another object");
    // Nothing to delete: nothing has changed.
    let same = commit(&store, Txn::unfenced().delete(key("vms/nobody"))).await;
    assert_eq!(same, again);
    let empty = commit(&store, Txn::unfenced().put(key("vms/empty"), *b"")).await;
    let entry = store.get(&key("vms/empty")).await.unwrap().entry.unwrap();
    assert_eq!((&*entry.value, entry.modified), (&b""[..], empty));
}

pub(crate) async fn conflict_names_the_object<S: Setup>(setup: &S) {
    let store = setup.client();
    let first = commit(&store, put("a", "1").put(key("b"), *b"1")).await;
    let newest = commit(&store, put("b", "2")).await;

    let refused = |key: &str, expected, found| {
        let key = Key::new(key).unwrap();
        Err(CommitError::Conflict(Conflict { key, expected, found, revision: newest }))
    };
    let txn = put("c", "3").if_unchanged(key("a"), first).if_unchanged(key("b"), first);
    assert_eq!(store.commit(txn).await, refused("b", Some(first), Some(newest)));
    let txn = put("c", "3").if_absent(key("c")).if_absent(key("a"));
    assert_eq!(store.commit(txn).await, refused("a", None, Some(first)));
    let txn = put("c", "3").if_unchanged(key("d"), first).if_absent(key("a"));
    assert_eq!(store.commit(txn).await, refused("d", Some(first), None));
    assert_eq!(read(&store, "c").await, None, "nothing of it is there");
    // A key that is compared and deleted.
    let txn = Txn::unfenced().if_unchanged(key("b"), newest).delete(key("b")).delete(key("a"));
    commit(&store, txn).await;
    assert_eq!(read(&store, "a").await, None);
}

pub(crate) async fn largest_transaction_fits<S: Setup>(setup: &S) {
    let store = setup.client();
    let name = |n: usize| key(&format!("objects-with-a-name-of-some-length/{n:03}"));
    let many = (0..TXN_PARTS_MAX)
        .fold(Txn::unfenced(), |txn, n| txn.if_absent(name(n)).put(name(n), vec![1; 10_000]));
    let revision = commit(&store, many.clone()).await;
    let CommitError::Conflict(conflict) = store.commit(many).await.unwrap_err() else {
        panic!("all are there")
    };
    assert_eq!((conflict.key, conflict.found), (name(0), Some(revision)));
    let large = Txn::unfenced().put(key("large"), vec![2; VALUE_BYTES_MAX]);
    commit(&store, large).await;
    let too_large = Txn::unfenced().put(key("large"), vec![2; VALUE_BYTES_MAX + 1]);
    let refused = store.commit(too_large).await;
    assert!(matches!(refused, Err(CommitError::Invalid(_))), "{refused:?}");
    assert_eq!(store.get(&key("large")).await.unwrap().entry.unwrap().value.len(), VALUE_BYTES_MAX);
}

async fn rest(store: &impl Store, prefix: &Prefix, limit: usize, first: Page) -> Vec<Key> {
    let mut page = first;
    let mut keys = Vec::new();
    loop {
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
        let Some(token) = page.next else { return keys };
        assert_eq!(token.revision, page.revision);
        page = store.list(prefix, limit, Some(&token)).await.unwrap();
    }
}

pub(crate) async fn pages_show_one_revision_while_it_changes<S: Setup>(setup: &S) {
    let store = setup.client();
    let prefix = below("vms");
    for n in 0..50 {
        commit(&store, put(&format!("vms/{n:03}"), "1").put(key("vmsx"), *b"beside")).await;
    }
    let before: Vec<_> = (0..50).map(|n| key(&format!("vms/{n:03}"))).collect();

    let first = store.list(&prefix, 7, None).await.unwrap();
    // Others write while the pages are read.
    let writer = setup.client();
    let writing = tokio::spawn(async move {
        for n in 0..50 {
            let txn = put(&format!("vms/{n:03}b"), "2").delete(key(&format!("vms/{n:03}")));
            commit(&writer, txn).await;
        }
    });
    assert_eq!(rest(&store, &prefix, 7, first).await, before);
    writing.await.unwrap();

    let page = store.list(&prefix, 50, None).await.unwrap();
    assert_eq!(page.next, None, "exactly as many as asked for");
    let after: Vec<_> = (0..50).map(|n| key(&format!("vms/{n:03}b"))).collect();
    assert_eq!(rest(&store, &prefix, 50, page).await, after);
    let all = store.list(&Prefix::all(), 256, None).await.unwrap();
    assert_eq!(all.entries.len(), 51);
    assert_eq!(store.list(&prefix, 0, None).await, Err(StoreError::PageSize(0)));
    let none = store.list(&below("nothing"), 9, None).await.unwrap();
    assert_eq!((none.entries, none.next), (vec![], None));
}

pub(crate) async fn page_of_a_forgotten_revision_is_refused<S: Setup>(setup: &S) {
    let store = setup.client();
    commit(&store, put("vms/a", "1").put(key("vms/b"), *b"1")).await;
    let first = store.list(&below("vms"), 1, None).await.unwrap();
    commit(&store, put("vms/a", "2")).await;
    let newest = commit(&store, put("vms/b", "2")).await;

    store.compact(newest).await.unwrap();

    let late = store.list(&below("vms"), 1, first.next.as_ref()).await.unwrap_err();
    let StoreError::Compacted { asked, oldest } = late else { panic!("{late}") };
    assert_eq!(asked, first.revision);
    assert!(oldest > asked && oldest <= newest);
    // What is there is there, and at the newest revision pages still follow.
    let page = store.list(&below("vms"), 1, None).await.unwrap();
    assert_eq!(rest(&store, &below("vms"), 1, page).await, [key("vms/a"), key("vms/b")]);
    store.compact(newest).await.unwrap();
    let future = store.compact(Revision(newest.0 + 1000)).await.unwrap_err();
    assert!(matches!(future, StoreError::Future { .. }), "{future}");
}

pub(crate) async fn watcher_hears_whole_commits_in_order<S: Setup>(setup: &S) {
    let store = setup.client();
    let begun = commit(&store, put("vms/a", "1")).await;
    let mut early = store.watch(&below("vms"), begun).await.unwrap();
    commit(&store, put("vms/c", "2").put(key("vms/b"), *b"2").put(key("hosts/a"), *b"2")).await;
    commit(&store, put("hosts/a", "3")).await;
    let last = commit(&store, put("vms/a", "4").delete(key("vms/b")).delete(key("vms/x"))).await;

    // One that comes later, and one to all of it.
    let mut late = store.watch(&below("vms"), begun).await.unwrap();
    let mut all = store.watch(&Prefix::all(), begun).await.unwrap();

    for watcher in [&mut early, &mut late] {
        let first = heard(watcher).await.unwrap();
        assert_eq!(short(&first), ["vms/b=2", "vms/c=2"]);
        let second = heard(watcher).await.unwrap();
        assert_eq!(short(&second), ["vms/a=4", "vms/b-"]);
        assert!(first.revision < second.revision);
        assert_eq!(second.revision, last);
        let Change::Put(entry) = &second.changes[0] else { panic!("{second:?}") };
        assert_eq!((entry.created, entry.modified), (begun, last));
    }
    assert_eq!(short(&heard(&mut all).await.unwrap()), ["hosts/a=2", "vms/b=2", "vms/c=2"]);
    assert_eq!(short(&heard(&mut all).await.unwrap()), ["hosts/a=3"]);
    assert_eq!(short(&heard(&mut all).await.unwrap()), ["vms/a=4", "vms/b-"]);
    // What comes now is heard too.
    commit(&store, put("vms/d", "5")).await;
    assert_eq!(short(&heard(&mut early).await.unwrap()), ["vms/d=5"]);
}

pub(crate) async fn watcher_hears_all_that_many_write<S: Setup>(setup: &S) {
    const WRITERS: usize = 4;
    const EACH: usize = 50;
    let store = setup.client();
    let mut watcher = store.watch(&below("log"), start(&store).await).await.unwrap();
    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        let store = setup.client();
        tasks.spawn(async move {
            let mut revisions = Vec::new();
            for n in 0..EACH {
                let txn = put(&format!("log/{writer}"), &n.to_string());
                revisions.push((commit(&store, txn).await, writer, n));
            }
            revisions
        });
    }
    let mut written: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    written.sort_unstable();
    for (revision, writer, n) in written {
        let batch = heard(&mut watcher).await.unwrap();
        assert_eq!((batch.revision, short(&batch)), (revision, vec![format!("log/{writer}={n}")]));
    }
}

pub(crate) async fn watcher_of_the_past_or_the_future_is_refused<S: Setup>(setup: &S) {
    let store = setup.client();
    let old = commit(&store, put("a", "1")).await;
    let gone = commit(&store, Txn::unfenced().delete(key("a"))).await;
    let newest = commit(&store, put("b", "2")).await;
    store.compact(gone).await.unwrap();

    let refused = store.watch(&Prefix::all(), old).await.map(drop).unwrap_err();
    let WatchError::Compacted { after, oldest } = refused else { panic!("{refused}") };
    assert_eq!(after, old);
    assert!(oldest > old && oldest <= gone);
    let refused = store.watch(&Prefix::all(), Revision(newest.0 + 1000)).await.map(drop);
    assert!(matches!(refused, Err(WatchError::Future { .. })), "{refused:?}");
    let mut watcher = store.watch(&Prefix::all(), gone).await.unwrap();
    assert_eq!(short(&heard(&mut watcher).await.unwrap()), ["b=2"]);
}

pub(crate) async fn slow_watcher_is_told<S: Setup>(setup: &S) {
    let store = setup.client();
    let mut slow = store.watch(&below("log"), start(&store).await).await.unwrap();
    let mut awake = store.watch(&below("log"), start(&store).await).await.unwrap();
    let mut written = Vec::new();
    for n in 0..FEW * 4 {
        written.push(commit(&store, put("log/a", &n.to_string())).await);
        assert_eq!(heard(&mut awake).await.unwrap().revision, written[n], "it keeps up");
    }

    let mut told = Vec::new();
    let end = loop {
        match heard(&mut slow).await {
            Ok(batch) => told.push(batch.revision),
            Err(error) => break error,
        }
    };
    // What it heard has no gap, and it knows how far it came.
    assert_eq!(told[..], written[..told.len()]);
    assert!(told.len() < written.len());
    let WatchError::Slow { heard: last } = end else { panic!("{end}") };
    assert!(told.last().is_none_or(|told| *told == last), "{last} after {told:?}");
    assert!(heard(&mut slow).await.is_err(), "and nothing more");
}

async fn start(store: &impl Store) -> Revision {
    store.get(&key("nothing")).await.unwrap().revision
}

pub(crate) fn candidate<S: Setup>(name: &str) -> Candidate {
    Candidate { name: name.to_owned(), lease: S::LEASE, clock_error: Duration::from_millis(1) }
}

pub(crate) async fn one_leads_at_a_time<S: Setup>(setup: &S) {
    let (a, b) = (setup.client(), setup.client());
    assert_eq!(a.leader().await.unwrap(), None);
    let long = |name| Candidate { lease: Duration::from_secs(60), ..candidate::<S>(name) };
    let first = a.campaign(&long("a")).await.unwrap();
    assert!(first.tenure().may_decide(store::BootTime::now()));
    let leader = b.leader().await.unwrap().unwrap();
    assert_eq!((leader.term, &*leader.name), (first.term(), "a"));

    let waiting = tokio::spawn(async move {
        let second = b.campaign(&long("b")).await.unwrap();
        (b, second)
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "a leads");
    let (term, tenure) = (first.term(), first.tenure());
    a.resign(first).await.unwrap();
    let (b, second) = timeout(PATIENCE, waiting).await.expect("a has resigned").unwrap();

    assert!(second.term() > term);
    assert!(!tenure.may_decide(store::BootTime::now()));
    let refused = a.commit(Txn::under(term).put(key("x"), *b"late")).await.unwrap_err();
    assert_eq!(refused, CommitError::Deposed { term, current: Some(second.term()) });
    commit(&b, Txn::under(second.term()).put(key("x"), *b"b")).await;
    let short = Candidate { clock_error: S::LEASE, ..candidate::<S>("c") };
    assert!(matches!(a.campaign(&short).await, Err(StoreError::Candidate(_))));
    let name = Candidate { name: "n".repeat(1000), ..candidate::<S>("c") };
    assert!(matches!(a.campaign(&name).await, Err(StoreError::Candidate(_))));
}

pub(crate) async fn paused_leader_writes_nothing<S: Setup>(setup: &S) {
    let (a, b) = (setup.client(), setup.client());
    let first = a.campaign(&candidate::<S>("a")).await.unwrap();
    let under = |term, value: &str| Txn::under(term).put(key("x"), value.as_bytes());
    commit(&a, under(first.term(), "a")).await;

    // It renews nothing, as if it stood still; the other one has to wait for the end of its lease.
    let second =
        timeout(PATIENCE, b.campaign(&candidate::<S>("b"))).await.expect("it ends").unwrap();

    assert!(second.term() > first.term());
    assert!(!first.tenure().may_decide(store::BootTime::now()), "it stopped before");
    let late = a.commit(under(first.term(), "late")).await.unwrap_err();
    let CommitError::Deposed { term, .. } = late else { panic!("{late}") };
    assert_eq!(term, first.term());
    let never = Term(second.term().0 + 1_000_000);
    assert!(matches!(a.commit(under(never, "x")).await, Err(CommitError::Deposed { .. })));
    assert_eq!(read(&b, "x").await.as_deref(), Some("a"));
    let deposed = RenewError::Deposed(first.term());
    assert_eq!(a.renew(&first).await, Err(deposed));
    // A resignation that comes late deposes nobody.
    a.resign(first).await.unwrap();
    commit(&b, under(second.term(), "b")).await;
    assert_eq!(b.leader().await.unwrap().unwrap().term, second.term());
}

pub(crate) async fn kept_lease_is_kept_and_its_end_is_noticed<S: Setup>(setup: &S) {
    let (a, b) = (setup.client(), setup.client());
    let first = a.campaign(&candidate::<S>("a")).await.unwrap();
    let tenure = first.tenure();
    let term = first.term();
    let begun = tenure.until();
    let other = a.clone();
    let keeping = tokio::spawn(async move {
        let lost = keep(&other, &first).await;
        (first, lost)
    });
    // Until it has been renewed for three times its length.
    let goal = begun.after(S::LEASE * 3);
    timeout(PATIENCE, async {
        while tenure.until() < goal {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("it is renewed");
    assert_eq!(b.leader().await.unwrap().unwrap().term, term);

    // Whoever keeps it stands still, and another one leads.
    keeping.abort();
    let second =
        timeout(PATIENCE, b.campaign(&candidate::<S>("b"))).await.expect("it ends").unwrap();
    assert!(second.term() > term);
    b.resign(second).await.unwrap();
    let third = a.campaign(&candidate::<S>("c")).await.unwrap();
    // One that is lost is noticed by whoever keeps it.
    tokio::time::sleep(S::LEASE + Duration::from_millis(1500)).await;
    let fourth =
        timeout(PATIENCE, b.campaign(&candidate::<S>("d"))).await.expect("it ends").unwrap();
    let lost = timeout(PATIENCE, keep(&a, &third)).await.expect("it is noticed");
    let expected =
        [Lost::Deposed(third.term()), Lost::Expired { term: third.term(), lease: third.lease() }];
    assert!(expected.contains(&lost), "{lost}");
    assert!(fourth.term() > third.term());
}

/// Commits that are given up at some moment: afterwards it is certain whether each has happened.
pub(crate) async fn dropped_commit_is_settled<S: Setup>(setup: &S) {
    let (store, other) = (setup.client(), setup.client());
    for n in 0_u8..40 {
        let attempt = Attempt::first(RequestId([n; 16]), Content::of(&[n]));
        let name = key(&format!("vms/{n}"));
        let txn = Txn::unfenced().put(name.clone(), [n]);
        let time = Duration::from_micros(fastrand::u64(0..1500));
        // Whatever came of it is not looked at.
        let _ = timeout(time, request::attempt(&store, &attempt, txn.clone(), [n], 0)).await;

        let settled = request::settle(&other, &attempt, 0).await.unwrap();

        match settled {
            Settled::Happened { revision, answer } => {
                let entry = other.get(&name).await.unwrap().entry.unwrap();
                assert_eq!(entry.modified, revision);
                assert_eq!(&*answer, [n]);
            }
            Settled::Never(next) => {
                assert_eq!(other.get(&name).await.unwrap().entry, None);
                let done = request::attempt(&store, &next, txn, [n], 0).await.unwrap();
                assert!(matches!(done, Outcome::Done(_)), "{done:?}");
            }
        }
    }
    let mut all = BTreeMap::<Key, Value>::new();
    let page = other.list(&below("vms"), 100, None).await.unwrap();
    for entry in page.entries {
        assert_eq!(entry.created, entry.modified, "{} is written once", entry.key);
        all.insert(entry.key, entry.value);
    }
    assert_eq!(all.len(), 40);
}

/// Several clients that all do the same requests, at the same time: each is done once, and all are told the same.
pub(crate) async fn requests_are_done_once_by_many<S: Setup>(setup: &S) {
    const REQUESTS: u8 = 20;
    commit(&setup.client(), put("count", "0")).await;
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let store = setup.client();
        tasks.spawn(async move {
            let mut answers = Vec::new();
            for n in 0..REQUESTS {
                answers.push(count(&store, n).await);
            }
            answers
        });
    }
    let answers = tasks.join_all().await;
    assert_eq!(read(&setup.client(), "count").await, Some(REQUESTS.to_string()));
    assert!(answers.iter().all(|each| *each == answers[0]), "{answers:?}");
}

/// Adds one, once; the sum then.
async fn count(store: &impl Store, n: u8) -> Value {
    let mut attempt = Attempt::first(RequestId([n; 16]), Content::of(&[n]));
    loop {
        let entry = store.get(&key("count")).await.unwrap().entry.unwrap();
        let count: u64 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
        let sum: Value = (count + 1).to_string().into_bytes().into();
        let txn = Txn::unfenced()
            .if_unchanged(key("count"), entry.modified)
            .put(key("count"), sum.clone());
        match request::attempt(store, &attempt, txn, sum.clone(), 0).await {
            Ok(Outcome::Done(_)) => return sum,
            Ok(Outcome::Before { answer, .. }) => return answer,
            Ok(Outcome::Again(next)) => attempt = next,
            Err(request::RequestError::Commit(CommitError::Conflict(_))) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(crate) async fn random_histories_are_linearisable<S: Setup>(setup: &S) {
    for round in 0..5 {
        let clients = (0..5).map(|_| setup.client()).collect();
        let history = histories::run(clients, 60, &format!("round{round}")).await;
        history.check(&setup.client()).await;
    }
}
