//! Downloads of an archive that is not stored yet: by one client, compared with a direct download, and by a hundred at
//! once.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;

use crate::Bench;
use crate::catalog::{self, PLATFORM, Release};
use crate::clients::once::{self, AnswerTiming};
use crate::compared_server::archive_path;
use crate::larder::{self, Home, Larder, Log};
use crate::measure::{median, rounds};
use crate::nginx::Nginx;
use crate::report::{ResultTable, Target, cell};

/// Speed at which the registry sends the archive.
const BYTES_PER_SECOND: u64 = 50_000_000;

/// The allowed ratio of the time of a whole download to that of a direct one.
const MAX_LAST_BYTE_RATIO: f64 = 1.05;

/// The allowed delay of the first byte against the registry, in milliseconds.
const MAX_FIRST_BYTE_DELAY_MS: f64 = 2.0;

/// Speed at which the registry sends the archive where its TLS counts.
const FAST_BYTES_PER_SECOND: u64 = 500_000_000;

/// The allowed ratio of the time of a whole download from a fast registry with TLS to that of a direct one.
const MAX_FAST_RATIO: f64 = 1.3;

const FAST_NAME: &str = "fast";
const NAME: &str = "cold";
const CLIENTS: usize = 100;

/// The server from which the clients download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Registry,
    Larder,
    Nginx,
}

/// The measurements of one archive. Each starts a new server with an empty store.
struct ColdDownloads<'a> {
    bench: &'a Bench,
    nginx: Option<&'a Path>,
    archive_bytes: usize,
    /// Path of the archive at the registry.
    path: String,
}

/// Measures the selected rows.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let archive_bytes = if bench.options.quick { 15_000_000 } else { 150_000_000 };
    let size = format!("{} MB", archive_bytes / 1_000_000);
    let one = format!("cold {size}, upstream at 50 MB/s");
    let many = format!("cold {size}, {CLIENTS} clients");
    let fast = format!("cold {size}, upstream with TLS at 500 MB/s");
    if ![&one, &many, &fast].into_iter().any(|row| bench.wants(row)) {
        return Ok(None);
    }
    let path = publish(bench, NAME, archive_bytes, BYTES_PER_SECOND)?;
    let cold = ColdDownloads { bench, nginx: bench.nginx.as_deref(), archive_bytes, path };
    let mut table = ResultTable::new(
        "An archive that is not stored yet (times since the client connected)",
        &["", "direct", "larder", "nginx", "larder/direct", "larder/nginx"],
    );
    let rounds = bench.options.rounds().min(3);
    if bench.wants(&one) {
        bench.progress(&one);
        cold.measure_one_client(&mut table, &one, rounds)?;
    }
    if bench.wants(&many) {
        bench.progress(&many);
        cold.measure_many_clients(&mut table, &many, rounds)?;
    }
    if bench.wants(&fast) {
        bench.progress(&fast);
        measure_fast(bench, &mut table, &fast, archive_bytes)?;
    }
    Ok(Some(table))
}

/// The time of a whole download from a fast registry with TLS, through larder and directly.
fn measure_fast(bench: &Bench, table: &mut ResultTable, name: &str, archive_bytes: usize) -> anyhow::Result<()> {
    let path = publish(bench, FAST_NAME, archive_bytes, FAST_BYTES_PER_SECOND)?;
    let registry = bench.block_on(bench.upstream.listen_with_tls(&bench.certificate))?;
    let tls = bench.certificate.client_config(b"http/1.1")?;
    let document = larder::larder_path(&catalog::document_path(FAST_NAME, "1.0.0", PLATFORM));
    let sources = [Source::Registry, Source::Larder];
    let timings = rounds(&sources, bench.options.rounds(), |source| {
        let timing = match source {
            Source::Larder => {
                let home =
                    Home::in_front_of(bench, &format!("https://localhost:{}/", registry.port()), None, Log::Off)?;
                let ca_file = &bench.certificate.authority_file;
                let larder =
                    home.network(&format!("allow_private = [\"127.0.0.1\"]\nca_file = {ca_file:?}"))?.start()?;
                let base = format!("http://{}", larder.address);
                let path = bench.block_on(archive_path(&bench.client, &format!("{base}{document}")))?;
                once::time_one(larder.address, &path)?
            }
            _ => once::time_one_over(registry, Some(&tls), &path)?,
        };
        ensure!(timing.bytes >= archive_bytes, "{source:?} sent {} bytes", timing.bytes);
        Ok(timing)
    })?;
    let [direct, larder] = [&timings[0], &timings[1]];
    let ratios = |value: fn(&AnswerTiming) -> f64| {
        median(larder.iter().zip(direct).map(|(larder, direct)| value(larder) / value(direct)))
    };
    let ratio = ratios(|timing| timing.last_byte.as_secs_f64());
    let seconds = |timings: &[AnswerTiming]| median(timings.iter().map(|timing| timing.last_byte.as_secs_f64()));
    let text = |seconds: f64| cell(Some(format!("{seconds:.2} s")));
    let cells =
        vec![text(seconds(direct)), text(seconds(larder)), cell(None), cell(Some(format!("{ratio:.2}"))), cell(None)];
    let target = Target { met: ratio <= MAX_FAST_RATIO, text: format!("{MAX_FAST_RATIO} x direct") };
    table.add_row(&format!("{name}: last byte"), cells, vec![target]);
    Ok(())
}

/// Publishes the archive at the limited speed; returns its path.
pub(crate) fn publish(
    bench: &Bench,
    name: &str,
    archive_bytes: usize,
    bytes_per_second: u64,
) -> anyhow::Result<String> {
    let mut archive_path = String::new();
    for (path, file) in Release::new(name, archive_bytes).served_files()? {
        let file = if file.is_archive() {
            archive_path.clone_from(&path);
            file.limited_to(bytes_per_second)
        } else {
            file
        };
        bench.upstream.publish(path, file);
    }
    Ok(archive_path)
}

impl ColdDownloads<'_> {
    fn measure_one_client(&self, table: &mut ResultTable, name: &str, round_count: usize) -> anyhow::Result<()> {
        let sources = self.sources_with(&[Source::Registry]);
        let timings_by_source = rounds(&sources, round_count, |source| {
            self.serve(*source, |address, path| {
                let timing = once::time_one(address, path)?;
                ensure!(timing.bytes >= self.archive_bytes, "{source:?} sent {} bytes", timing.bytes);
                Ok(timing)
            })
        })?;
        let median_of = |wanted: Source, value: fn(&AnswerTiming) -> Duration| {
            let (_, timings) = sources.iter().zip(&timings_by_source).find(|(source, _)| **source == wanted)?;
            Some(median(timings.iter().map(|timing| value(timing).as_secs_f64())))
        };
        let medians = |value: fn(&AnswerTiming) -> Duration| {
            [Source::Registry, Source::Larder, Source::Nginx].map(|source| median_of(source, value))
        };

        let [direct, larder, nginx] = medians(|timing| timing.first_byte);
        let text = |seconds: Option<f64>| cell(seconds.map(|seconds| format!("{:.1} ms", seconds * 1e3)));
        let delay_ms = |other: Option<f64>| Some((larder? - other?) * 1e3);
        let delay_to = |other: Option<f64>| cell(delay_ms(other).map(|delay| format!("{delay:+.1} ms")));
        let met = delay_ms(direct).is_some_and(|delay| delay <= MAX_FIRST_BYTE_DELAY_MS);
        let target = Target { met, text: format!("+{MAX_FIRST_BYTE_DELAY_MS} ms") };
        let cells = vec![text(direct), text(larder), text(nginx), delay_to(direct), delay_to(nginx)];
        table.add_row(&format!("{name}: first byte"), cells, vec![target]);

        let [direct, larder, nginx] = medians(|timing| timing.last_byte);
        let text = |seconds: Option<f64>| cell(seconds.map(|seconds| format!("{seconds:.2} s")));
        let ratio = |other: Option<f64>| Some(larder? / other?);
        let ratio_to = |other: Option<f64>| cell(ratio(other).map(|ratio| format!("{ratio:.2}")));
        let met = ratio(direct).is_some_and(|ratio| ratio <= MAX_LAST_BYTE_RATIO);
        let target = Target { met, text: format!("{MAX_LAST_BYTE_RATIO} x direct") };
        let cells = vec![text(direct), text(larder), text(nginx), ratio_to(direct), ratio_to(nginx)];
        table.add_row(&format!("{name}: last byte"), cells, vec![target]);
        Ok(())
    }

    fn measure_many_clients(&self, table: &mut ResultTable, name: &str, round_count: usize) -> anyhow::Result<()> {
        let sources = self.sources_with(&[]);
        let timings_by_source = rounds(&sources, round_count, |source| {
            let requests_before = self.bench.upstream.request_count(&self.path);
            let slowest = self.serve(*source, |address, path| {
                let timings = once::time_together(address, path, CLIENTS)?;
                ensure!(
                    timings.iter().all(|timing| timing.bytes >= self.archive_bytes),
                    "{source:?} sent an incomplete archive"
                );
                Ok(timings.iter().map(|timing| timing.last_byte).max().unwrap_or_default())
            })?;
            Ok((self.bench.upstream.request_count(&self.path) - requests_before, slowest.as_secs_f64()))
        })?;
        let median_of = |wanted: Source, value: fn(&(u64, f64)) -> f64| {
            let (_, timings) = sources.iter().zip(&timings_by_source).find(|(source, _)| **source == wanted)?;
            Some(median(timings.iter().map(value)))
        };
        let larder_rounds = sources.iter().zip(&timings_by_source).filter(|(source, _)| **source == Source::Larder);
        let max_requests = larder_rounds.flat_map(|(_, timings)| timings).map(|(requests, _)| *requests).max();
        let requests = [Source::Larder, Source::Nginx]
            .map(|source| cell(median_of(source, |(requests, _)| *requests as f64).map(|n| format!("{n}"))));
        let [larder, nginx] = requests;
        let target = Target { met: max_requests == Some(1), text: "1".into() };
        table.add_row(
            &format!("{name}: requests upstream"),
            vec![cell(None), larder, nginx, cell(None), cell(None)],
            vec![target],
        );
        let [larder, nginx] = [Source::Larder, Source::Nginx].map(|source| median_of(source, |(_, seconds)| *seconds));
        let ratio = cell(larder.zip(nginx).map(|(larder, nginx)| format!("{:.2}", larder / nginx)));
        let [larder, nginx] = [larder, nginx].map(|seconds| cell(seconds.map(|seconds| format!("{seconds:.2} s"))));
        table.add_row(
            &format!("{name}: last byte of the last client"),
            vec![cell(None), larder, nginx, cell(None), ratio],
            vec![],
        );
        Ok(())
    }

    /// These sources, then larder and, if it is installed, nginx.
    fn sources_with(&self, others: &[Source]) -> Vec<Source> {
        others.iter().copied().chain([Source::Larder]).chain(self.nginx.map(|_| Source::Nginx)).collect()
    }

    /// Runs `download` against a new server with an empty store. The documents of the archive are fetched before it, as
    /// by a client.
    fn serve<T>(
        &self,
        source: Source,
        download: impl FnOnce(SocketAddr, &str) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let Bench { upstream, certificate, client, .. } = self.bench;
        let document = catalog::document_path(NAME, "1.0.0", PLATFORM);
        match (source, self.nginx) {
            (Source::Larder, _) => {
                let larder = Larder::start(self.bench, None, Log::Off)?;
                let document = format!("http://{}{}", larder.address, larder::larder_path(&document));
                let path = self.bench.block_on(archive_path(client, &document))?;
                download(larder.address, &path)
            }
            (Source::Nginx, Some(program)) => {
                let nginx = Nginx::start(program, upstream, certificate, Log::Off)?;
                let address = nginx.addresses.plain;
                self.bench.block_on(archive_path(client, &format!("http://{address}{document}")))?;
                download(address, &self.path)
            }
            _ => download(upstream.address(), &self.path),
        }
    }
}
