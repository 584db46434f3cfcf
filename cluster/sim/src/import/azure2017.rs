//! `vmtable.csv` of Azure's public dataset of 2017 (V1): no header, eleven columns, times in seconds from the beginning.
//!
//! ```text
//!   VM, subscription, deployment, created, deleted, max CPU, mean CPU, p95 CPU, category, cores, GB
//! ```
//! A VM that was there at the beginning was created at 0, and one that outlives the trace is deleted at its end: how long they
//! live nobody knows. The category (delay-insensitive, interactive, unknown) is of how the CPU is used over the day; it says
//! nothing of what vCPUs share.

use super::row::{Row, RowError};
use super::{Builder, ImportError, Trace, each_line};
use scheduler::Class;
use std::io::BufRead;

const COLUMNS: usize = 11;
const CREATED: usize = 3;
const DELETED: usize = 4;
const CORES: usize = 9;
const GB: usize = 10;
/// Of a column that is no number so much is shown.
const SHOWN: usize = 40;

/// Reads a trace.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read(file: impl BufRead) -> Result<Trace, ImportError> {
    let mut builder = Builder::default();
    let (mut last, mut outlive) = (f64::NEG_INFINITY, 0);
    each_line(file, |text| {
        let row = row(text)?;
        outlive = if row.ends > last { 1 } else { outlive + u64::from(row.ends == last) };
        last = last.max(row.ends);
        builder.add(row)
    })?;
    builder.outlive = outlive;
    builder.finish()
}

fn row(text: &str) -> Result<Row, RowError> {
    let columns: Vec<&str> = text.split(',').collect();
    if columns.len() != COLUMNS {
        return Err(RowError::Columns { found: columns.len(), wanted: COLUMNS });
    }
    Ok(Row {
        begins: number("created", columns[CREATED])?,
        ends: number("deleted", columns[DELETED])?,
        cores: number("cores", columns[CORES])?,
        memory_mib: number("memory", columns[GB])? * 1024.0,
        class: Class::Default,
        slices_max: None,
    })
}

fn number(column: &'static str, text: &str) -> Result<f64, RowError> {
    text.trim().parse().map_err(|_| {
        let text = text.chars().take(SHOWN).collect();
        RowError::Number { column, text }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::ORIGIN;
    use proptest::prelude::*;
    use scheduler::Resources;

    /// A line of that form, with made-up names.
    fn line(created: &str, deleted: &str, cores: &str, gb: &str) -> String {
        format!(
            "vm/a+b=,sub,dep,{created},{deleted},91.7,0.7,20.1,Delay-insensitive,{cores},{gb}\n"
        )
    }

    #[test]
    fn rows_are_read() {
        let text = line("300", "900", "4", "7.0") + &line("0", "2591700", "1", "1.75");

        let trace = read(text.as_bytes()).unwrap();

        assert_eq!((trace.outlive, trace.skipped), (1, 0));
        assert_eq!(trace.end, ORIGIN + 2_591_700_000);
        let [first, second] = &trace.requests[..] else { panic!("{trace:?}") };
        assert_eq!((first.at, first.spec.needs), (ORIGIN, Resources::new(1, 896)));
        assert_eq!((second.at, second.life), (ORIGIN + 300_000, 600_000));
        assert_eq!(second.spec.needs, Resources::new(4, 3584));
    }

    #[test]
    fn bad_rows_are_refused_with_their_number() {
        let good = line("0", "1", "1", "1");
        for (bad, why) in [
            ("a,b\n".to_owned(), "2 columns"),
            (line("soon", "1", "1", "1"), "created: \"soon\" is no number"),
            (line("NaN", "1", "1", "1"), "begin is NaN"),
            (line("5", "4", "1", "1"), "it ends at 4 and begins at 5"),
            (line("0", "1", ">24", "1"), "cores: \">24\""),
            (line("0", "1", "0", "1"), "cores is 0"),
            (line("0", "1", "1", "-1"), "memory is -1024"),
        ] {
            let found = read(format!("{good}{bad}").as_bytes()).unwrap_err().to_string();
            assert!(found.starts_with("line 2: ") && found.contains(why), "{found}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([0-9a-zA-Z.,+=\n-]{0,200})") {
            let _ = read(text.as_bytes());
        }

        #[test]
        fn rows_of_the_form_are_taken_or_refused_with_a_number(
            created in -1e10f64..1e10, life in -10f64..1e10, cores in 0u32..100_000, gb in -1f64..1e7,
        ) {
            let text = line(
                &created.to_string(), &(created + life).to_string(), &cores.to_string(), &gb.to_string(),
            );
            match read(text.as_bytes()) {
                Ok(trace) => prop_assert!(trace.requests[0].spec.check().is_ok()),
                Err(error) => prop_assert!(error.to_string().starts_with("line 1: ")),
            }
        }
    }
}
