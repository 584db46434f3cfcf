//! What the guest has told, and the gaps within windows of time.

use anyhow::{Context, Result, ensure};

/// A time in which the guest saw none, in ticks of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) begin: u64,
    pub(crate) ticks: u64,
    /// In the loop that does nothing but look; else something was done meanwhile, such as an access to memory, or it is of
    /// another vCPU.
    pub(crate) is_pure: bool,
}

/// What a vCPU had done at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) time: u64,
    pub(crate) done: u64,
    pub(crate) vcpu: u64,
}

/// See the guests' own texts for their lines.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// In the order of their begins.
    pub(crate) gaps: Vec<Gap>,
    /// What must not be, and how often it was.
    pub(crate) wrong: Vec<(String, u64)>,
    /// What was done.
    pub(crate) done: Vec<(String, u64)>,
    /// In the order of their times.
    pub(crate) work: Vec<Work>,
    /// The guest's counters when its first lines began.
    counters: Vec<u64>,
}

impl Story {
    /// Reads what the guest has written.
    ///
    /// # Errors
    /// It was not all, or something else.
    pub(crate) fn read(text: &str) -> Result<Self> {
        let mut story = Self::default();
        let mut lines = text.lines();
        for line in &mut lines {
            let (letter, rest) = line.split_at_checked(1).unwrap_or_default();
            let mut words = rest.split_whitespace();
            let mut number = || -> Result<u64> {
                let word = words.next().with_context(|| format!("a number in {line:?}"))?;
                u64::from_str_radix(word, 16).with_context(|| format!("{line:?}"))
            };
            match letter {
                "T" => story.counters.push(number()?),
                "G" => {
                    let (begin, ticks, kind) = (number()?, number()?, number()?);
                    story.gaps.push(Gap { begin, ticks, is_pure: kind == 0 });
                }
                "W" => story.work.push(Work { time: number()?, done: number()?, vcpu: number()? }),
                "V" | "N" => {
                    let count = number()?;
                    let name = words.collect::<Vec<_>>().join(" ");
                    if letter == "V" { &mut story.wrong } else { &mut story.done }
                        .push((name, count));
                }
                // Its power button was pressed.
                "B" => {}
                "X" => {
                    story.gaps.sort_by_key(|gap| gap.begin);
                    story.work.sort_by_key(|work| work.time);
                    return Ok(story);
                }
                _ => anyhow::bail!("the guest tells {line:?}"),
            }
        }
        anyhow::bail!("the guest has not told all")
    }

    /// What was done so often.
    pub(crate) fn done(&self, name: &str) -> u64 {
        self.done.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
    }

    /// What a vCPU did in this time, by the guest's counter, per tick: between the first notes after its begin and after its end.
    pub(crate) fn rate(&self, vcpu: u64, (begin, end): (u64, u64)) -> Option<f64> {
        let mut own = self.work.iter().filter(|work| work.vcpu == vcpu && work.time >= begin);
        let first = own.next()?;
        let last = own.find(|work| work.time >= end)?;
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let [done, ticks] = [last.done - first.done, last.time - first.time].map(|it| it as f64);
        Some(done / ticks)
    }

    /// By how much the guest's counter is ahead of this host's (wrapping), which was `arrived` when its lines came. They need
    /// some time for that, so the least distance is the best.
    ///
    /// # Errors
    /// There were other lines.
    pub(crate) fn ahead(&self, arrived: &[u64]) -> Result<u64> {
        let pairs = self.counters.iter().zip(arrived);
        let most = pairs.map(|(guest, host)| guest.wrapping_sub(*host).cast_signed()).max();
        let most = most.filter(|_| self.counters.len() == arrived.len());
        Ok(most.context("the guest's first lines do not agree with what came")?.cast_unsigned())
    }

    /// The largest gap of these, if there is one, that has a part between two of the guest's counters.
    pub(crate) fn largest(
        &self,
        (begin, end): (u64, u64),
        of: impl Fn(&Gap) -> bool,
    ) -> Option<u64> {
        // Gaps of two vCPUs overlap: one that began before another may end after it.
        let within = self.gaps.iter().take_while(|gap| gap.begin < end);
        let within = within.filter(|gap| gap.begin + gap.ticks > begin && of(gap));
        within.map(|gap| gap.ticks).max()
    }
}

/// Windows of this length that a time is cut into.
///
/// # Errors
/// They have no length.
pub(crate) fn windows(
    (begin, end): (u64, u64),
    length: u64,
) -> Result<impl Iterator<Item = (u64, u64)>> {
    ensure!(length > 0, "windows without a length");
    let count = end.saturating_sub(begin) / length;
    Ok((0..count).map(move |at| (begin + at * length, begin + (at + 1) * length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "T 1f0 \nT 200 \nG 30 5 1 \nG 10 9 0 \nG 20 4 0 \nV 2 lost things\nN ff spins\nX\n";

    #[test]
    fn story_has_gaps_in_order_and_all_counts() {
        let story = Story::read(TEXT).unwrap();
        assert_eq!(story.gaps.iter().map(|gap| gap.begin).collect::<Vec<_>>(), [0x10, 0x20, 0x30]);
        assert_eq!(story.wrong, [("lost things".to_owned(), 2)]);
        assert_eq!((story.done("spins"), story.done("turns")), (255, 0));
    }

    #[test]
    fn story_without_an_end_or_with_other_lines_is_none() {
        for text in [&TEXT[..TEXT.len() - 2], "Ea\nX\n", "G 1\nX\n"] {
            assert!(Story::read(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn largest_gap_is_that_of_its_window_and_kind() {
        let story = Story::read(TEXT).unwrap();
        let (pure, any) = (|gap: &Gap| gap.is_pure, |_: &Gap| true);
        assert_eq!(story.largest((0x10, 0x30), pure), Some(9));
        assert_eq!(story.largest((0x18, 0x40), pure), Some(9), "its end is within");
        assert_eq!(story.largest((0x19, 0x40), pure), Some(4));
        assert_eq!(story.largest((0x19, 0x40), any), Some(5));
        assert_eq!(story.largest((0x35, 0x40), any), None);
    }

    #[test]
    fn gap_that_outlasts_a_later_one_hides_none() {
        let story = Story::read("G 10 40 1 \nG 20 5 0 \nG 48 4 0 \nX\n").unwrap();
        let (pure, other) = (|gap: &Gap| gap.is_pure, |gap: &Gap| !gap.is_pure);
        assert_eq!(story.largest((0x4a, 0x4b), pure), Some(4));
        assert_eq!(story.largest((0x4a, 0x4b), other), Some(0x40));
        assert_eq!(story.largest((0x30, 0x40), pure), None);
    }

    #[test]
    fn rate_is_that_of_the_time_and_the_vcpu() {
        let text = "W 10 0 0 \nW 20 8 0 \nW 18 0 1 \nW 30 18 0 \nW 40 118 0 \nX\n";
        let story = Story::read(text).unwrap();
        assert_eq!(story.rate(0, (0x11, 0x28)), Some(1.0));
        assert_eq!(story.rate(0, (0x30, 0x41)), None, "it is not over");
        assert_eq!(story.rate(1, (0x10, 0x20)), None);
    }

    #[test]
    fn line_that_came_soonest_tells_the_distance() {
        let story = Story::read(TEXT).unwrap();
        assert_eq!(story.ahead(&[0x110, 0x108]).unwrap(), 0xf8);
        assert!(story.ahead(&[0x110]).is_err());
    }

    #[test]
    fn windows_fill_a_time_but_for_a_rest() {
        let all: Vec<_> = windows((10, 35), 10).unwrap().collect();
        assert_eq!(all, [(10, 20), (20, 30)]);
        assert!(windows((0, 1), 0).is_err());
    }
}
