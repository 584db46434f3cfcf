use super::pace::{LONGEST, SHORTEST};
use super::*;
use proptest::prelude::*;

const KHZ: u32 = 1_000_000;
const ROUND: Duration = Duration::from_millis(200);

fn discipline() -> Discipline {
    Discipline::new(Duration::from_millis(1), KHZ)
}

fn steps(found: &[Option<Interval>]) -> Result<(u64, Vec<u64>), RunAway> {
    discipline().steps(found, ROUND)
}

fn interval(low: i64, high: i64) -> Option<Interval> {
    Some(Interval { low, high })
}

#[test]
fn exchange_proves_an_interval_and_several_narrow_it() {
    let exchanges = [
        Exchange { sent: 1000, answered: 1500, received: 1100 },
        Exchange { sent: 2000, answered: 2460, received: 2200 },
    ];
    assert_eq!(Interval::of(exchanges[0]), interval(400, 500));
    assert_eq!(Interval::narrow(exchanges), interval(399, 460), "a thousandth of the time since");
    let contradicting = Exchange { sent: 3000, answered: 4000, received: 3010 };
    assert_eq!(Interval::narrow([exchanges[0], contradicting]), interval(990, 1000));
    assert_eq!(Interval::narrow(Vec::new()), None);
    assert_eq!(Interval::of(Exchange { sent: 9, answered: 0, received: 5 }), None);
    let wraps = Exchange { sent: u64::MAX, answered: 3, received: 9 };
    assert_eq!(Interval::of(wraps), interval(-6, 4));
}

#[test]
fn newcomer_may_have_drifted_since_its_clock_was_set() {
    let ever = [interval(-5, 5)];
    let joined = [interval(-5, 5), interval(-1_600_000, -1_500_000)];
    let mut others = discipline();
    (0..10).for_each(|_| drop(others.steps(&ever, ROUND).unwrap()));
    let mut unexpected = others.clone();
    assert_eq!(unexpected.steps(&joined, ROUND).unwrap_err().companion, 1);
    others.expect(1, Duration::from_secs(30));
    let (own, steps) = others.steps(&joined, ROUND).unwrap();
    assert_eq!((own, steps[0]), (0, 0));
    assert!(steps[1] >= 1_500_000, "{steps:?}");
    // That is allowed for once.
    assert_eq!(others.steps(&joined, ROUND).unwrap_err().companion, 1);
}

#[test]
fn slices_behind_step_to_the_one_ahead() {
    let found = [interval(90, 110), interval(-60, -40), None, interval(-10, 10), interval(0, 99)];
    assert_eq!(steps(&found), Ok((92, vec![0, 134, 0, 84, 0])));
    assert_eq!(steps(&[interval(-60, -40)]), Ok((0, vec![42])));
    assert_eq!(steps(&[]), Ok((0, vec![])));
}

#[test]
fn clock_that_may_be_right_is_left_alone() {
    assert_eq!(steps(&[interval(-30, 0)]), Ok((0, vec![0])));
    assert_eq!(steps(&[interval(-30, -2)]), Ok((0, vec![5])));
    assert_eq!(steps(&[interval(2, 30)]), Ok((5, vec![0])));
}

#[test]
fn clock_out_of_bounds_is_named() {
    assert_eq!(discipline().limit, 1_000_000);
    // And what it may have drifted since.
    let found = [interval(-5, 5), interval(1_200_001, 3_000_000)];
    let interval_of = Interval { low: 1_200_001, high: 3_000_000 };
    let away = RunAway { companion: 1, interval: interval_of, why: Why::Apart };
    assert_eq!(steps(&found), Err(away));
    // It may be right.
    assert!(steps(&[interval(-9_000_000, 0)]).is_ok());
}

#[test]
fn drift_that_slow_answers_hid_is_not_taken_for_a_jump() {
    // Up to 3 ms are possible; then 2.5 ms are proven.
    let hidden = [interval(-10_000, 3_000_000)];
    let proven = [interval(2_500_000, 2_600_000)];
    let mut one = discipline();
    assert_eq!(one.steps(&hidden, ROUND), Ok((0, vec![0])));
    assert_eq!(one.steps(&proven, ROUND), Ok((2_512_500, vec![0])));
    // The step has resolved it: what comes now is a jump.
    let away = one.steps(&proven, ROUND).unwrap_err();
    assert_eq!((away.companion, away.why), (0, Why::Apart));
    // A companion that did not answer may have drifted for as long.
    let mut silent = discipline();
    for _ in 0..10 {
        assert_eq!(silent.steps(&[None], ROUND), Ok((0, vec![0])));
    }
    assert!(silent.steps(&proven, ROUND).is_ok());
}

#[test]
fn earlier_rounds_bound_what_a_slow_one_finds() {
    let of = |low, high| Interval { low, high };
    let mut history = History::new(KHZ);
    // 100 ppm, known to 10 us at two times a second apart.
    assert_eq!(history.narrow(0, of(-5_000, 5_000), 0), of(-5_000, 5_000));
    let second = 1_000_000_000;
    assert_eq!(history.narrow(second, of(95_000, 105_000), 0), of(95_000, 105_000));
    // 10 us in a second, twice, and 5 ppm.
    let ends = of(195_000 - 10_000 - 5_000, 205_000 + 10_000 + 5_000);
    assert_eq!(history.narrow(2 * second, of(-3_000_000, 3_000_000), 0), ends);
    // Steps do not count: the companion was stepped by 300 us more.
    let stepped = 300_000;
    let found = history.narrow(2 * second, of(-3_000_000, 3_000_000), stepped);
    assert_eq!(found, of(ends.low + stepped, ends.high + stepped));
    // The rate has changed: what contradicts is forgotten.
    let jump = of(10_000_000, 10_010_000);
    assert_eq!(history.narrow(3 * second, jump, 0), jump);
    assert_eq!(history.narrow(4 * second, jump, 0), jump);
}

#[test]
fn exchange_that_is_fast_and_finds_nothing_wrong_suffices() {
    let mut pace = Pace::default();
    let of = |low, high| Interval { low, high };
    assert!(!pace.suffices(of(-50, 50)), "nothing is known");
    pace.learn(of(-50, 50));
    assert!(pace.suffices(of(-5, 120)));
    assert!(!pace.suffices(of(-5, 121)), "slow");
    assert!(!pace.suffices(of(1, 90)), "the clocks are apart");
    // A network that has become ten times slower.
    (0..100).for_each(|_| pace.learn(of(-500, 500)));
    assert!(pace.suffices(of(-500, 500)));
    pace.learn(of(-50, 50));
    assert!(!pace.suffices(of(-500, 500)));
}

#[test]
fn rounds_are_as_rare_as_messages_are_slow() {
    let period = |ns: i64| {
        let mut pace = Pace::default();
        pace.learn(Interval { low: 0, high: ns * 3 });
        pace.period(3 * KHZ)
    };
    assert_eq!(Pace::default().period(KHZ), SHORTEST);
    assert_eq!(period(5_000), SHORTEST);
    // A quarter of 200 us is what 100 ppm drift in half a second.
    assert_eq!(period(200_000), Duration::from_millis(500));
    assert_eq!(period(20_000_000), LONGEST);
    assert_eq!(Pace { fastest: Some(u64::MAX) }.period(0), LONGEST);
}

#[test]
fn what_the_first_answer_of_a_long_round_proved_is_no_longer_exact_at_its_end() {
    let mut world = World { ahead: vec![0, 0], ppm: vec![0, 300], now: 1 << 40 };
    let fast = world.exchange(1, 10_000, 10_000);
    world.pass(700_000_000);
    let slow = world.exchange(1, 3_000_000, 3_000_000);
    let found = Interval::narrow([fast, slow]).unwrap();
    let truth = world.ahead[1] - world.ahead[0];
    assert!((found.low..=found.high).contains(&truth), "{truth} is not in {found:?}");
    assert!(found.bound() < 1_000_000, "the fast one counts: {found:?}");
}

#[test]
fn jump_is_not_taken_for_a_drift() {
    let mut history = History::new(KHZ);
    let mut at = 0;
    let mut round = |ahead: i64, bound: i64| {
        at += 200_000_000;
        history.narrow(at, Interval { low: ahead - bound, high: ahead + bound }, 0)
    };
    for _ in 0..3 {
        round(0, 5_000);
    }
    let jumped = 900_000;
    round(jumped, 5_000);
    for _ in 0..50 {
        let found = round(jumped, 3_000_000);
        assert!((found.low..=found.high).contains(&jumped), "{found:?}");
    }
}

/// Clocks of slices as numbers of ticks that they are ahead of true time; each has a rate.
struct World {
    ahead: Vec<i64>,
    ppm: Vec<i64>,
    now: u64,
}

impl World {
    fn read(&self, slice: usize) -> u64 {
        self.now.wrapping_add_signed(self.ahead[slice])
    }

    /// So many ticks of true time pass.
    fn pass(&mut self, ticks: u64) {
        self.now += ticks;
        for (ahead, ppm) in self.ahead.iter_mut().zip(&self.ppm) {
            *ahead += i64::try_from(ticks).unwrap() * ppm / 1_000_000;
        }
    }

    fn exchange(&mut self, slice: usize, there: u64, back: u64) -> Exchange {
        let sent = self.read(0);
        self.pass(there);
        let answered = self.read(slice);
        self.pass(back);
        Exchange { sent, answered, received: self.read(0) }
    }
}

/// Hosts whose counters differ by more than 100 ppm are refused at the start.
#[test]
fn counter_that_runs_far_too_fast_ends_the_vm() {
    let run = |ppm: i64, rounds: u32| {
        let mut world = World { ahead: vec![0, 0], ppm: vec![0, ppm], now: 1 << 40 };
        let mut discipline = discipline();
        for _ in 0..rounds {
            let exchange = world.exchange(1, 50_000, 50_000);
            let (own, steps) = discipline.steps(&[Interval::narrow([exchange])], ROUND)?;
            world.ahead[0] += i64::try_from(own).unwrap();
            world.ahead[1] += i64::try_from(steps[0]).unwrap();
            world.pass(200_000_000);
        }
        Ok(())
    };
    for ppm in [-4000, 4000, 1500] {
        let away: Result<(), RunAway> = run(ppm, 100);
        assert!(matches!(away, Err(RunAway { companion: 0, why: Why::Rate, .. })), "{away:?}");
    }
    for ppm in [-500, 500] {
        assert_eq!(run(ppm, 3000), Ok(()));
    }
}

proptest! {
    /// Three crystals and a network with delays of 20 to 300 us: nothing steps back, the
    /// clocks stay as close as the exchanges of a round prove, and noise does not drive them forward.
    #[test]
    fn clocks_stay_within_what_exchanges_prove(
        ppm in [-60i64..60, -60..60, -60..60],
        delays in prop::collection::vec((20_000u64..300_000, 20_000u64..300_000), 300 * 8),
    ) {
        let mut world = World { ahead: vec![0, 0, 0], ppm: ppm.to_vec(), now: 1 << 40 };
        let mut delays = delays.into_iter();
        let (mut paces, mut discipline) = ([Pace::default(); 2], discipline());
        let (mut histories, mut stepped) = ([History::new(KHZ), History::new(KHZ)], [0i64; 3]);
        let mut passed = ROUND;
        for _ in 0..100 {
            let mut found = Vec::new();
            for (slice, pace) in (1..).zip(&mut paces) {
                let mut round = Vec::new();
                for (there, back) in delays.by_ref().take(8) {
                    round.push(world.exchange(slice, there, back));
                    if Interval::narrow(round.clone()).is_some_and(|interval| pace.suffices(interval)) {
                        break;
                    }
                }
                let interval = Interval::narrow(round).unwrap();
                pace.learn(interval);
                let at = i64::try_from(world.now).unwrap();
                found.push(Some(histories[slice - 1].narrow(at, interval, stepped[slice] - stepped[0])));
            }
            let before = world.ahead.clone();
            let (own, steps) = discipline.steps(&found, passed).unwrap();
            for (slice, step) in (0..).zip([own].into_iter().chain(steps)) {
                let step = i64::try_from(step).unwrap();
                world.ahead[slice] += step;
                stepped[slice] += step;
            }
            prop_assert!(world.ahead.iter().zip(&before).all(|(now, before)| now >= before));
            let period = paces.iter().map(|pace| pace.period(KHZ)).min().unwrap();
            world.pass(u64::try_from(period.as_nanos()).unwrap());
            passed = period;
            for (slice, found) in (1..).zip(&found) {
                let apart = world.ahead[slice].abs_diff(world.ahead[0]);
                // Zero is in the interval, or was put there; and 120 ppm since the exchange.
                let proven = found.unwrap().bound() * 2 + 26_000;
                prop_assert!(apart <= proven, "{apart} ticks apart, {proven} are proven");
            }
        }
        let fastest = *ppm.iter().max().unwrap();
        let driven = world.ahead[0] - i64::try_from(world.now - (1 << 40)).unwrap() * fastest / 1_000_000;
        // A correction goes an eighth of the interval too far, now and then: less than a crystal is wrong.
        prop_assert!(driven < 800_000, "driven forward by {driven} ticks");
    }
}

/// How far two slices get apart, in ticks, of which the second drifts by 300 ppm. In so many of ten rounds the answer
/// takes 3 ms to come back, which hides a companion that runs ahead.
fn worst_while_answers_are_slow(slow: u64, remembers: bool) -> u64 {
    let mut world = World { ahead: vec![0, 0], ppm: vec![0, 300], now: 1 << 40 };
    let (mut discipline, mut history, mut stepped, mut worst) =
        (discipline(), History::new(KHZ), 0, 0);
    for round in 0..600u64 {
        let back = if round % 10 < 10 - slow { 100_000 } else { 3_000_000 };
        let at = i64::try_from(world.now).unwrap();
        let found = Interval::of(world.exchange(1, 100_000, back)).unwrap();
        let found = if remembers { history.narrow(at, found, stepped) } else { found };
        let (own, steps) = discipline.steps(&[Some(found)], ROUND).unwrap();
        let [own, step] = [own, steps[0]].map(|step| i64::try_from(step).unwrap());
        world.ahead[0] += own;
        world.ahead[1] += step;
        stepped += step - own;
        world.pass(200_000_000);
        // The drift must be known first.
        if round >= 50 {
            worst = worst.max(world.ahead[1].abs_diff(world.ahead[0]));
        }
    }
    worst
}

#[test]
fn known_drift_is_corrected_while_answers_are_slow() {
    let fast = worst_while_answers_are_slow(0, true);
    for slow in [2, 5, 9] {
        let [without, with] =
            [false, true].map(|remembers| worst_while_answers_are_slow(slow, remembers));
        assert!(with < fast * 3 / 2, "{with} ticks with {slow} of 10 slow, {fast} with none");
        assert!(with < without, "{with} ticks, {without} without a memory, with {slow} of 10 slow");
    }
}
