//! Tables that fit a terminal.

use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Row, Table, Width};
use console::{Term, measure_text_width};

/// The space between two columns.
const GAP: usize = 2;
/// A name is made no narrower than this to fit a terminal.
const NARROWEST: u16 = 6;
/// The part of a name that is worth more than a column that can give way.
const NAME_WIDTH: usize = 20;

/// A column of rows of this type.
pub(crate) struct Column<'a, T> {
    title: &'a str,
    kind: Kind,
    cell: Box<dyn Fn(&T) -> String + 'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Not cut as long as another column can give way.
    Key,
    /// Cut where there is no room.
    Name,
    /// As wide as it is; absent where there is no room. The column of the highest number is the first to go, and that
    /// of zero stays.
    Value(u8),
}

impl<'a, T> Column<'a, T> {
    pub(crate) fn key(title: &'a str, cell: impl Fn(&T) -> String + 'a) -> Self {
        Self { title, kind: Kind::Key, cell: Box::new(cell) }
    }

    pub(crate) fn name(title: &'a str, cell: impl Fn(&T) -> String + 'a) -> Self {
        Self { title, kind: Kind::Name, cell: Box::new(cell) }
    }

    pub(crate) fn value(title: &'a str, gives_way: u8, cell: impl Fn(&T) -> String + 'a) -> Self {
        Self { title, kind: Kind::Value(gives_way), cell: Box::new(cell) }
    }
}

/// The cells of a column, under its title.
struct Filled {
    kind: Kind,
    cells: Vec<String>,
}

impl Filled {
    fn width(&self) -> usize {
        self.cells.iter().map(|cell| measure_text_width(cell)).max().unwrap_or_default()
    }

    /// The width without which the column, or another one, gives way.
    fn wanted(&self) -> usize {
        let width = if self.kind == Kind::Name { self.width().min(NAME_WIDTH) } else { self.width() };
        width + GAP
    }
}

/// The width of the terminal on standard output, if it is one.
pub(crate) fn terminal_width() -> Option<u16> {
    let terminal = Term::stdout();
    terminal.is_term().then(|| terminal.size().1)
}

/// Makes a table. With a width, the table fits it; else it has all there is.
pub(crate) fn table<T>(columns: &[Column<'_, T>], rows: &[T], width: Option<u16>) -> Table {
    let fill = |column: &Column<'_, T>| {
        let cells = rows.iter().map(|row| (column.cell)(row));
        Filled { kind: column.kind, cells: std::iter::once(column.title.to_owned()).chain(cells).collect() }
    };
    let mut filled: Vec<_> = columns.iter().map(fill).collect();
    let fits = |filled: &[Filled]| {
        width.is_none_or(|width| filled.iter().map(Filled::wanted).sum::<usize>() <= usize::from(width) + GAP)
    };
    while !fits(&filled) {
        let gives_way = |filled: &Filled| if let Kind::Value(order) = filled.kind { order } else { 0 };
        let Some(last) = filled.iter().map(gives_way).max().filter(|order| *order > 0) else { break };
        filled.retain(|filled| gives_way(filled) != last);
    }
    arrange(&filled, fits(&filled), width)
}

fn arrange(filled: &[Filled], keys_fit: bool, width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_truncation_indicator("…");
    for line in 0..filled.first().map_or(0, |column| column.cells.len()) {
        let mut row = Row::from(filled.iter().map(|column| column.cells[line].as_str()).collect::<Vec<_>>());
        row.max_height(1);
        if line == 0 {
            table.set_header(row)
        } else {
            table.add_row(row)
        };
    }
    for (shown, column) in table.column_iter_mut().zip(filled) {
        shown.set_padding((0, 2));
        shown.set_constraint(match column.kind {
            Kind::Key if !keys_fit => ColumnConstraint::LowerBoundary(Width::Fixed(NARROWEST)),
            Kind::Name => ColumnConstraint::LowerBoundary(Width::Fixed(NARROWEST)),
            Kind::Key | Kind::Value(_) => ColumnConstraint::ContentWidth,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_at(width: u16, key: &str) -> Vec<String> {
        let columns = [
            Column::key("KEY", |row: &[&str; 4]| row[0].to_owned()),
            Column::name("OWNER", |row: &[&str; 4]| row[1].to_owned()),
            Column::value("TOKEN", 1, |row: &[&str; 4]| row[2].to_owned()),
            Column::value("VERSION", 2, |row: &[&str; 4]| row[3].to_owned()),
        ];
        lines(&table(
            &columns,
            &[[key, "a-host-with-a-long-name.example.com", "1795256832324117", "59dc6280"]],
            Some(width),
        ))
    }

    #[test]
    fn column_gives_way_before_a_key_is_cut() {
        let key = "nightly-report-of-all-regions";
        for (width, header) in [
            (100, ["KEY", "OWNER", "TOKEN", "VERSION"].as_slice()),
            (75, &["KEY", "OWNER", "TOKEN"]),
            (52, &["KEY", "OWNER"]),
        ] {
            let lines = lines_at(width, key);
            assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), header, "{lines:?}");
            assert!(lines.len() == 2 && lines[1].starts_with(key), "{lines:?}");
            assert!(lines.iter().all(|line| line.chars().count() <= usize::from(width)), "{lines:?}");
        }
        let lines = lines_at(40, &key.repeat(2));
        assert!(lines.len() == 2 && lines[1].contains('…') && lines[1].chars().count() <= 40, "{lines:?}");
    }
}
