//! The hottest pages as a table.

use super::named::{Named, class};
use comfy_table::{CellAlignment, Table, presets};
use dsm::PageTrace;
use std::fmt::Write;
use vmm::control::TraceAnswer;

const COLUMNS: [&str; 11] = [
    "page",
    "kind",
    "read",
    "write",
    "upgrade",
    "taken",
    "shared",
    "ping-pong",
    "peer",
    "code",
    "data",
];
/// Columns with numbers.
const NUMBERS: std::ops::Range<usize> = 2..9;

/// A table for each slice.
pub(super) fn text(named: &Named<'_>) -> String {
    let mut text = String::new();
    for answer in named.answers {
        let TraceAnswer { slice, seconds, faults, pages_known, samples_kept, on, .. } = answer;
        let off = if *on { "" } else { "; tracing is off" };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "slice {slice}: {faults} faults on {pages_known} pages in {seconds:.1} s, {samples_kept} \
             samples{off}"
        );
        if !answer.pages.is_empty() {
            text.push_str(&rows(named, &answer.pages));
        }
        text.push('\n');
    }
    text
}

fn rows(named: &Named<'_>, pages: &[PageTrace]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(COLUMNS);
    for column in NUMBERS {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for page in pages {
        let site = Named::main_site(page);
        let code = site.map_or_else(String::new, |site| {
            format!(
                "{} ({})",
                named.code(site),
                page.sites.iter().map(|site| site.count).sum::<u32>()
            )
        });
        table.add_row([
            format!("{:#x}", page.gfn),
            class(page.class).to_owned(),
            page.read.to_string(),
            page.write.to_string(),
            page.upgrade.to_string(),
            page.taken.to_string(),
            page.shared.to_string(),
            page.ping_pongs.to_string(),
            page.peer.map_or_else(String::new, |peer| peer.to_string()),
            code,
            named.data(page, site),
        ]);
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::super::named::tests::answer;
    use super::super::symbols::tests::symbols;
    use super::*;

    #[test]
    fn table_has_a_line_for_each_page() {
        let (answers, symbols) = ([answer()], symbols());
        let text = text(&Named::new(&answers, Some(&symbols)));
        let lines: Vec<Vec<_>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..4], ["slice", "1:", "43", "faults"]);
        assert_eq!(lines[1], COLUMNS);
        let first =
            ["0x2000", "other", "35", "0", "0", "5", "0", "2", "0", "try_to_wake_up", "(4)"];
        assert_eq!((&lines[2][..11], lines[2][11]), (&first[..], "tick_lock+0x8"));
        assert_eq!(lines[3][9..], ["runqueues", "of", "vCPU", "1"]);
        assert_eq!(lines[4].len(), 9);
    }
}
