//! The table of results, in the form of README.md.

/// The result of a client through larder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The same result as directly at the registry.
    Same,
    /// A different result, for this accepted reason.
    ExpectedDifference(&'static str),
    /// A different result that should be the same, with the difference.
    Wrong(String),
    /// The comparison was not run, for this reason.
    NotRun(String),
}

impl Verdict {
    fn text(&self) -> String {
        match self {
            Self::Same => "the same".to_owned(),
            Self::ExpectedDifference(reason) => format!("differs: {reason}"),
            Self::Wrong(subject) => format!("**WRONG**: {}", subject.replace(['\n', '|'], " ")),
            Self::NotRun(reason) => format!("not run: {reason}"),
        }
    }
}

struct Row {
    client: String,
    route: String,
    /// The compared items, several where their results are equal.
    compared_items: Vec<String>,
    verdict: Verdict,
}

/// The rows, in the order of the comparisons.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    compared: usize,
}

impl Report {
    /// Adds a comparison, and prints it at once, because all of them take minutes.
    pub(crate) fn row(&mut self, client: &str, route: &str, subject: &str, verdict: Verdict) {
        eprintln!("{client}, {route}: {subject}: {verdict:?}");
        self.compared += 1;
        let is_alike = |row: &&mut Row| row.client == client && row.route == route && row.verdict == verdict;
        match self.rows.last_mut().filter(is_alike) {
            Some(row) => row.compared_items.push(subject.to_owned()),
            None => {
                let [client, route] = [client, route].map(str::to_owned);
                self.rows.push(Row { client, route, compared_items: vec![subject.to_owned()], verdict });
            }
        }
    }

    /// The table, in Markdown.
    pub(crate) fn print(&self) {
        println!("\n| client | route | compared | through larder |\n| --- | --- | --- | --- |");
        for Row { client, route, compared_items, verdict } in &self.rows {
            println!("| {client} | {route} | {} | {} |", compared_items.join("; "), verdict.text());
        }
        let wrong = self.rows.iter().filter(|row| matches!(row.verdict, Verdict::Wrong(_))).count();
        println!("\n{} comparisons, {wrong} rows wrong", self.compared);
    }

    /// True if at least one row ran and none is wrong.
    pub(crate) fn is_good(&self) -> bool {
        let any_ran = self.rows.iter().any(|row| !matches!(row.verdict, Verdict::NotRun(_)));
        any_ran && !self.rows.iter().any(|row| matches!(row.verdict, Verdict::Wrong(_)))
    }
}

/// Compares two results that should be equal.
pub(crate) fn compare<T: PartialEq + std::fmt::Debug>(direct: &T, through_larder: &T) -> Verdict {
    match direct == through_larder {
        true => Verdict::Same,
        false => {
            let shown = |value: &T| format!("{value:#?}").chars().take(1500).collect::<String>();
            Verdict::Wrong(format!("direct: {} through larder: {}", shown(direct), shown(through_larder)))
        }
    }
}
