//! The table of what was run, as the documents have it.

/// How a client fared through larder.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// As straight at the registry.
    Same,
    /// Not the same, for this reason.
    Differs(&'static str),
    /// Not the same, and it should be: what differs.
    Wrong(String),
    /// It was not run, for this reason.
    NotRun(String),
}

struct Row {
    client: String,
    route: String,
    what: String,
    verdict: Verdict,
}

/// Rows in the order that they were made.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// One more row. It is printed at once, too: the whole takes minutes.
    pub(crate) fn row(&mut self, client: &str, route: &str, what: &str, verdict: Verdict) {
        eprintln!("{client}, {route}: {what}: {verdict:?}");
        let [client, route, what] = [client, route, what].map(str::to_owned);
        self.rows.push(Row { client, route, what, verdict });
    }

    /// The table, in Markdown.
    pub(crate) fn print(&self) {
        println!("\n| client | route | compared | through larder |\n| --- | --- | --- | --- |");
        for Row { client, route, what, verdict } in &self.rows {
            let verdict = match verdict {
                Verdict::Same => "the same".to_owned(),
                Verdict::Differs(why) => format!("differs: {why}"),
                Verdict::Wrong(what) => format!("**WRONG**: {}", what.replace(['\n', '|'], " ")),
                Verdict::NotRun(why) => format!("not run: {why}"),
            };
            println!("| {client} | {route} | {what} | {verdict} |");
        }
        let wrong = self.rows.iter().filter(|row| matches!(row.verdict, Verdict::Wrong(_))).count();
        println!("\n{} rows, {wrong} of them wrong", self.rows.len());
    }

    /// Whether nothing is wrong, and anything was run.
    pub(crate) fn is_good(&self) -> bool {
        let ran = self.rows.iter().any(|row| !matches!(row.verdict, Verdict::NotRun(_)));
        ran && !self.rows.iter().any(|row| matches!(row.verdict, Verdict::Wrong(_)))
    }
}

/// The verdict on what should be equal.
pub(crate) fn compared<T: PartialEq + std::fmt::Debug>(straight: &T, through: &T) -> Verdict {
    match straight == through {
        true => Verdict::Same,
        false => {
            let shown = |value: &T| format!("{value:#?}").chars().take(1500).collect::<String>();
            Verdict::Wrong(format!("straight: {} through larder: {}", shown(straight), shown(through)))
        }
    }
}
