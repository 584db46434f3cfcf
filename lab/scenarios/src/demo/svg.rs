//! A recording of a terminal as an animated SVG: text and style sheets, no script, so that a page may show it as a
//! picture.
//!
//! ```text
//!   +-- window --------------+      The strip has all rows. A step of the animation moves it up, so that the
//!   | strip: row 5           |      last row that was said is in the window, and moves a cover down to the row
//!   |        row 6           |      after it. Both jump at the same moments.
//!   |        (cover)         |
//!   +------------------------+
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use crate::progress::printable;

/// Lines kept of the start, and of the end. Between them a line says how many are left out.
const HEAD: usize = 200;
const TAIL: usize = 200;
const COLUMNS: usize = 120;
/// Rows that one line may take.
const LINE_ROWS: usize = 3;
const WINDOW_ROWS: usize = 34;
/// Longest wait that is shown as it was, and what all lines together may take. The end stands still a while.
const LONGEST_WAIT: f64 = 2.0;
const LONGEST_RUN: f64 = 45.0;
const STILL: f64 = 8.0;

/// Pixels.
const FONT: f64 = 13.0;
/// Of all columns, with some room: fonts differ.
const TEXT_WIDTH: usize = 960;
const ROW: usize = 17;
const EDGE: usize = 12;
const BAR: usize = 28;

/// Lines with the times when they were said.
#[derive(Debug)]
pub(super) struct Recording {
    command: String,
    head: Vec<(Duration, String)>,
    tail: VecDeque<(Duration, String)>,
    left_out: usize,
    last: Duration,
}

/// From this moment on, so many rows are there.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    seconds: f64,
    rows: usize,
}

impl Recording {
    /// A recording of what this command says.
    pub(super) fn new(command: &str) -> Self {
        Self {
            command: printable(command),
            head: Vec::new(),
            tail: VecDeque::new(),
            left_out: 0,
            last: Duration::ZERO,
        }
    }

    /// Adds a line, said so long after the start.
    pub(super) fn add(&mut self, at: Duration, line: &str) {
        self.last = self.last.max(at);
        // One character more than is shown tells that the line is longer.
        let line: String = printable(line).chars().take(LINE_ROWS * COLUMNS + 1).collect();
        if self.head.len() < HEAD {
            self.head.push((self.last, line));
            return;
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
            self.left_out += 1;
        }
        self.tail.push_back((self.last, line));
    }

    /// The picture.
    pub(super) fn svg(&self) -> String {
        let lines = self.lines();
        let steps = steps(&lines);
        let shown = steps.last().map_or(0.0, |step| step.seconds);
        let rows: Vec<String> = lines.into_iter().flat_map(|(_, rows)| rows).collect();
        let took = format!("{} s, shown in {:.0} s", self.last.as_secs(), shown.ceil());
        let title = wrapped(&format!("{took}: {}", self.command)).swap_remove(0);
        draw(&title, &rows, &steps, shown + STILL)
    }

    /// All lines as rows, with the command and what is left out.
    fn lines(&self) -> Vec<(Duration, Vec<String>)> {
        let prompt = (Duration::ZERO, wrapped(&format!("$ {}", self.command)));
        let gap = self.tail.front().filter(|_| self.left_out > 0);
        let gap = gap.map(|(at, _)| (*at, vec![format!("... {} more lines", self.left_out)]));
        let wrap = |(at, line): &(Duration, String)| (*at, wrapped(line));
        let head = self.head.iter().map(wrap);
        [prompt].into_iter().chain(head).chain(gap).chain(self.tail.iter().map(wrap)).collect()
    }
}

/// A line as a terminal of so many columns shows it.
fn wrapped(line: &str) -> Vec<String> {
    // XML has no such characters.
    let known = |c: &char| !matches!(c, '\u{fffe}' | '\u{ffff}');
    let characters: Vec<char> = line.trim_end().chars().filter(known).collect();
    let mut rows: Vec<String> =
        characters.chunks(COLUMNS).take(LINE_ROWS).map(|row| row.iter().collect()).collect();
    if characters.len() > LINE_ROWS * COLUMNS
        && let Some(row) = rows.last_mut()
    {
        row.pop();
        row.push('…');
    }
    if rows.is_empty() {
        rows.push(String::new());
    }
    rows
}

/// When how many rows are there: long waits are cut, then all is made faster until it fits.
fn steps(lines: &[(Duration, Vec<String>)]) -> Vec<Step> {
    let (mut steps, mut before) = (Vec::<Step>::new(), Duration::ZERO);
    let (mut seconds, mut rows) = (0.0, 0);
    for (at, line) in lines {
        seconds += at.saturating_sub(before).as_secs_f64().min(LONGEST_WAIT);
        before = *at;
        rows += line.len();
        match steps.last_mut() {
            Some(step) if step.seconds >= seconds => step.rows = rows,
            _ => steps.push(Step { seconds, rows }),
        }
    }
    let factor = if seconds > LONGEST_RUN { LONGEST_RUN / seconds } else { 1.0 };
    for step in &mut steps {
        step.seconds *= factor;
    }
    steps
}

fn draw(title: &str, rows: &[String], steps: &[Step], seconds: f64) -> String {
    let title = escaped(title);
    let width = TEXT_WIDTH + 2 * EDGE;
    let (inner, height) = (WINDOW_ROWS * ROW, WINDOW_ROWS * ROW + BAR + EDGE);
    let end = rows.len();
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<title>{title}</title>
<style>
text {{ font: {FONT}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #c9d1d9; white-space: pre; }}
.title {{ fill: #8b949e; }}
.strip {{ transform: translateY(-{}px); animation: strip {seconds:.2}s step-end infinite; }}
.cover {{ transform: translateY({}px); animation: cover {seconds:.2}s step-end infinite; }}
@media (prefers-reduced-motion: reduce) {{ .strip, .cover {{ animation: none; }} }}
"##,
        moved_up(end),
        end * ROW,
    );
    keyframes(&mut svg, "strip", steps, seconds, |rows| format!("-{}", moved_up(rows)));
    keyframes(&mut svg, "cover", steps, seconds, |rows| (rows * ROW).to_string());
    svg += &format!(
        r##"</style>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
<text class="title" x="{EDGE}" y="19">{title}</text>
<svg x="{EDGE}" y="{BAR}" width="{TEXT_WIDTH}" height="{inner}">
<g class="strip">
"##
    );
    for (number, row) in rows.iter().enumerate().filter(|(_, row)| !row.is_empty()) {
        svg += &format!("<text y=\"{}\">{}</text>\n", number * ROW + ROW - 4, escaped(row));
    }
    svg += &format!(
        "<rect class=\"cover\" width=\"100%\" height=\"{inner}\" fill=\"#0d1117\"/>\n</g>\n</svg>\n</svg>\n"
    );
    svg
}

/// Pixels that the strip has moved once so many rows are there.
fn moved_up(rows: usize) -> usize {
    rows.saturating_sub(WINDOW_ROWS) * ROW
}

fn keyframes(
    svg: &mut String,
    name: &str,
    steps: &[Step],
    seconds: f64,
    pixels: impl Fn(usize) -> String,
) {
    svg.push_str(&format!("@keyframes {name} {{\n"));
    for Step { seconds: at, rows } in steps {
        let (percent, pixels) = (at / seconds * 100.0, pixels(*rows));
        svg.push_str(&format!("{percent:.3}% {{ transform: translateY({pixels}px); }}\n"));
    }
    svg.push_str("}\n");
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recording(lines: &[(u64, &str)]) -> Recording {
        let mut recording = Recording::new("./x demo");
        for (milliseconds, line) in lines {
            recording.add(Duration::from_millis(*milliseconds), line);
        }
        recording
    }

    /// Percentages of an animation's key frames.
    fn percentages(svg: &str, name: &str) -> Vec<f64> {
        let start = svg.find(&format!("@keyframes {name} ")).unwrap();
        let frames = svg[start..].lines().skip(1).take_while(|line| *line != "}");
        frames.map(|line| line.split_once('%').unwrap().0.parse().unwrap()).collect()
    }

    #[test]
    fn rows_come_one_after_the_other_in_a_picture_without_script() {
        let svg = recording(&[(0, "one"), (1000, "two"), (1000, "three"), (9000, "four")]).svg();

        // The command and the first line are there at once; the last wait is cut to two seconds.
        assert!(svg.contains("animation: cover 11.00s step-end infinite"), "{svg}");
        assert_eq!(percentages(&svg, "cover"), [0.0, 9.091, 27.273]);
        assert!(svg.contains("9.091% { transform: translateY(68px); }"), "{svg}");
        assert!(svg.contains("<title>9 s, shown in 3 s: ./x demo</title>"), "{svg}");
        assert!(svg.contains(">$ ./x demo</text>") && svg.contains(">four</text>"), "{svg}");
        assert!(!svg.contains("<script"), "{svg}");
    }

    #[test]
    fn what_a_guest_prints_is_only_text() {
        let line = "<script>&\"\u{1b}[31mred\u{1b}[0m\u{7}\u{ffff}";

        let svg = recording(&[(0, line)]).svg();

        assert!(svg.contains(">&lt;script&gt;&amp;&quot;red</text>"), "{svg}");
    }

    #[test]
    fn more_rows_than_the_window_has_move_up() {
        let lines: Vec<_> = (0..50).map(|at| (at * 100, "line")).collect();

        let svg = recording(&lines).svg();

        let last = format!("translateY(-{}px)", (51 - WINDOW_ROWS) * ROW);
        assert!(svg.contains(&format!(".strip {{ transform: {last};")), "{svg}");
        assert!(svg.contains("0.000% { transform: translateY(-0px); }"), "{svg}");
    }

    #[test]
    fn long_lines_are_wrapped_and_cut() {
        let rows = wrapped(&"x".repeat(1000));

        assert_eq!(rows.len(), LINE_ROWS);
        assert!(rows.iter().all(|row| row.chars().count() == COLUMNS));
        assert!(rows[LINE_ROWS - 1].ends_with('…') && !rows[0].ends_with('…'));
        assert_eq!(wrapped(""), [""]);
    }

    #[test]
    fn middle_of_a_long_recording_is_left_out() {
        let mut recording = Recording::new("./x demo");
        for number in 0..10_000 {
            recording.add(Duration::from_secs(number), &format!("{number} {}", "&".repeat(1000)));
        }

        let svg = recording.svg();

        assert!(svg.contains(">... 9600 more lines</text>"));
        assert!(svg.contains(">199 &amp;") && !svg.contains(">200 &amp;"));
        assert!(svg.contains(">9800 &amp;") && !svg.contains(">9799 &amp;"));
        assert!(svg.len() < 1 << 20, "{} bytes", svg.len());
        assert!(svg.contains("animation: strip 53.00s"), "less than a minute");
    }

    proptest! {
        #[test]
        fn any_recording_is_short_ordered_and_well_formed(
            lines in prop::collection::vec((0_u64..1_000_000, ".{0,200}"), 0..60),
        ) {
            let lines: Vec<_> = lines.iter().map(|(at, line)| (*at, line.as_str())).collect();
            let svg = recording(&lines).svg();

            for name in ["strip", "cover"] {
                let percentages = percentages(&svg, name);
                prop_assert_eq!(percentages[0], 0.0);
                prop_assert!(percentages.is_sorted());
                prop_assert!(percentages.iter().all(|percent| *percent < 100.0));
            }
            let seconds = svg.split_once("animation: strip ").unwrap().1.split_once('s').unwrap().0;
            prop_assert!(seconds.parse::<f64>().unwrap() < 60.0);
            let texts = svg.split("<text y=").skip(1).map(|rest| rest.split_once('>').unwrap().1);
            for text in texts {
                let (text, after) = text.split_once('<').unwrap();
                prop_assert!(after.starts_with("/text>"), "{}", after);
                let foreign = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
                prop_assert!(!text.contains(foreign), "{}", text);
                for rest in text.split('&').skip(1) {
                    let known = ["amp;", "lt;", "gt;", "quot;"];
                    prop_assert!(known.iter().any(|name| rest.starts_with(name)), "{}", rest);
                }
            }
        }
    }
}
