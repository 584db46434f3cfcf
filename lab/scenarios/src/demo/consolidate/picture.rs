//! The run as a picture over time, after Figure 14 of the paper on FragVisor: latency, where the vCPUs are, faults, free CPUs.

use anyhow::Result;

use super::series::{Phase, Rate, Seen, latencies, rates, slices, vcpus};
use crate::demo::panels::{self, Line, Panel, float, steps};

/// The picture. Each host offers so many CPUs.
pub(super) fn svg(title: &str, seen: &[Seen], phases: &[Phase], offered: usize) -> Result<String> {
    let end = seen.iter().map(|seen| seen.at).chain(phases.iter().map(|phase| phase.to));
    let end = end.fold(1.0, f64::max);
    let asked = phases.iter().filter(|phase| phase.took_ms.is_some());
    let asked: Vec<_> = asked.map(|phase| phase.from..phase.to).collect();
    panels::svg(title, &panels(seen, offered), &asked, end)
}

fn panels(seen: &[Seen], offered: usize) -> Vec<Panel> {
    let line = |name: String, points| Line { name, points };
    let latency = |hundredths| line(format!("p{hundredths}"), latencies(seen, hundredths));
    let on = |slice| steps(&vcpus(seen, slice), |count| float(count.unwrap_or(0)));
    let free = |slice| {
        steps(&vcpus(seen, slice), |count| float(offered.saturating_sub(count.unwrap_or(0))))
    };
    let each = |name: &str, points: &dyn Fn(usize) -> Vec<(f64, f64)>| {
        let of = |slice| line(format!("{name}{slice}"), points(slice));
        slices(seen).map(of).collect()
    };
    let faults = |slice| {
        let point = |rate: Rate| (rate.to, rate.faults / (rate.to - rate.from));
        rates(seen, slice).into_iter().map(point).collect()
    };
    let panel = |title: &str, lines, labels| Panel { title: title.to_owned(), lines, labels };
    vec![
        panel("HTTP latency of each second, ms", vec![latency(99), latency(50)], 5),
        panel("vCPUs", each("slice", &on), offered + 1),
        panel("DSM faults a second", each("slice", &faults), 5),
        panel("free CPUs of those offered", each("host of slice", &free), offered + 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::consolidate::series::tests::run;

    #[test]
    fn slice_that_has_left_has_no_vcpus_and_its_host_has_all_cpus_free() {
        let panels = panels(&run(), 2);
        let lines = |panel: usize| {
            panels[panel].lines.iter().map(|line| line.points.clone()).collect::<Vec<_>>()
        };
        let titles: Vec<_> = panels.iter().map(|panel| &panel.title).collect();
        assert_eq!(titles.len(), 4, "{titles:?}");
        let of =
            |heights: [f64; 4]| [0.5, 2.5, 2.5, 3.5].into_iter().zip(heights).collect::<Vec<_>>();
        assert_eq!(lines(1), [of([1.0, 1.0, 2.0, 2.0]), of([1.0, 1.0, 0.0, 0.0])]);
        assert_eq!(lines(3), [of([1.0, 1.0, 0.0, 0.0]), of([1.0, 1.0, 2.0, 2.0])]);
    }

    #[test]
    fn picture_has_all_panels_and_shows_what_was_asked_for() {
        let phase = |took_ms| Phase { name: "drain 1".to_owned(), from: 1.0, to: 2.5, took_ms };
        let shades = |took_ms| {
            let svg = svg("a title", &run(), &[phase(took_ms)], 2).unwrap();
            for text in ["a title", "HTTP latency", "p99", "vCPUs", "slice1", "free CPUs"] {
                assert!(svg.contains(text), "{text}: {svg}");
            }
            svg.matches("opacity=\"0.15\"").count()
        };
        assert_eq!(shades(Some(7.0)) - shades(None), 4);
    }

    #[test]
    fn run_without_anything_seen_is_a_picture_too() {
        assert!(svg("nothing", &[], &[], 2).unwrap().starts_with("<svg"));
    }
}
