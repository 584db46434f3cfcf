//! One contract, three stores: every test of `suite` runs in memory, over a file and over etcd. What only one of them can suffer is beside it.
//!
//! ```text
//!   suite ── Setup ──┬── Memory
//!                    ├── Redb ── a file in a folder that goes with the test     redb: killed, full, damaged
//!                    └── Etcd ── a process that ends with the test              etcd: killed, several endpoints, TLS
//!   histories ── what random clients were answered ── checker ── is there one order that explains it?
//! ```
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

mod checker;
mod etcd;
mod failing_disk;
mod histories;
mod redb;
mod setup;
mod suite;

use setup::{Etcd, Memory, Redb, Setup, runtime};
use store::Limits;

/// Each test of the suite, over one store.
macro_rules! over {
    ($setup:ident: $($test:ident),* $(,)?) => {$(
        #[test]
        fn $test() {
            let Some(setup) = $setup::begin(suite::limits(stringify!($test))) else { return };
            runtime().block_on(suite::$test(&setup));
        }
    )*};
}

/// The tests of the suite, over all stores.
macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        mod memory { use super::*; over!(Memory: $($test),*); }
        mod file { use super::*; over!(Redb: $($test),*); }
        mod over_etcd { use super::*; over!(Etcd: $($test),*); }
    };
}

suite!(
    objects_come_and_go,
    conflict_names_the_object,
    largest_transaction_fits,
    pages_show_one_revision_while_it_changes,
    page_of_a_forgotten_revision_is_refused,
    watcher_hears_whole_commits_in_order,
    watcher_hears_all_that_many_write,
    watcher_of_the_past_or_the_future_is_refused,
    slow_watcher_is_told,
    one_leads_at_a_time,
    paused_leader_writes_nothing,
    kept_lease_is_kept_and_its_end_is_noticed,
    dropped_commit_is_settled,
    requests_are_done_once_by_many,
    random_histories_are_linearisable,
);

/// What a store is asked to hold where a test says nothing else.
fn usual() -> Limits {
    Limits::default()
}
