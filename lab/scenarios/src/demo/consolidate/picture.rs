//! The run as a picture over time, after Figure 14 of the paper on FragVisor: latency, where the vCPUs are, faults, free CPUs.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::series::{Phase, Rate, Seen, latencies, rates, slices, vcpus};

const WIDTH: u32 = 1000;
const TITLE: u32 = 34;
const PANEL: u32 = 190;
/// Time beyond the end is where the names of lines are.
const LEGEND: f64 = 1.18;
const FONT: &str = "sans-serif";
const COLORS: [RGBColor; 4] =
    [RGBColor(31, 119, 180), RGBColor(214, 98, 20), RGBColor(44, 140, 44), RGBColor(140, 60, 150)];

/// A line of a panel.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// One of the diagrams, which share their time.
#[derive(Clone, Debug, PartialEq)]
struct Panel {
    title: &'static str,
    lines: Vec<Line>,
    /// Labels of its height.
    labels: usize,
}

/// The picture. Each host offers so many CPUs.
pub(super) fn svg(title: &str, seen: &[Seen], phases: &[Phase], offered: usize) -> Result<String> {
    let panels = panels(seen, offered);
    let end = seen.iter().map(|seen| seen.at).chain(phases.iter().map(|phase| phase.to));
    let end = end.fold(1.0, f64::max);
    let mut svg = String::new();
    {
        let count = u32::try_from(panels.len())?;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, TITLE + PANEL * count));
        let area = area.into_drawing_area();
        area.fill(&WHITE)?;
        area.draw(&Text::new(title.to_owned(), (12, 12), (FONT, 16).into_font()))?;
        let (_, rest) = area.split_vertically(TITLE);
        for (place, panel) in rest.split_evenly((panels.len(), 1)).iter().zip(&panels) {
            draw(place, panel, phases, end)?;
        }
        area.present()?;
    }
    Ok(svg)
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
    let panel = |title, lines, labels| Panel { title, lines, labels };
    vec![
        panel("HTTP latency of each second, ms", vec![latency(99), latency(50)], 5),
        panel("vCPUs", each("slice", &on), offered + 1),
        panel("DSM faults a second", each("slice", &faults), 5),
        panel("free CPUs of those offered", each("host of slice", &free), offered + 1),
    ]
}

/// A line that keeps its height until there is another value.
fn steps(
    values: &[(f64, Option<usize>)],
    height: impl Fn(Option<usize>) -> f64,
) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for (at, value) in values {
        let height = height(*value);
        if let Some((_, before)) = points.last().copied()
            && before != height
        {
            points.push((*at, before));
        }
        points.push((*at, height));
    }
    points
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
    phases: &[Phase],
    end: f64,
) -> Result<()> {
    let most = panel.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let top = most.fold(1.0, f64::max) * 1.1;
    let heights: Range<f64> = 0.0..top;
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, (FONT, 13))
        .margin(6)
        .x_label_area_size(22)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..end * LEGEND, heights)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.08))
        .y_labels(panel.labels)
        .label_style((FONT, 11))
        .x_label_formatter(&|at| format!("{at:.0} s"))
        .draw()?;
    // Where something was asked for.
    chart.draw_series(phases.iter().filter(|phase| phase.took_ms.is_some()).map(|phase| {
        let style = BLACK.mix(0.15).filled();
        Rectangle::new([(phase.from, 0.0), (phase.to.max(phase.from + end / 500.0), top)], style)
    }))?;
    for (line, color) in panel.lines.iter().zip(COLORS.iter().cycle()) {
        let style = color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style))?
            .label(line.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 11))
        .draw()?;
    Ok(())
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
        let titles: Vec<_> = panels.iter().map(|panel| panel.title).collect();
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
