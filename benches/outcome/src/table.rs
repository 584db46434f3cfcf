//! Text in columns.

use comfy_table::{CellAlignment, Table, presets};

/// Lines of a table: words on the left, and from the column `figures` on, on the right. A header without words is left out.
#[must_use]
pub fn text(header: &[&str], rows: &[Vec<String>], figures: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if !header.is_empty() {
        table.set_header(header);
    }
    table.add_rows(rows);
    table.discover_columns();
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if number >= figures {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // Lines end where their text does, so that a copy of them has no spaces at the end.
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[&[&str]]) -> Vec<Vec<String>> {
        let owned = |row: &&[&str]| row.iter().map(|cell| (*cell).to_owned()).collect();
        cells.iter().map(owned).collect()
    }

    #[test]
    fn columns_are_aligned() {
        let cells = rows(&[&["ccc", "d", "1"], &["e", "ff", "22"]]);

        assert_eq!(text(&["a", "bb", "n"], &cells, 2), "a    bb   n\nccc  d    1\ne    ff  22\n");
        assert_eq!(text(&[], &cells, 3), "ccc  d   1\ne    ff  22\n");
    }

    #[test]
    fn row_that_lacks_cells_is_a_shorter_line() {
        let cells = rows(&[&["a", "1"], &["b"]]);

        assert_eq!(text(&["", "x", "y"], &cells, 1), "   x  y\na  1\nb\n");
    }
}
