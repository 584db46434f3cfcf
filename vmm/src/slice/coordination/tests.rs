//! What the next coordinator is told, as others may have written it.

use super::state::{
    CoordinatorState, LostState, OfferState, milliseconds, offer_states, shortened, take_offers,
};
use super::terms::Terms;
use crate::slice::peripherals::OrderState;
use crate::slice::peripherals::testing::chipset;
use crate::slice::report::LostSlice;
use migrate::plan::{Capacity, Offer};
use migrate::saved::{decode, encode};
use migrate::{Saved, SavedError, SavedState};
use proptest::prelude::*;
use proptest::sample::Index;
use std::time::Duration;
use wire::SliceId;
use wire::control::COORDINATOR_STATE_BYTES_MAX;

fn state() -> CoordinatorState {
    let chipset = chipset();
    chipset.console_input(&[7; 5000]);
    CoordinatorState {
        chipset: chipset.save(),
        order: OrderState { last: 9 },
        moves: 3,
        checkpoints: 1_700_000_000_000,
        elapsed_ms: 60_000,
        left_ms: Some(1000),
        stop_limit_ms: 500,
        panicked: true,
        lost: vec![LostState { slice: 2, cause: "silent".into() }],
        offers: vec![OfferState {
            slice: 1,
            vcpus: 4,
            bytes: 1 << 30,
            lacks: "a leaf".into(),
            reaches: vec![7],
        }],
    }
}

#[test]
fn offers_are_what_they_were() {
    let slice = SliceId(1);
    let known = Offer { vcpus: 1, ..Offer::default() };
    let mut capacity = Capacity { offers: [(slice, known)].into(), ..Capacity::default() };
    take_offers(&state().offers, &mut capacity);
    let lacks = vec!["a leaf".into()];
    let expected = Offer { vcpus: 4, bytes: 1 << 30, lacks, reaches: [7].into() };
    assert_eq!(capacity.offers[&slice], expected);
    assert_eq!(offer_states(&capacity), state().offers);
}

#[test]
fn terms_are_what_they_were() {
    let terms = Terms::of(&state());
    assert!(terms.started.elapsed() >= Duration::from_secs(60));
    assert!(terms.left_ms().unwrap() <= 1000);
    assert_eq!(terms.stop_limit, Duration::from_millis(500));
    assert_eq!(terms.lost_states(), state().lost);
    assert_eq!(Terms::new(None, Duration::ZERO).left_ms(), None);
}

/// It was lost while the coordination moved: the one before did not know it any more.
#[test]
fn losses_that_this_slice_has_seen_stay_known() {
    let lost = |slice| LostSlice { slice, cause: "here".into() };
    let mut terms = Terms::new(None, Duration::ZERO);
    terms.lost = vec![lost(2), lost(3)];
    terms.become_those(Terms::of(&state()));
    let known: Vec<_> = terms.lost.iter().map(|it| (it.slice, it.cause.as_str())).collect();
    assert_eq!(known, [(2, "silent"), (3, "here")]);
    assert_eq!(terms.stop_limit, Duration::from_millis(500));
}

#[test]
fn largest_state_fits_a_frame() {
    let lost = LostState { slice: u16::MAX, cause: shortened(&"é".repeat(1000)) };
    let lacks = "a".repeat(128);
    let offer = OfferState {
        slice: u16::MAX,
        vcpus: u32::MAX,
        bytes: u64::MAX,
        lacks,
        reaches: vec![u16::MAX; 31],
    };
    let largest = CoordinatorState {
        order: OrderState { last: u64::MAX >> 1 },
        moves: (1 << 56) - 1,
        checkpoints: (1 << 56) - 1,
        elapsed_ms: milliseconds(Duration::MAX),
        left_ms: Some(milliseconds(Duration::MAX)),
        stop_limit_ms: milliseconds(Duration::MAX),
        lost: vec![lost; 64],
        offers: vec![offer; 64],
        ..state()
    };
    assert!(encode(&largest).unwrap().len() <= COORDINATOR_STATE_BYTES_MAX);
}

type Lie = (&'static str, fn(&mut CoordinatorState));

#[test]
fn states_that_lie_are_refused() {
    let lies: [Lie; 10] = [
        ("moves", |state| state.moves = u64::MAX),
        ("checkpoints", |state| state.checkpoints = u64::MAX),
        ("elapsed_ms", |state| state.elapsed_ms = u64::MAX),
        ("elapsed_ms", |state| state.left_ms = Some(u64::MAX)),
        ("elapsed_ms", |state| state.stop_limit_ms = u64::MAX),
        ("lost", |state| state.lost = vec![state.lost[0].clone(); 65]),
        ("lost", |state| state.lost[0].cause = "a".repeat(257)),
        ("offers", |state| state.offers = vec![state.offers[0].clone(); 65]),
        ("offers", |state| state.offers[0].reaches = vec![0; 32]),
        ("offers", |state| state.offers[0].lacks = "a".repeat(129)),
    ];
    for (field, lie) in lies {
        let mut state = state();
        lie(&mut state);
        assert_eq!(state.check().unwrap_err().field, field);
        assert!(matches!(encode(&state), Err(SavedError::Invalid { .. })));
    }
}

proptest! {
    /// Whatever has come: an error, or platform devices that can be saved again and terms that can be kept.
    #[test]
    fn bytes_of_others_are_a_state_or_an_error(
        writes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encode(&state()).unwrap();
        for (at, to) in writes {
            *at.get_mut(&mut bytes) = to;
        }
        if let Ok(state) = decode::<CoordinatorState>(&bytes) {
            let terms = Terms::of(&state);
            prop_assert_eq!(terms.lost_states().len(), state.lost.len());
            let mut chipset = chipset();
            if chipset.restore(state.chipset.clone()).is_ok() {
                prop_assert_eq!(chipset.save(), state.chipset);
            }
        }
    }
}
