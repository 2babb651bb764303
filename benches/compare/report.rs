//! The output: tables for the terminal, the same as Markdown, and the targets met.
#![expect(clippy::print_stdout, reason = "this module prints the report")]

use comfy_table::{CellAlignment, Table, presets};

/// A target of a row.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) met: bool,
    /// The target, such as `0.9 x nginx`.
    pub(crate) text: String,
}

impl Target {
    fn result_text(&self) -> String {
        format!("{} {}", if self.met { "met" } else { "MISSED" }, self.text)
    }
}

/// The cell of a figure; a dash without one.
pub(crate) fn cell(figure: Option<String>) -> String {
    figure.unwrap_or_else(|| "-".into())
}

/// A table of results. The first column has the names of the rows, the last one their targets.
pub(crate) struct ResultTable {
    title: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<String>, Vec<Target>)>,
}

impl ResultTable {
    pub(crate) fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|text| (*text).to_owned()).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new() }
    }

    pub(crate) fn add_row(&mut self, name: &str, cells: Vec<String>, targets: Vec<Target>) {
        self.rows.push((name.to_owned(), cells, targets));
    }

    /// Puts a label before the title.
    pub(crate) fn labelled(mut self, label: &str) -> Self {
        self.title = format!("{label}: {}", self.title);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn lines(&self) -> impl Iterator<Item = Vec<String>> {
        let header = self.columns.iter().cloned().chain(["target".to_owned()]).collect();
        let rows = self.rows.iter().map(|(name, cells, targets)| {
            let text: Vec<String> = targets.iter().map(Target::result_text).collect();
            [name.clone()].into_iter().chain(cells.iter().cloned()).chain([text.join(", ")]).collect()
        });
        [header].into_iter().chain(rows)
    }

    fn print(&self) {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let mut lines = self.lines();
        table.set_header(lines.next().unwrap_or_default());
        lines.for_each(|line| {
            table.add_row(line);
        });
        for column in table.column_iter_mut().skip(1).take(self.columns.len() - 1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        println!("\n{}\n{table}", self.title);
    }

    fn print_markdown(&self) {
        println!("\n**{}**\n", self.title);
        for (number, line) in self.lines().enumerate() {
            println!("| {} |", line.join(" | "));
            if number == 0 {
                println!("| --- {}| --- |", "| ---: ".repeat(self.columns.len() - 1));
            }
        }
    }
}

/// Prints everything.
pub(crate) fn print(tables: &[ResultTable], circumstances: &[String]) {
    tables.iter().for_each(ResultTable::print);
    let targets = || {
        tables
            .iter()
            .flat_map(|table| &table.rows)
            .flat_map(|(name, _, targets)| targets.iter().map(move |target| (name, target)))
    };
    println!("\n{} of {} targets met", targets().filter(|(_, target)| target.met).count(), targets().count());
    for (name, target) in targets().filter(|(_, target)| !target.met) {
        println!("  missed: {name}: {}", target.text);
    }
    println!("\n--- Markdown ---");
    tables.iter().for_each(ResultTable::print_markdown);
    println!();
    circumstances.iter().for_each(|line| println!("{line}"));
}
