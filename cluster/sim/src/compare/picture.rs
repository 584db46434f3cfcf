//! The frontier: moves per hour across, core-hours in Aggregate VMs up. Below and to the left is better.

use super::Comparison;
use crate::tally::Figures;
use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use thiserror::Error;

const SIZE: (u32, u32) = (900, 560);

/// It cannot be drawn.
#[derive(Debug, Error)]
#[error("draw the frontier: {0}")]
pub struct PictureError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PictureError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

/// A point for each policy that splits VMs: the mean over seeds, as SVG.
///
/// # Errors
/// It cannot be drawn.
pub fn frontier(found: &Comparison) -> Result<String, PictureError> {
    let means = found.policies.iter().map(|(name, all)| (name.to_string(), Figures::mean(all)));
    let points: Vec<(String, f64, f64)> = means
        .filter(|(_, mean)| mean.aggregate_percent > 0.0)
        .map(|(name, mean)| (name, mean.moves_per_hour, mean.aggregate_percent))
        .collect();
    let mut svg = String::new();
    draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(), &points)?;
    Ok(svg)
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    points: &[(String, f64, f64)],
) -> Result<(), PictureError> {
    area.fill(&WHITE)?;
    let most = |of: fn(&(String, f64, f64)) -> f64| {
        points.iter().map(of).fold(f64::MIN_POSITIVE, f64::max) * 1.2
    };
    let mut chart = ChartBuilder::on(area)
        .margin(20)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..most(|it| it.1), 0.0..most(|it| it.2))?;
    chart
        .configure_mesh()
        .x_desc("moves per hour")
        .y_desc("core-hours in Aggregate VMs, %")
        .draw()?;
    chart.draw_series(points.iter().map(|(name, x, y)| {
        let colour = if name.starts_with("ours") { RED } else { BLUE };
        EmptyElement::at((*x, *y))
            + Circle::new((0, 0), 4, colour.filled())
            + Text::new(name.clone(), (7, -6), ("sans-serif", 13).into_font())
    }))?;
    area.present()?;
    Ok(())
}
