//! Content that is not cached: one client beside a direct download, and a hundred at once.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;

use crate::Bench;
use crate::catalog::{self, PLATFORM, Release};
use crate::clients::once::{self, AnswerTiming};
use crate::larder::{self, Larder, Log};
use crate::measure::{median, rounds};
use crate::nginx::Nginx;
use crate::peer::archive_path;
use crate::report::{Section, Target, cell};

/// Speed at which the registry sends the archive.
const BYTES_PER_SECOND: u64 = 50_000_000;

/// The allowed ratio to a direct download.
const MAX_WHOLE_RATIO: f64 = 1.05;

/// The allowed delay of the first byte against the registry, in milliseconds.
const MAX_FIRST_BYTE_DELAY_MS: f64 = 10.0;

const NAME: &str = "cold";
const CLIENTS: usize = 100;

/// Server from which the client downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Registry,
    Larder,
    Nginx,
}

/// A server for one cold archive, used once.
struct Cold<'a> {
    bench: &'a Bench,
    nginx: Option<&'a Path>,
    archive_bytes: usize,
    /// Path of the archive at the registry.
    path: String,
}

/// Measures the selected rows.
pub(crate) fn section(bench: &Bench) -> anyhow::Result<Option<Section>> {
    let archive_bytes = if bench.options.quick { 15_000_000 } else { 150_000_000 };
    let size = format!("{} MB", archive_bytes / 1_000_000);
    let one = format!("cold {size}, upstream at 50 MB/s");
    let many = format!("cold {size}, {CLIENTS} clients");
    if !bench.wants(&one) && !bench.wants(&many) {
        return Ok(None);
    }
    let path = publish(bench, archive_bytes)?;
    let cold = Cold { bench, nginx: bench.nginx.as_deref(), archive_bytes, path };
    let mut section = Section::new(
        "Not stored yet (from the connection on)",
        &["", "direct", "larder", "nginx", "larder/direct", "larder/nginx"],
    );
    let rounds = bench.options.rounds().min(3);
    if bench.wants(&one) {
        bench.progress(&one);
        cold.measure_one_client(&mut section, &one, rounds)?;
    }
    if bench.wants(&many) {
        bench.progress(&many);
        cold.measure_many_clients(&mut section, &many, rounds)?;
    }
    Ok(Some(section))
}

/// Publishes the archive at the limited speed; returns its path.
fn publish(bench: &Bench, archive_bytes: usize) -> anyhow::Result<String> {
    let mut archive = String::new();
    for (path, page) in Release::of(NAME, archive_bytes).pages()? {
        let page = if page.is_archive() {
            archive.clone_from(&path);
            page.paced(BYTES_PER_SECOND)
        } else {
            page
        };
        bench.upstream.publish(path, page);
    }
    Ok(archive)
}

impl Cold<'_> {
    fn measure_one_client(&self, section: &mut Section, name: &str, count: usize) -> anyhow::Result<()> {
        let from = self.from(&[Route::Registry]);
        let all = rounds(&from, count, |from| {
            self.serve(*from, |address, path| {
                let once = once::ask(address, path)?;
                ensure!(once.bytes >= self.archive_bytes, "{from:?} sent {} bytes", once.bytes);
                Ok(once)
            })
        })?;
        let select = |wanted: Route, value: fn(&AnswerTiming) -> Duration| {
            let (_, timings) = from.iter().zip(&all).find(|(from, _)| **from == wanted)?;
            Some(median(timings.iter().map(|once| value(once).as_secs_f64())))
        };
        let medians = |value: fn(&AnswerTiming) -> Duration| {
            [Route::Registry, Route::Larder, Route::Nginx].map(|from| select(from, value))
        };

        let [direct, larder, nginx] = medians(|once| once.first);
        let text = |seconds: Option<f64>| cell(seconds.map(|seconds| format!("{:.1} ms", seconds * 1e3)));
        let delay_ms = |other: Option<f64>| Some((larder? - other?) * 1e3);
        let text_of = |other: Option<f64>| cell(delay_ms(other).map(|delay| format!("{delay:+.1} ms")));
        let met = delay_ms(direct).is_some_and(|delay| delay <= MAX_FIRST_BYTE_DELAY_MS);
        let target = Target { met, text: format!("+{MAX_FIRST_BYTE_DELAY_MS} ms") };
        let cells = vec![text(direct), text(larder), text(nginx), text_of(direct), text_of(nginx)];
        section.add(&format!("{name}: first byte"), cells, vec![target]);

        let [direct, larder, nginx] = medians(|once| once.whole);
        let text = |seconds: Option<f64>| cell(seconds.map(|seconds| format!("{seconds:.2} s")));
        let ratio = |other: Option<f64>| Some(larder? / other?);
        let text_of = |other: Option<f64>| cell(ratio(other).map(|ratio| format!("{ratio:.2}")));
        let met = ratio(direct).is_some_and(|ratio| ratio <= MAX_WHOLE_RATIO);
        let target = Target { met, text: format!("{MAX_WHOLE_RATIO} x direct") };
        let cells = vec![text(direct), text(larder), text(nginx), text_of(direct), text_of(nginx)];
        section.add(&format!("{name}: whole"), cells, vec![target]);
        Ok(())
    }

    fn measure_many_clients(&self, section: &mut Section, name: &str, count: usize) -> anyhow::Result<()> {
        let from = self.from(&[]);
        let all = rounds(&from, count, |from| {
            let before = self.bench.upstream.asked(&self.path);
            let last = self.serve(*from, |address, path| {
                let all = once::ask_together(address, path, CLIENTS)?;
                ensure!(all.iter().all(|once| once.bytes >= self.archive_bytes), "{from:?} sent less than all");
                Ok(all.iter().map(|once| once.whole).max().unwrap_or_default())
            })?;
            Ok((self.bench.upstream.asked(&self.path) - before, last.as_secs_f64()))
        })?;
        let select = |wanted: Route, value: fn(&(u64, f64)) -> f64| {
            let (_, timings) = from.iter().zip(&all).find(|(from, _)| **from == wanted)?;
            Some(median(timings.iter().map(value)))
        };
        let larder_rounds = from.iter().zip(&all).filter(|(from, _)| **from == Route::Larder);
        let max_requests = larder_rounds.flat_map(|(_, timings)| timings).map(|(request, _)| *request).max();
        let requests = [Route::Larder, Route::Nginx]
            .map(|from| cell(select(from, |timings| timings.0 as f64).map(|n| format!("{n}"))));
        let [larder, nginx] = requests;
        let target = Target { met: max_requests == Some(1), text: "1".into() };
        section.add(
            &format!("{name}: requests upstream"),
            vec![cell(None), larder, nginx, cell(None), cell(None)],
            vec![target],
        );
        let [larder, nginx] = [Route::Larder, Route::Nginx].map(|from| select(from, |timings| timings.1));
        let ratio = cell(larder.zip(nginx).map(|(larder, nginx)| format!("{:.2}", larder / nginx)));
        let [larder, nginx] = [larder, nginx].map(|last| cell(last.map(|last| format!("{last:.2} s"))));
        section.add(&format!("{name}: until all have it"), vec![cell(None), larder, nginx, cell(None), ratio], vec![]);
        Ok(())
    }

    fn from(&self, first: &[Route]) -> Vec<Route> {
        first.iter().copied().chain([Route::Larder]).chain(self.nginx.map(|_| Route::Nginx)).collect()
    }

    /// Runs `ask` against a new server with an empty store. The documents that lead to the archive are fetched before, as
    /// a client would have done.
    fn serve<T>(&self, from: Route, ask: impl FnOnce(SocketAddr, &str) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let Bench { upstream, certificate, client, .. } = self.bench;
        let document = catalog::document_path(NAME, "1.0.0", PLATFORM);
        match (from, self.nginx) {
            (Route::Larder, _) => {
                let larder = Larder::start(self.bench, None, Log::Off)?;
                let document = format!("http://{}{}", larder.address, larder::under(&document));
                let path = self.bench.block_on(archive_path(client, &document))?;
                ask(larder.address, &path)
            }
            (Route::Nginx, Some(program)) => {
                let nginx = Nginx::start(program, upstream, certificate, Log::Off)?;
                let address = nginx.listening.plain;
                self.bench.block_on(archive_path(client, &format!("http://{address}{document}")))?;
                ask(address, &self.path)
            }
            _ => ask(upstream.address(), &self.path),
        }
    }
}
