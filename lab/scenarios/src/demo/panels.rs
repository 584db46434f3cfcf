//! A picture of a run over time, after Figure 14 of the paper on FragVisor: panels below each other that share their time.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

const WIDTH: u32 = 1000;
const TITLE: u32 = 34;
const PANEL: u32 = 190;
/// Time beyond the end is where the names of lines are.
const LEGEND: f64 = 1.18;
const FONT: &str = "sans-serif";
const COLORS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 98, 20),
    RGBColor(44, 140, 44),
    RGBColor(140, 60, 150),
    RGBColor(120, 86, 75),
    RGBColor(90, 90, 90),
];

/// A line of a panel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// One of the diagrams.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) lines: Vec<Line>,
    /// Labels of its height.
    pub(super) labels: usize,
}

/// The picture, until `end`. Where something was asked for it has a shade, from one moment to another.
pub(super) fn svg(title: &str, panels: &[Panel], asked: &[Range<f64>], end: f64) -> Result<String> {
    let mut svg = String::new();
    {
        let count = u32::try_from(panels.len())?;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, TITLE + PANEL * count));
        let area = area.into_drawing_area();
        area.fill(&WHITE)?;
        area.draw(&Text::new(title.to_owned(), (12, 12), (FONT, 16).into_font()))?;
        let (_, rest) = area.split_vertically(TITLE);
        for (place, panel) in rest.split_evenly((panels.len(), 1)).iter().zip(panels) {
            draw(place, panel, asked, end)?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// A line that keeps its height until there is another value.
pub(super) fn steps(
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

pub(super) fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
    asked: &[Range<f64>],
    end: f64,
) -> Result<()> {
    let most = panel.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let top = most.fold(1.0, f64::max) * 1.1;
    let heights: Range<f64> = 0.0..top;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 13))
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
    chart.draw_series(asked.iter().map(|time| {
        let style = BLACK.mix(0.15).filled();
        Rectangle::new([(time.start, 0.0), (time.end.max(time.start + end / 500.0), top)], style)
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
