//! `larder import`: a tree of `terraform providers mirror` into the store, with a word for each archive.

use std::io::{self, PipeWriter};
use std::path::PathBuf;
use std::sync::Arc;

use bytesize::ByteSize;
use clap::Args;

use super::text::{Page, counted, shown_as_text, width_of_stdout};
use super::{Common, ask_running, ignore_file_limits, runtime, say, say_error};
use crate::app::{self, Settings};
use crate::config::Config;
use crate::filesystem_mirror::folder::Folder;
use crate::filesystem_mirror::send::{self, Sorted};
use crate::http::admin_client::{self, NoAnswer};
use crate::mirror::{ImportCounts, ImportStep, ImportedFile, Judged, ProvenBy, Unsigned};
use crate::protocol::admin::trees::import_path;

#[derive(Debug, Args)]
pub(super) struct Import {
    #[command(flatten)]
    common: Common,
    /// A tree that `terraform providers mirror` or `larder export` made
    #[arg(value_name = "DIR")]
    tree: PathBuf,
    /// Take archives that nothing proves, and keys that came with the tree and were never seen: you vouch for them
    #[arg(long)]
    unsigned: bool,
}

impl Import {
    /// Runs it; says whether nothing was refused.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let folder = Arc::new(Folder::open(&self.tree)?);
        let sorted = send::sorted(&folder)?;
        let mut report = Report { json: self.common.json, ..Report::default() };
        for (file, why) in &sorted.refused {
            report.tell(ImportStep::File(refused_here(file, why)));
        }
        if sorted.archives == 0 && sorted.refused.is_empty() {
            anyhow::bail!(
                "there is no archive in {}: it should be at HOST/NAMESPACE/TYPE/terraform-provider-TYPE_VERSION_OS_ARCH.zip",
                self.tree.display()
            );
        }
        let unsigned = if self.unsigned { Unsigned::Taken } else { Unsigned::Refused };
        let runtime = runtime()?;
        let imported = runtime.block_on(import(&config, folder, Arc::new(sorted), unsigned, &mut report));
        runtime.shutdown_timeout(std::time::Duration::from_secs(1));
        imported?;
        Ok(report.ended())
    }
}

fn refused_here(file: &str, why: &str) -> ImportedFile {
    let judged = Judged::Refused { why: why.to_owned() };
    ImportedFile { file: file.to_owned(), what: None, platform: None, size_bytes: 0, judged, notes: Vec::new() }
}

async fn import(
    config: &Config,
    folder: Arc<Folder>,
    sorted: Arc<Sorted>,
    unsigned: Unsigned,
    report: &mut Report,
) -> anyhow::Result<()> {
    let _too_large = ignore_file_limits()?;
    let mut unread = None;
    let told = |line: &[u8]| match serde_json::from_slice(line) {
        Ok(step) => report.tell(step),
        Err(error) => unread = Some(error),
    };
    let tree = sent(Arc::clone(&folder), Arc::clone(&sorted))?;
    let asking = ask_running(config, async |at, token| {
        admin_client::upload(at, &import_path(unsigned), token, "application/x-tar", tree, told).await
    });
    match asking.await {
        Ok(()) => {}
        Err(NoAnswer::NotRunning(_)) => {
            let settings = Settings::default();
            // With importing a store may begin.
            let (mirror, _, _) = app::mirror(config, &settings)?;
            let mut steps = mirror.import(sent(folder, sorted)?, unsigned, &mirror.job(settings.clock.now()))?;
            while let Some(step) = steps.recv().await {
                report.tell(step);
            }
            mirror.close().await?;
        }
        Err(error) => return Err(error.into()),
    }
    match unread {
        Some(error) => Err(anyhow::Error::from(error).context("the running larder is of another version")),
        None => Ok(()),
    }
}

/// The tree as it is sent.
fn sent(folder: Arc<Folder>, sorted: Arc<Sorted>) -> io::Result<impl io::Read + Send + 'static> {
    let (reader, writer): (_, PipeWriter) = io::pipe()?;
    // A tar without an end is what a failure is to whoever reads; the reason is told here.
    std::thread::Builder::new().name("tree".into()).spawn(move || match send::send(&folder, &sorted, writer) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => say_error(&error.to_string()),
        _ => {}
    })?;
    Ok(reader)
}

/// What is told of an import, to whom.
#[derive(Default)]
struct Report {
    json: bool,
    files: Vec<ImportedFile>,
    counts: ImportCounts,
    ending: Option<ImportStep>,
}

impl Report {
    fn tell(&mut self, step: ImportStep) {
        let step = match step {
            // Those that were not even sent count, too.
            ImportStep::Done(_) => ImportStep::Done(self.counts),
            step => step,
        };
        if self.json {
            match serde_json::to_string(&step) {
                Ok(line) => say(&line),
                Err(error) => say_error(&error.to_string()),
            }
        }
        match step {
            ImportStep::File(file) => {
                self.counts.count(&file.judged);
                self.files.push(file);
            }
            ending => self.ending = Some(ending),
        }
    }

    /// Prints what came of it, and says whether nothing was refused.
    fn ended(self) -> bool {
        if !self.json {
            say(&page(&self.files, self.counts, width_of_stdout()));
        }
        match &self.ending {
            Some(ImportStep::Done(_)) => self.counts.refused == 0,
            Some(ImportStep::Stopped { error }) => {
                say_error(&format!(
                    "importing ended early: {error}; what was imported stays, and the same command goes on"
                ));
                false
            }
            _ => {
                say_error("larder stopped before the whole tree was imported; the same command goes on");
                false
            }
        }
    }
}

/// What came of each file, what is refused last.
fn page(files: &[ImportedFile], counts: ImportCounts, width: Option<usize>) -> String {
    let mut page = Page::of_width(width);
    let of = |is_it: fn(&Judged) -> bool| files.iter().filter(move |file| is_it(&file.judged));
    let ImportCounts { proven, unsigned, held, refused } = counts;
    if proven > 0 {
        page.group("proven", &counted(proven, "archive"));
        for file in of(|judged| matches!(judged, Judged::Proven { .. })) {
            let by = match &file.judged {
                Judged::Proven { by: ProvenBy::HeldSet } => "by the set that was held",
                Judged::Proven { by: ProvenBy::Upstream } => "by upstream's documents",
                _ => "by what lies beside it",
            };
            page.item(&format!("{}, {}, {by}", called(file), ByteSize(file.size_bytes)), None);
            notes(&mut page, file);
        }
        if files.iter().any(|file| file.judged == Judged::Proven { by: ProvenBy::Tree } && !file.notes.is_empty()) {
            page.item(KEYS_OF_THE_TREE, None);
        }
    }
    if unsigned > 0 {
        page.group("unsigned", &format!("{}: you alone vouch for them", counted(unsigned, "archive")));
        for file in of(|judged| *judged == Judged::Unsigned) {
            page.item(&format!("{}, {}", called(file), ByteSize(file.size_bytes)), None);
            notes(&mut page, file);
        }
        page.item(NO_SIGNATURES, None);
    }
    if held > 0 {
        page.group("held", &format!("{} already", counted(held, "archive")));
        of(|judged| *judged == Judged::Held).filter(|file| !file.notes.is_empty()).for_each(|file| {
            page.item(&called(file), None);
            notes(&mut page, file);
        });
    }
    if refused > 0 {
        page.group("refused", &counted(refused, "file"));
        for file in of(|judged| matches!(judged, Judged::Refused { .. })) {
            let why = if let Judged::Refused { why } = &file.judged { why.as_str() } else { "" };
            page.item(&shown_as_text(&file.file), Some(&shown_as_text(why)));
        }
    }
    if files.is_empty() {
        page.group("imported", "nothing");
    }
    page.text()
}

/// What a key proves that nobody else speaks for.
const KEYS_OF_THE_TREE: &str = "Whoever made the tree chose these keys: compare their fingerprints with the publishers' own, or import while upstream can be asked.";

/// What clients make of archives that nobody signed.
const NO_SIGNATURES: &str = "No signatures: they are served as a network mirror. By the registry protocol (a host override) Terraform refuses them (\"authentication signature from unknown issuer\"), and so does OpenTofu, but for providers of registry.opentofu.org.";

fn called(file: &ImportedFile) -> String {
    match (&file.what, &file.platform) {
        (Some(what), Some(platform)) => shown_as_text(&format!("{what} for {platform}")),
        _ => shown_as_text(&file.file),
    }
}

fn notes(page: &mut Page, file: &ImportedFile) {
    file.notes.iter().for_each(|note| page.item(&shown_as_text(note), None));
}
