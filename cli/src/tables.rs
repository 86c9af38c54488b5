//! Tables that fit a terminal.

use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Row, Table, Width};
use console::Term;

use crate::Failure;
use crate::output::print;

/// A column is made no narrower than this to fit a terminal.
const NARROWEST: u16 = 6;

/// A column of rows of this type.
pub(crate) struct Column<'a, T> {
    pub(crate) title: &'a str,
    /// The width of a terminal that has room for the column.
    pub(crate) least: u16,
    /// Whether it is a name, which gives way where there is no room; the rest is as short as it is.
    pub(crate) is_name: bool,
    pub(crate) cell: Box<dyn Fn(&T) -> String + 'a>,
}

impl<'a, T> Column<'a, T> {
    /// A name.
    pub(crate) fn name(title: &'a str, cell: impl Fn(&T) -> String + 'a) -> Self {
        Self { title, least: 0, is_name: true, cell: Box::new(cell) }
    }

    /// A value, in terminals of at least this width.
    pub(crate) fn value(title: &'a str, least: u16, cell: impl Fn(&T) -> String + 'a) -> Self {
        Self { title, least, is_name: false, cell: Box::new(cell) }
    }
}

/// The width of the terminal on standard output, if it is one.
pub(crate) fn terminal_width() -> Option<u16> {
    let terminal = Term::stdout();
    terminal.is_term().then(|| terminal.size().1)
}

/// Makes a table. With a width, the table fits it; else it has all there is.
pub(crate) fn table<T>(columns: &[Column<'_, T>], rows: &[T], width: Option<u16>) -> Table {
    // In a narrow terminal, columns for programs make room for names.
    let columns: Vec<_> = columns.iter().filter(|column| width.is_none_or(|width| width >= column.least)).collect();
    let mut table = Table::new();
    table.load_style(NOTHING).set_truncation_indicator("…").set_header(columns.iter().map(|column| column.title));
    for row in rows {
        let mut row = Row::from(columns.iter().map(|column| (column.cell)(row)).collect::<Vec<_>>());
        row.max_height(1);
        table.add_row(row);
    }
    for (shown, column) in table.column_iter_mut().zip(&columns) {
        shown.set_padding((0, 2));
        shown.set_constraint(if column.is_name {
            ColumnConstraint::LowerBoundary(Width::Fixed(NARROWEST))
        } else {
            ColumnConstraint::ContentWidth
        });
    }
    match width {
        Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    table
}

/// The lines of a table.
pub(crate) fn lines(table: &Table) -> Vec<String> {
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Prints a table.
pub(crate) fn print_table(table: &Table) -> Result<(), Failure> {
    lines(table).iter().try_for_each(|line| print(line))
}
