//! The machine alone: versions, pages, history, marks, terms.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::entry::Value;
use crate::txn::TxnError;

const NOW: BootTime = BootTime(1_000_000_000);

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn machine() -> Machine {
    Machine::new(Limits::default())
}

fn put(name: &str, value: &str) -> Txn {
    Txn::unfenced().put(key(name), value.as_bytes())
}

fn candidate() -> Candidate {
    Candidate {
        name: "a".to_owned(),
        lease: Duration::from_secs(2),
        clock_error: Duration::from_millis(10),
    }
}

fn texts(page: &Page) -> Vec<(String, String)> {
    let text =
        |entry: &Entry| (entry.key.to_string(), String::from_utf8_lossy(&entry.value).into_owned());
    page.entries.iter().map(text).collect()
}

#[test]
fn all_writes_or_none() {
    let mut machine = machine();
    machine.commit(NOW, &put("a", "1")).unwrap();
    let before = machine.clone();

    let txn = put("a", "2").put(key("b"), *b"2").if_absent(key("a"));
    let refused = machine.commit(NOW, &txn);

    let conflict =
        Conflict { key: key("a"), expected: None, found: Some(Revision(1)), revision: Revision(1) };
    assert_eq!(refused, Err(CommitError::Conflict(conflict)));
    assert_eq!(machine, before);
    assert_eq!(
        machine.commit(NOW, &Txn::unfenced()),
        Err(CommitError::Invalid(TxnError::NoWrites))
    );
}

#[test]
fn object_that_came_again_is_another_one() {
    let mut machine = machine();
    machine.commit(NOW, &put("a", "1")).unwrap();
    machine.commit(NOW, &put("a", "2")).unwrap();
    let entry = machine.get(&key("a"), Revision(2)).entry.unwrap();
    assert_eq!((entry.created, entry.modified), (Revision(1), Revision(2)));
    machine.commit(NOW, &Txn::unfenced().delete(key("a"))).unwrap();
    machine.commit(NOW, &put("a", "3")).unwrap();

    let entry = machine.get(&key("a"), Revision(4)).entry.unwrap();
    assert_eq!((entry.created, entry.modified), (Revision(4), Revision(4)));
    assert_eq!(machine.get(&key("a"), Revision(3)).entry, None);
}

#[test]
fn nothing_to_change_makes_no_revision() {
    let mut machine = machine();
    machine.commit(NOW, &put("a", "1")).unwrap();

    let revision = machine.commit(NOW, &Txn::unfenced().delete(key("b"))).unwrap();

    assert_eq!(revision, Revision(1));
    assert_eq!(machine.commits_after(Revision::ZERO).count(), 1);
}

#[test]
fn pages_show_one_revision() {
    let mut machine = machine();
    let names = ["vms/a", "vms/b", "vms/c", "vms2/a", "vms"];
    let txn = names.into_iter().fold(Txn::unfenced(), |txn, name| txn.put(key(name), *b"1"));
    machine.commit(NOW, &txn).unwrap();
    let vms = Prefix::below(&key("vms"));

    let first = machine.list(&vms, 2, None, machine.revision()).unwrap();
    let txn = put("vms/b2", "2").put(key("vms/c"), *b"2").delete(key("vms/a"));
    machine.commit(NOW, &txn).unwrap();
    let second = machine.list(&vms, 2, first.next.as_ref(), machine.revision()).unwrap();

    let pair = |name: &str| (name.to_owned(), "1".to_owned());
    assert_eq!(texts(&first), [pair("vms/a"), pair("vms/b")]);
    assert_eq!(texts(&second), [pair("vms/c")]);
    assert_eq!(second.next, None);
    let now = machine.list(&vms, 3, None, machine.revision()).unwrap();
    assert_eq!(now.entries.len(), 3);
    assert_eq!(now.next, None, "exactly as many as asked for");
    for limit in [0, PAGE_MAX + 1] {
        let refused = machine.list(&vms, limit, None, machine.revision());
        assert_eq!(refused, Err(StoreError::PageSize(limit)));
    }
}

#[test]
fn what_is_forgotten_cannot_be_read() {
    let mut machine = machine();
    for value in ["1", "2", "3"] {
        machine.commit(NOW, &put("a", value)).unwrap();
    }
    machine.commit(NOW, &Txn::unfenced().delete(key("a"))).unwrap();
    machine.commit(NOW, &put("b", "5")).unwrap();

    machine.compact(Revision(2)).unwrap();

    let token = |revision| PageToken { revision, after: key("a0") };
    let all = Prefix::all();
    let old = machine.list(&all, 9, Some(&token(Revision(1))), Revision(5));
    let error = StoreError::Compacted { asked: Revision(1), oldest: Revision(2) };
    assert_eq!(old, Err(error));
    assert!(machine.list(&all, 9, Some(&token(Revision(2))), Revision(5)).is_ok());
    assert_eq!(machine.get(&key("a"), Revision(3)).entry.unwrap().modified, Revision(3));
    assert_eq!(machine.change(&all, Revision(1), Revision(5)), Err(Revision(2)));
    machine.compact(Revision(5)).unwrap();
    assert_eq!(machine.commits_after(Revision::ZERO).count(), 0);
    let future = StoreError::Future { asked: Revision(6), newest: Revision(5) };
    assert_eq!(machine.compact(Revision(6)), Err(future));
}

#[test]
fn history_is_bounded_by_count_and_bytes() {
    let limits = Limits { history_max: 16, history_bytes_max: 1000, ..Limits::default() };
    let mut machine = Machine::new(limits);
    let commit = |machine: &mut Machine, value: &[u8]| {
        machine.commit(NOW, &Txn::unfenced().put(key("a"), value)).unwrap();
        if let Some(upto) = machine.excess() {
            machine.compact(upto).unwrap();
        }
        machine.commits_after(machine.compacted()).count()
    };
    for _ in 0..100 {
        assert!(commit(&mut machine, b"1") <= 18);
    }
    for _ in 0..100 {
        commit(&mut machine, &[0; 400]);
    }
    assert!(commit(&mut machine, &[0; 400]) <= 2);
    assert!(machine.get(&key("a"), machine.revision()).entry.is_some());
}

#[test]
fn full_store_takes_what_makes_it_smaller() {
    let mut machine = Machine::new(Limits { bytes_max: 100, ..Limits::default() });
    machine.commit(NOW, &put("a", &"x".repeat(90))).unwrap();
    let before = machine.clone();

    let refused = machine.commit(NOW, &put("b", "0123456789"));

    assert!(matches!(refused, Err(CommitError::Full(_))), "{refused:?}");
    assert_eq!(machine, before);
    machine.commit(NOW, &put("a", "x")).unwrap();
    machine.commit(NOW, &put("b", "0123456789")).unwrap();
}

#[test]
fn deposed_leader_writes_nothing() {
    let mut machine = machine();
    let first = machine.campaign(NOW, &candidate()).unwrap();
    let under = |term| Txn::under(term).put(key("a"), *b"1");
    machine.commit(NOW, &under(first)).unwrap();
    let held = machine.campaign(NOW, &candidate()).unwrap_err();
    let over = held.until;
    assert_eq!(over, NOW.after(Duration::from_secs(2)));

    // Its lease is over, and nobody else leads yet.
    let deposed = CommitError::Deposed { term: first, current: None };
    assert_eq!(machine.commit(over, &under(first)), Err(deposed));
    assert!(!machine.renew(over, first));
    let second = machine.campaign(over, &candidate()).unwrap();
    assert!(second > first);
    let deposed = CommitError::Deposed { term: first, current: Some(second) };
    assert_eq!(machine.commit(over, &under(first)), Err(deposed));
    machine.resign(first);
    assert_eq!(machine.leader(over).unwrap().term, second, "nobody resigns for another one");
    machine.commit(over, &under(second)).unwrap();
    let never = Term(second.0 + 1);
    assert!(machine.commit(over, &under(never)).is_err());
}

#[test]
fn restored_machine_refuses_what_cannot_be() {
    let entry = |name: &str, created, modified| Entry {
        key: key(name),
        value: Value::from(*b"v"),
        created: Revision(created),
        modified: Revision(modified),
    };
    let put = |entry| Change::Put(entry);
    let batch = |revision, changes| Batch { revision: Revision(revision), changes };
    let restore =
        |base, log| Machine::restore(Limits::default(), Term(1), Revision(5), base, log).map(drop);
    let good =
        vec![batch(6, vec![put(entry("a", 2, 6))]), batch(7, vec![Change::Delete(key("a"))])];
    assert_eq!(restore(vec![entry("a", 2, 4)], good), Ok(()));
    for (base, log) in [
        (vec![entry("a", 2, 6)], vec![]),
        (vec![entry("a", 3, 2)], vec![]),
        (vec![entry("a", 0, 2)], vec![]),
        (vec![entry("a", 2, 2), entry("a", 2, 3)], vec![]),
        (vec![], vec![batch(7, vec![put(entry("a", 7, 7))])]),
        (vec![], vec![batch(6, vec![])]),
        (vec![], vec![batch(6, vec![put(entry("a", 5, 6))])]),
        (vec![], vec![batch(6, vec![put(entry("a", 6, 5))])]),
        (vec![], vec![batch(6, vec![Change::Delete(key("a"))])]),
        (vec![entry("a", 2, 2)], vec![batch(6, vec![put(entry("a", 6, 6))])]),
    ] {
        let refused = restore(base.clone(), log.clone());
        assert!(matches!(refused, Err(StoreError::Corrupt(_))), "{base:?} {log:?}: {refused:?}");
    }
}

/// What happens to a machine.
#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<(u8, Option<u8>)>),
    Compact(u8),
    Mark,
    RollBack,
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0_u8..5, prop::option::of(any::<u8>()));
    prop_oneof![
        6 => prop::collection::vec(write, 1..4).prop_map(Step::Commit),
        1 => any::<u8>().prop_map(Step::Compact),
        1 => Just(Step::Mark),
        1 => Just(Step::RollBack),
    ]
}

/// How all objects were at each revision: the slow way to remember it.
type Past = BTreeMap<Revision, BTreeMap<Key, Value>>;

fn txn_of(writes: &[(u8, Option<u8>)]) -> Txn {
    writes.iter().fold(Txn::unfenced(), |txn, (name, value)| {
        let key = key(&format!("k/{name}"));
        if txn.writes.iter().any(|write| *write.key() == key) {
            return txn;
        }
        match value {
            Some(value) => txn.put(key, [*value]),
            None => txn.delete(key),
        }
    })
}

fn apply(past: &mut Past, revision: Revision, txn: &Txn) {
    let mut objects = past.last_key_value().map(|(_, now)| now.clone()).unwrap_or_default();
    for write in &txn.writes {
        match write {
            Write::Put(key, value) => drop(objects.insert(key.clone(), value.clone())),
            Write::Delete(key) => drop(objects.remove(key)),
        }
    }
    past.entry(revision).or_insert(objects);
}

fn check(machine: &Machine, past: &Past) {
    for (revision, objects) in past.range(machine.compacted()..) {
        let token = PageToken { revision: *revision, after: key("0") };
        let page = machine.list(&Prefix::all(), 256, Some(&token), machine.revision()).unwrap();
        let pairs = page.entries.into_iter().map(|entry| (entry.key, entry.value));
        assert_eq!(pairs.collect::<BTreeMap<_, _>>(), *objects, "at {revision}");
    }
}

proptest! {
    /// Random commits, compactions and roll-backs: all that is not forgotten reads as it was, the machine that is restored from what
    /// a file would have is the same.
    #[test]
    fn versions_are_what_they_were(steps in prop::collection::vec(step(), 1..60)) {
        let mut machine = machine();
        let mut past = Past::from([(Revision::ZERO, BTreeMap::new())]);
        let mut mark = machine.mark();
        for step in steps {
            match step {
                Step::Commit(writes) => {
                    let txn = txn_of(&writes);
                    let revision = machine.commit(NOW, &txn).unwrap();
                    apply(&mut past, revision, &txn);
                }
                Step::Compact(part) => {
                    let upto = machine.revision().0 * u64::from(part) / 255;
                    machine.compact(Revision(upto)).unwrap();
                    mark = machine.mark();
                }
                Step::Mark => mark = machine.mark(),
                Step::RollBack => {
                    machine.roll_back(&mark);
                    past.retain(|revision, _| *revision <= mark.revision());
                }
            }
            check(&machine, &past);
        }
        let compacted = machine.compacted();
        let at = PageToken { revision: compacted, after: key("0") };
        let base = machine.list(&Prefix::all(), 256, Some(&at), machine.revision()).unwrap().entries;
        let log = machine.commits_after(compacted).map(|batch| Batch::clone(batch)).collect();
        let restored = Machine::restore(Limits::default(), machine.term(), compacted, base, log);
        prop_assert_eq!(restored, Ok(machine));
    }
}
