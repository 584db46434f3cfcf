//! Is there one order of what clients were answered that explains all of it?
//!
//! In general that is a search. Here the store has said itself in which order all was: each answer names a revision. So that order is checked, and it
//! proves the rest: (1) the log of all commits, read afterwards, has each commit that was answered, at its revision, as it was written, and
//! no commit that nobody made, (2) each comparison and each read is true of the state at its revision, (3) nothing that began after the
//! answer to something else is before it.

use std::collections::BTreeMap;

use store::{Batch, Change, Compare, Key, Revision, Txn, Value, Write};

/// When something began or ended, by a counter that all clients share.
pub(crate) type Tick = u64;

/// What a client asked.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Commit(Txn),
    Get(Key),
    /// All objects below the history's prefix.
    List,
}

/// What it was answered.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Committed(Revision),
    /// Refused by a comparison with this key, which had this revision.
    Conflict(Key, Option<Revision>, Revision),
    /// Nothing was written.
    NotDone,
    /// Perhaps.
    Unknown,
    Got(Revision, Option<(Value, Revision)>),
    Listed(Revision, Vec<(Key, Value, Revision)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) begun: Tick,
    /// None: it may still happen.
    pub(crate) ended: Option<Tick>,
    pub(crate) asked: Asked,
    pub(crate) answer: Answer,
}

/// All objects: value and revision.
type State = BTreeMap<Key, (Value, Revision)>;

/// A place in the order: a commit is before the reads of its revision.
type Place = (Revision, bool);

/// Finds what no order explains.
pub(crate) fn check(
    first: Revision,
    log: &[Batch],
    operations: &[Operation],
) -> Result<(), String> {
    let states = states(first, log)?;
    let mut written: BTreeMap<Revision, &Batch> =
        log.iter().map(|batch| (batch.revision, batch)).collect();
    let mut placed: Vec<(Place, &Operation)> = Vec::new();
    for operation in operations {
        if let Some(place) = place(operation, &states, &mut written)? {
            placed.push((place, operation));
        }
    }
    // What is left was made by somebody who was not answered.
    for operation in operations.iter().filter(|one| matches!(one.answer, Answer::Unknown)) {
        let Asked::Commit(txn) = &operation.asked else { continue };
        let made =
            written.iter().find(|(_, batch)| same(txn, batch)).map(|(revision, _)| *revision);
        if let Some(revision) = made {
            holds(txn, before(&states, revision))?;
            written.remove(&revision);
            placed.push(((revision, false), operation));
        }
    }
    if let Some(revision) = written.keys().next() {
        return Err(format!("nobody made commit {revision}"));
    }
    in_time(placed)
}

fn states(first: Revision, log: &[Batch]) -> Result<BTreeMap<Revision, State>, String> {
    let mut states = BTreeMap::from([(first, State::new())]);
    let (mut newest, mut state) = (first, State::new());
    for batch in log {
        if batch.revision <= newest {
            return Err(format!("commit {} after {newest}", batch.revision));
        }
        newest = batch.revision;
        for change in &batch.changes {
            match change {
                Change::Put(entry) => {
                    state.insert(entry.key.clone(), (entry.value.clone(), entry.modified));
                }
                Change::Delete(key) => {
                    let gone = state.remove(key);
                    gone.ok_or_else(|| format!("{key} deleted twice at {newest}"))?;
                }
            }
        }
        states.insert(newest, state.clone());
    }
    Ok(states)
}

fn at(states: &BTreeMap<Revision, State>, revision: Revision) -> Result<&State, String> {
    let known = states.range(..=revision).next_back();
    known.map(|(_, state)| state).ok_or_else(|| format!("{revision} is before the history"))
}

fn before(states: &BTreeMap<Revision, State>, revision: Revision) -> &State {
    states.range(..revision).next_back().map(|(_, state)| state).unwrap()
}

fn holds(txn: &Txn, state: &State) -> Result<(), String> {
    let fails = |compare: &&Compare| {
        state.get(compare.key()).map(|(_, revision)| *revision) != compare.expected()
    };
    match txn.compares.iter().find(fails) {
        Some(compare) => Err(format!("{compare:?} did not hold, and {txn:?} was committed")),
        None => Ok(()),
    }
}

/// Whether a commit is of this transaction: values are unique. Deletions of nothing are not seen.
fn same(txn: &Txn, batch: &Batch) -> bool {
    let put = |key: &Key, value: &Value| {
        let is = |change: &Change| matches!(change, Change::Put(entry) if entry.key == *key && entry.value == *value);
        batch.changes.iter().any(is)
    };
    let is_asked = |change: &Change| {
        let write = txn.writes.iter().find(|write| write.key() == change.key());
        matches!(
            (change, write),
            (Change::Put(_), Some(Write::Put(..))) | (Change::Delete(_), Some(Write::Delete(_)))
        )
    };
    let all_put = txn.writes.iter().all(|write| match write {
        Write::Put(key, value) => put(key, value),
        Write::Delete(_) => true,
    });
    all_put && batch.changes.iter().all(is_asked)
}

/// Checks an answer against the states, and says where in the order it is. None where it says nothing.
fn place(
    operation: &Operation,
    states: &BTreeMap<Revision, State>,
    written: &mut BTreeMap<Revision, &Batch>,
) -> Result<Option<Place>, String> {
    let wrong = |what: &str| Err(format!("{what}: {operation:?}"));
    match (&operation.asked, &operation.answer) {
        (_, Answer::Unknown | Answer::NotDone) => Ok(None),
        (Asked::Commit(txn), Answer::Committed(revision)) => {
            if let Some(batch) = written.get(revision).filter(|batch| same(txn, batch)) {
                holds(txn, before(states, batch.revision))?;
                written.remove(revision);
                return Ok(Some((*revision, false)));
            }
            // It had nothing to change.
            let state = at(states, *revision)?;
            holds(txn, state)?;
            let nothing =
                |write: &Write| matches!(write, Write::Delete(key) if !state.contains_key(key));
            if !txn.writes.iter().all(nothing) {
                return wrong("a commit that is not there");
            }
            Ok(Some((*revision, true)))
        }
        (Asked::Commit(txn), Answer::Conflict(key, found, revision)) => {
            let state = at(states, *revision)?;
            let there = state.get(key).map(|(_, revision)| *revision);
            let compare = txn.compares.iter().find(|compare| compare.key() == key);
            if there != *found || compare.is_none_or(|compare| compare.expected() == *found) {
                return wrong("a conflict that was none");
            }
            Ok(Some((*revision, true)))
        }
        (Asked::Get(key), Answer::Got(revision, found)) => {
            if at(states, *revision)?.get(key) != found.as_ref() {
                return wrong("a read of something else");
            }
            Ok(Some((*revision, true)))
        }
        (Asked::List, Answer::Listed(revision, found)) => {
            let found = found.iter().map(|(key, value, at)| (key.clone(), (value.clone(), *at)));
            if *at(states, *revision)? != found.collect::<State>() {
                return wrong("a list of something else");
            }
            Ok(Some((*revision, true)))
        }
        _ => wrong("an answer to something else"),
    }
}

/// Whether the order keeps to time.
fn in_time(mut placed: Vec<(Place, &Operation)>) -> Result<(), String> {
    placed.sort_by_key(|(_, operation)| operation.begun);
    let mut ended: Vec<_> = placed
        .iter()
        .filter_map(|(place, operation)| Some((operation.ended?, *place, *operation)))
        .collect();
    ended.sort_by_key(|(tick, _, _)| *tick);
    let mut ended = ended.into_iter().peekable();
    let mut newest: Option<(Place, &Operation)> = None;
    for (place, operation) in placed {
        while let Some((_, past, other)) = ended.next_if(|(tick, _, _)| *tick < operation.begun) {
            if newest.is_none_or(|(newest, _)| past > newest) {
                newest = Some((past, other));
            }
        }
        if let Some((past, other)) = newest.filter(|(past, _)| place < *past) {
            return Err(format!("{operation:?} at {place:?} began after {other:?} at {past:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::key;
    use store::Entry;

    fn value(text: &str) -> Value {
        text.as_bytes().into()
    }

    fn put(text: &str, revision: u64) -> Batch {
        let revision = Revision(revision);
        let entry =
            Entry { key: key("a"), value: value(text), created: revision, modified: revision };
        Batch { revision, changes: vec![Change::Put(entry)] }
    }

    fn committed(begun: Tick, ended: Tick, text: &str, revision: u64) -> Operation {
        Operation {
            begun,
            ended: Some(ended),
            asked: Asked::Commit(Txn::unfenced().put(key("a"), value(text))),
            answer: Answer::Committed(Revision(revision)),
        }
    }

    fn got(begun: Tick, ended: Tick, text: &str, written: u64, revision: u64) -> Operation {
        let found = Some((value(text), Revision(written)));
        Operation {
            begun,
            ended: Some(ended),
            asked: Asked::Get(key("a")),
            answer: Answer::Got(Revision(revision), found),
        }
    }

    fn verdict(log: &[Batch], operations: &[Operation]) -> Result<(), String> {
        check(Revision(0), log, operations)
    }

    #[test]
    fn order_that_explains_all_is_found() {
        let log = [put("1", 1), put("2", 2)];
        let operations = [
            committed(1, 10, "1", 1),
            committed(2, 9, "2", 2),
            got(3, 4, "1", 1, 1),
            got(5, 11, "2", 2, 2),
        ];
        assert_eq!(verdict(&log, &operations), Ok(()));
    }

    #[test]
    fn what_no_order_explains_is_found() {
        let log = [put("1", 1), put("2", 2)];
        let both = [committed(1, 2, "1", 1), committed(3, 4, "2", 2)];
        let with = |operation| verdict(&log, &[&both[..], &[operation]].concat()).unwrap_err();
        assert!(with(got(5, 6, "1", 1, 1)).contains("began after"), "a stale read");
        assert!(with(got(5, 6, "1", 1, 2)).contains("a read of something else"));
        let lost = verdict(&log[..1], &both).unwrap_err();
        assert!(lost.contains("a commit that is not there"), "{lost}");
        let twice = verdict(&[put("1", 1), put("2", 2), put("2", 3)], &both).unwrap_err();
        assert!(twice.contains("nobody made commit 3"), "{twice}");
        let late = [committed(3, 4, "1", 1), committed(1, 2, "2", 2)];
        assert!(verdict(&log, &late).unwrap_err().contains("began after"));
        let asked = Txn::unfenced().if_absent(key("a")).put(key("a"), value("2"));
        let careless = Operation { asked: Asked::Commit(asked), ..both[1].clone() };
        let error = verdict(&log, &[both[0].clone(), careless]).unwrap_err();
        assert!(error.contains("did not hold"), "{error}");
        let none = Answer::Conflict(key("a"), None, Revision(2));
        let asked = Txn::unfenced().if_unchanged(key("a"), Revision(2)).put(key("a"), value("3"));
        let conflict =
            Operation { begun: 5, ended: Some(6), asked: Asked::Commit(asked), answer: none };
        assert!(with(conflict).contains("a conflict that was none"));
    }

    #[test]
    fn commit_that_nobody_was_told_of_may_be_there_or_not() {
        let unknown = Operation { ended: None, answer: Answer::Unknown, ..committed(1, 0, "1", 1) };
        let log = [put("1", 1)];
        assert_eq!(verdict(&log, std::slice::from_ref(&unknown)), Ok(()));
        assert_eq!(verdict(&[], std::slice::from_ref(&unknown)), Ok(()));
        // It cannot have happened before it was asked for.
        let early = [Operation { begun: 9, ..unknown }, got(1, 2, "1", 1, 1)];
        assert!(verdict(&log, &early).unwrap_err().contains("began after"));
        let refused = Operation { answer: Answer::NotDone, ..committed(1, 2, "1", 1) };
        assert!(verdict(&log, &[refused]).is_err(), "it was said not to be done");
    }
}
