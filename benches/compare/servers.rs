//! All compared servers, in front of one registry and with warm stores, for the rows of cached content.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use crate::Bench;
use crate::catalog::{self, PLATFORM, Release};
use crate::compared_server::{Addresses, ComparedServer, Processes, Resource, ServerName, archive_path, warm};
use crate::hyper_server::HyperServer;
use crate::larder::{self, Home, Larder, Log};
use crate::nginx::Nginx;
use crate::upstream::ServedFile;
use crate::varnish::Varnish;

/// The archives: provider name, label, size.
pub(crate) const ARCHIVES: [(&str, &str, usize); 3] =
    [("small", "64 KB", 64_000), ("middle", "15 MB", 15_000_000), ("large", "150 MB", 150_000_000)];

/// The provider of all requested documents.
const DOCUMENT_PROVIDER: &str = "documented";

type Paths = HashMap<Resource, String>;

/// The running servers, with the paths of the resources at each.
pub(crate) struct ComparedServers {
    /// Two larders, because the listener of one has either TLS or none.
    larders: Vec<Larder>,
    _nginx: Option<Nginx>,
    _varnish: Option<Varnish>,
    _hyper: HyperServer,
    pub(crate) servers: Vec<ComparedServer>,
}

impl ComparedServers {
    /// Starts all servers, and warms them for these resources.
    pub(crate) fn start(bench: &Bench, resources: &HashSet<Resource>, log: Log) -> anyhow::Result<Self> {
        let Bench { upstream, certificate, .. } = bench;
        let (larders, larder) = start_larders(bench, resources, log)?;
        let (paths, plain) = (larder.paths.clone(), larder.addresses.plain);
        let mut servers = vec![larder];

        let nginx = bench.nginx.as_ref();
        let nginx = nginx.map(|program| Nginx::start(program, upstream, certificate, log)).transpose()?;
        if let Some(nginx) = &nginx {
            let base = format!("http://{}", nginx.addresses.plain);
            let paths = bench.block_on(upstream_paths(bench, &base, &servers[0], resources))?;
            let (addresses, processes) = (nginx.addresses, Processes::both(nginx.processes()));
            servers.push(ComparedServer { name: ServerName::Nginx, addresses, paths, processes });
        }

        let has_documents = resources.iter().any(|resource| !matches!(resource, Resource::Archive(_)));
        let varnish = bench.varnish.as_ref().filter(|_| has_documents && log == Log::Off);
        let varnish = varnish.map(|program| Varnish::start(program, upstream)).transpose()?;
        if let Some(varnish) = &varnish {
            let base = format!("http://{}", varnish.addresses.plain);
            let documents = resources.iter().filter(|resource| !matches!(resource, Resource::Archive(_))).copied();
            let paths = bench.block_on(upstream_paths(bench, &base, &servers[0], &documents.collect()))?;
            let (addresses, processes) = (varnish.addresses, Processes::both(varnish.processes()));
            servers.push(ComparedServer { name: ServerName::Varnish, addresses, paths, processes });
        }

        let hyper = HyperServer::start(plain, paths.values().cloned().collect(), certificate)?;
        let (addresses, processes) = (hyper.addresses, Processes::both(hyper.processes()));
        servers.push(ComparedServer { name: ServerName::Hyper, addresses, paths, processes });
        Ok(Self { larders, _nginx: nginx, _varnish: varnish, _hyper: hyper, servers })
    }

    /// Restarts both larders on their stores.
    pub(crate) fn restart_larder(&mut self) -> anyhow::Result<()> {
        let homes: Vec<Home> = self.larders.drain(..).map(Larder::stop).collect::<Result<_, _>>()?;
        self.larders = homes.into_iter().map(Home::start).collect::<Result<_, _>>()?;
        let (addresses, processes) = addresses_and_processes(&self.larders);
        for server in self.servers.iter_mut().filter(|server| server.name == ServerName::Larder) {
            (server.addresses, server.processes) = (addresses, processes.clone());
        }
        Ok(())
    }
}

/// Starts a larder without TLS and one with it, warm for these resources.
pub(crate) fn start_larders(
    bench: &Bench,
    resources: &HashSet<Resource>,
    log: Log,
) -> anyhow::Result<(Vec<Larder>, ComparedServer)> {
    start_larders_under(bench, resources, log, None)
}

/// The same, under this valgrind, which counts nothing before it is told to.
pub(crate) fn start_larders_under(
    bench: &Bench,
    resources: &HashSet<Resource>,
    log: Log,
    valgrind: Option<&Path>,
) -> anyhow::Result<(Vec<Larder>, ComparedServer)> {
    publish(bench, resources)?;
    let start = |tls| Home::new(bench, tls, log)?.start_under(valgrind);
    let larders = vec![start(None)?, start(Some(&bench.certificate))?];
    let (addresses, processes) = addresses_and_processes(&larders);
    let Addresses { plain, tls } = addresses;
    bench.block_on(larder_paths(bench, &format!("https://{tls}"), resources))?;
    let paths = bench.block_on(larder_paths(bench, &format!("http://{plain}"), resources))?;
    Ok((larders, ComparedServer { name: ServerName::Larder, addresses, paths, processes }))
}

/// Addresses and processes of the two larders, of which the first has no TLS.
fn addresses_and_processes(larders: &[Larder]) -> (Addresses, Processes) {
    let [plain, tls] = [&larders[0], &larders[1]];
    let addresses = Addresses { plain: plain.address, tls: tls.address };
    (addresses, Processes { plain: plain.processes(), tls: tls.processes() })
}

/// Publishes these resources at the registry.
pub(crate) fn publish(bench: &Bench, resources: &HashSet<Resource>) -> anyhow::Result<()> {
    let archives = ARCHIVES.into_iter().filter(|(name, ..)| resources.contains(&Resource::Archive(name)));
    for (name, _, bytes) in archives {
        bench.publish(&Release::new(name, bytes))?;
    }
    bench.publish(&Release::new(DOCUMENT_PROVIDER, 4_000))?;
    bench.upstream.publish(catalog::list_path(DOCUMENT_PROVIDER), catalog::long_list()?);
    Ok(())
}

/// The path of a document at the registry; that of the long list for what is no document there.
pub(crate) fn document_path_of(resource: Resource) -> String {
    match resource {
        Resource::DownloadDocument => catalog::document_path(DOCUMENT_PROVIDER, "1.0.0", PLATFORM),
        Resource::VersionList | Resource::MirrorVersion | Resource::Archive(_) => catalog::list_path(DOCUMENT_PROVIDER),
    }
}

/// The paths of the resources at larder. Each is requested, so that it is stored.
pub(crate) async fn larder_paths(bench: &Bench, base: &str, resources: &HashSet<Resource>) -> anyhow::Result<Paths> {
    let mut paths = Paths::new();
    for resource in resources {
        let path = match resource {
            Resource::VersionList => larder::larder_path(&catalog::list_path(DOCUMENT_PROVIDER)),
            Resource::DownloadDocument => {
                larder::larder_path(&catalog::document_path(DOCUMENT_PROVIDER, "1.0.0", PLATFORM))
            }
            Resource::MirrorVersion => larder::mirror_version_path(DOCUMENT_PROVIDER, "1.0.0"),
            Resource::Archive(name) => {
                let document = larder::larder_path(&catalog::document_path(name, "1.0.0", PLATFORM));
                archive_path(&bench.client, &format!("{base}{document}")).await?
            }
        };
        warm(&bench.client, &format!("{base}{path}")).await?;
        paths.insert(*resource, path);
    }
    Ok(paths)
}

/// The paths of the resources at nginx, which are those at the registry. Each is requested, so that it is stored.
async fn upstream_paths(
    bench: &Bench,
    base: &str,
    larder: &ComparedServer,
    resources: &HashSet<Resource>,
) -> anyhow::Result<Paths> {
    let mut paths = Paths::new();
    for resource in resources {
        let path = match resource {
            Resource::VersionList => catalog::list_path(DOCUMENT_PROVIDER),
            Resource::DownloadDocument => catalog::document_path(DOCUMENT_PROVIDER, "1.0.0", PLATFORM),
            Resource::MirrorVersion => {
                // No registry has these documents, so the registry gets the one that larder renders.
                let path = larder.path(Resource::MirrorVersion)?;
                let answer = bench.client.get(format!("http://{}{path}", larder.addresses.plain)).send().await?;
                bench.upstream.publish(path.to_owned(), ServedFile::json(answer.text().await?)?);
                path.to_owned()
            }
            Resource::Archive(name) => {
                let document = catalog::document_path(name, "1.0.0", PLATFORM);
                archive_path(&bench.client, &format!("{base}{document}")).await?
            }
        };
        warm(&bench.client, &format!("{base}{path}")).await?;
        paths.insert(*resource, path);
    }
    Ok(paths)
}
