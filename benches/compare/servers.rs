//! All compared servers, in front of one registry and with warm stores, for the rows of cached content.

use std::collections::{HashMap, HashSet};

use crate::Bench;
use crate::bare::Bare;
use crate::catalog::{self, PLATFORM, Release};
use crate::larder::{self, Home, Larder, Log};
use crate::nginx::Nginx;
use crate::peer::{Listening, Peer, Processes, ServerName, Subject, archive_path, warm};
use crate::upstream::ServedFile;

/// The archives: provider name, label, size.
pub(crate) const ARCHIVES: [(&str, &str, usize); 3] =
    [("small", "64 KB", 64_000), ("middle", "15 MB", 15_000_000), ("large", "150 MB", 150_000_000)];

/// The provider of all requested documents.
const DOCUMENTED: &str = "documented";

type Paths = HashMap<Subject, String>;

/// The running servers, with the paths of the content at each.
pub(crate) struct ComparedServers {
    /// Two larders, because the listener of one has either TLS or none.
    larders: Vec<Larder>,
    _nginx: Option<Nginx>,
    _bare: Bare,
    pub(crate) peers: Vec<Peer>,
}

impl ComparedServers {
    /// Starts all servers, and warms them for these subjects.
    pub(crate) fn start(bench: &Bench, subjects: &HashSet<Subject>, log: Log) -> anyhow::Result<Self> {
        publish(bench, subjects)?;
        let Bench { upstream, certificate, .. } = bench;
        let larders = vec![Larder::start(bench, None, log)?, Larder::start(bench, Some(certificate), log)?];
        let (listening, processes) = addresses_and_processes(&larders);
        let Listening { plain, tls, .. } = listening;
        bench.block_on(larder_paths(bench, &format!("https://{tls}"), subjects))?;
        let paths = bench.block_on(larder_paths(bench, &format!("http://{plain}"), subjects))?;
        let mut peers = vec![Peer { name: ServerName::Larder, listening, paths: paths.clone(), processes }];

        let nginx = bench.nginx.as_ref();
        let nginx = nginx.map(|program| Nginx::start(program, upstream, certificate, log)).transpose()?;
        if let Some(nginx) = &nginx {
            let base = format!("http://{}", nginx.listening.plain);
            let paths = bench.block_on(upstream_paths(bench, &base, &peers[0], subjects))?;
            let (listening, processes) = (nginx.listening, Processes::both(nginx.processes()));
            peers.push(Peer { name: ServerName::Nginx, listening, paths, processes });
        }

        let bare = Bare::start(plain, paths.values().cloned().collect(), certificate)?;
        let (listening, processes) = (bare.listening, Processes::both(bare.processes()));
        peers.push(Peer { name: ServerName::Bare, listening, paths, processes });
        Ok(Self { larders, _nginx: nginx, _bare: bare, peers })
    }

    /// Restarts both larders on their stores.
    pub(crate) fn restart_larder(&mut self) -> anyhow::Result<()> {
        let homes: Vec<Home> = self.larders.drain(..).map(Larder::stop).collect::<Result<_, _>>()?;
        self.larders = homes.into_iter().map(Home::start).collect::<Result<_, _>>()?;
        let (listening, processes) = addresses_and_processes(&self.larders);
        for peer in self.peers.iter_mut().filter(|peer| peer.name == ServerName::Larder) {
            (peer.listening, peer.processes) = (listening, processes.clone());
        }
        Ok(())
    }
}

/// Addresses and processes of the two larders, of which the first has no TLS.
fn addresses_and_processes(larders: &[Larder]) -> (Listening, Processes) {
    let [plain, tls] = [&larders[0], &larders[1]];
    let listening = Listening { plain: plain.address, plain_http2: plain.address, tls: tls.address };
    (listening, Processes { plain: plain.processes(), tls: tls.processes() })
}

/// Publishes the registry's content for these subjects.
fn publish(bench: &Bench, subjects: &HashSet<Subject>) -> anyhow::Result<()> {
    let archives = ARCHIVES.into_iter().filter(|(name, ..)| subjects.contains(&Subject::Archive(name)));
    for (name, _, bytes) in archives {
        bench.publish(&Release::new(name, bytes))?;
    }
    bench.publish(&Release::new(DOCUMENTED, 4_000))?;
    bench.upstream.publish(catalog::list_path(DOCUMENTED), catalog::long_list()?);
    Ok(())
}

/// The paths of the content at larder. Each is requested once, so that it is stored.
async fn larder_paths(bench: &Bench, base: &str, subjects: &HashSet<Subject>) -> anyhow::Result<Paths> {
    let mut paths = Paths::new();
    for subject in subjects {
        let path = match subject {
            Subject::List => larder::larder_path(&catalog::list_path(DOCUMENTED)),
            Subject::Document => larder::larder_path(&catalog::document_path(DOCUMENTED, "1.0.0", PLATFORM)),
            Subject::MirrorVersion => larder::mirror_version(DOCUMENTED, "1.0.0"),
            Subject::Archive(name) => {
                let document = larder::larder_path(&catalog::document_path(name, "1.0.0", PLATFORM));
                archive_path(&bench.client, &format!("{base}{document}")).await?
            }
        };
        warm(&bench.client, &format!("{base}{path}")).await?;
        paths.insert(*subject, path);
    }
    Ok(paths)
}

/// The paths of the content at the registry and at nginx in front of it. Each is requested once, so that it is stored.
async fn upstream_paths(
    bench: &Bench,
    base: &str,
    larder: &Peer,
    subjects: &HashSet<Subject>,
) -> anyhow::Result<Paths> {
    let mut paths = Paths::new();
    for subject in subjects {
        let path = match subject {
            Subject::List => catalog::list_path(DOCUMENTED),
            Subject::Document => catalog::document_path(DOCUMENTED, "1.0.0", PLATFORM),
            Subject::MirrorVersion => {
                // No registry has these documents, so the registry gets the one that larder renders.
                let path = larder.path(Subject::MirrorVersion)?;
                let answer = bench.client.get(format!("http://{}{path}", larder.listening.plain)).send().await?;
                bench.upstream.publish(path.to_owned(), ServedFile::json(answer.text().await?)?);
                path.to_owned()
            }
            Subject::Archive(name) => {
                let document = catalog::document_path(name, "1.0.0", PLATFORM);
                archive_path(&bench.client, &format!("{base}{document}")).await?
            }
        };
        warm(&bench.client, &format!("{base}{path}")).await?;
        paths.insert(*subject, path);
    }
    Ok(paths)
}
