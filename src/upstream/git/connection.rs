//! A connection with one repository: lists its refs and fetches packs.

use std::io;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gix_hash::ObjectId;
use gix_object::bstr::BString;
use gix_protocol::fetch::negotiate::{Action, Round, one_round};
use gix_protocol::fetch::{Arguments, Context, Negotiate, Options, Response, Shallow, Tags};
use gix_protocol::handshake::Ref;
use gix_protocol::ls_refs::RefPrefixes;
use gix_protocol::{Handshake, LsRefsCommand};
use gix_transport::client::blocking_io::Transport;
use gix_transport::client::blocking_io::http::connect_http;
use gix_transport::client::git::ConnectMode;
use gix_transport::client::git::blocking_io::Connection;
use gix_transport::{Protocol, Service};
use gix_utils::progress::Discard;

use super::blocking_bridge::{GitBridge, HttpTransport, ThroughputGuard};
use super::error::RepositoryFailure;
use super::pack_scanner::{COPIES_IN_MEMORY, PackLimits, PackScanner};
use super::refs::OfferedRef;
use super::repository::Repository;
use crate::packaging::TreeError;
use crate::upstream::limits::{GitLimits, GrowingMemory};

/// User agent, in git's form.
const AGENT: &str = concat!("git/larder-", env!("CARGO_PKG_VERSION"));

/// The objects of one pack.
pub(super) struct Objects {
    odb: gix_odb::Handle,
    /// True if the server was asked to leave out files beyond the limit.
    pub(super) lacks_large_files: bool,
}

impl Deref for Objects {
    type Target = gix_odb::Handle;

    fn deref(&self) -> &Self::Target {
        &self.odb
    }
}

/// The treatment of files beyond the limit for one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LargeFiles {
    /// The pack is refused for one.
    Refused,
    /// The server leaves them out, so that the tree names them.
    Omitted,
}

/// The objects to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// The commit and its tree, without its history.
    OneCommit,
    /// The commit and its history, without trees.
    CommitsOnly,
    /// The commit, its history and all their trees.
    Everything,
}

/// Where a pack goes, and how large its files may be.
pub(super) struct PackDestination<'a> {
    /// The folder, which is created.
    pub(super) folder: &'a Path,
    /// The most bytes of one file.
    pub(super) max_file_bytes: u64,
    pub(super) large_files: LargeFiles,
    /// The memory of the largest objects.
    pub(super) memory: &'a mut GrowingMemory,
}

/// An open connection to one repository.
pub(super) struct RepositoryConnection {
    transport: Box<dyn Transport>,
    handshake: Handshake,
    limits: GitLimits,
    throughput: Arc<ThroughputGuard>,
}

impl RepositoryConnection {
    /// Connects to a repository and negotiates the protocol.
    pub(super) fn open(
        bridge: &GitBridge,
        repository: &Repository,
        limits: GitLimits,
    ) -> Result<Self, RepositoryFailure> {
        bridge.throughput.expect_answer();
        let mut transport: Box<dyn Transport> = match repository {
            Repository::Http(url) => {
                let url = gix_url::parse(url.as_str().trim_end_matches('/'))?;
                Box::new(connect_http(HttpTransport::new(bridge.clone()), url, Protocol::V2, false))
            }
            Repository::Ssh(ssh) => {
                let (output, input) = bridge.connect_ssh(ssh.clone()).map_err(|_| RepositoryFailure::BridgeClosed)?;
                let (path, mode) = (ssh.path.as_str(), ConnectMode::Process);
                let no_virtual_host = None::<(&str, _)>;
                Box::new(Connection::new(output, input, Protocol::V2, path, no_virtual_host, mode, false))
            }
        };
        let handshake =
            gix_protocol::handshake(&mut transport, Service::UploadPack, |_| Ok(None), Vec::new(), &mut Discard)?;
        let format = handshake.capabilities.capability("object-format").and_then(|format| format.value());
        if format.is_some_and(|format| format != "sha1") {
            let reason = "a repository whose objects have no SHA-1, which larder cannot read";
            return Err(RepositoryFailure::unusable(reason));
        }
        Ok(Self { transport, handshake, limits, throughput: Arc::clone(&bridge.throughput) })
    }

    /// Lists the refs that begin with one of these prefixes. Older servers send all refs. The number of refs is limited,
    /// because all of them are in memory.
    pub(super) fn list_refs(&mut self, prefixes: &[String]) -> Result<Vec<OfferedRef>, RepositoryFailure> {
        let refs = match &self.handshake.refs {
            Some(refs) => refs.clone(),
            None => {
                let mut ref_prefixes = RefPrefixes::new();
                ref_prefixes.extend(prefixes.iter().map(|prefix| BString::from(prefix.as_str())));
                let agent = ("agent", Some(AGENT.into()));
                let command = LsRefsCommand::new(Some(ref_prefixes), &self.handshake.capabilities, agent);
                command.invoke_blocking(&mut self.transport, &mut Discard, false)?
            }
        };
        TreeError::check_limit(refs.len(), self.limits.names, "names")?;
        Ok(refs.into_iter().filter_map(offered_ref).collect())
    }

    /// Returns true if the server may send objects that no ref names.
    pub(super) fn may_serve_any_id(&self) -> bool {
        self.handshake.server_protocol_version == Protocol::V2
    }

    /// Returns true if the server can omit trees and files.
    pub(super) fn can_omit_objects(&self) -> bool {
        let fetch = self.handshake.capabilities.capability("fetch");
        self.may_serve_any_id() && fetch.and_then(|fetch| fetch.supports("filter")).unwrap_or_default()
    }

    /// Fetches a pack into `folder`, which is created. Larger objects than before take `memory`.
    pub(super) fn fetch_pack(
        &mut self,
        wanted: &[ObjectId],
        extent: Extent,
        destination: PackDestination<'_>,
        stop: &AtomicBool,
    ) -> Result<Objects, RepositoryFailure> {
        let PackDestination { folder, max_file_bytes, large_files, memory } = destination;
        let packs = folder.join("pack");
        std::fs::create_dir(folder).and_then(|()| std::fs::create_dir(&packs)).map_err(RepositoryFailure::disk)?;
        let limits = PackLimits::of(extent, self.limits, max_file_bytes);
        let lacks_large_files = large_files == LargeFiles::Omitted && extent == Extent::OneCommit;
        let filter = match extent {
            Extent::CommitsOnly => Some("tree:0".to_owned()),
            // git omits files of at least this size.
            Extent::OneCommit if lacks_large_files => Some(format!("blob:limit={}", max_file_bytes.saturating_add(1))),
            Extent::OneCommit | Extent::Everything => None,
        };
        let shallow = match extent {
            Extent::OneCommit => Shallow::DepthAtRemote(NonZeroU32::MIN),
            Extent::CommitsOnly | Extent::Everything => Shallow::NoChange,
        };
        // gix makes room for a delta, its base and its result at once.
        let max_allocation_bytes = limits.blob_bytes.max(limits.other_bytes).saturating_mul(COPIES_IN_MEMORY);
        let throughput = Arc::clone(&self.throughput);
        throughput.expect_answer();
        let store_pack = |pack: &mut dyn io::BufRead,
                          progress: &mut dyn gix_utils::progress::DynNestedProgress,
                          stop: &AtomicBool| {
            let options = gix_pack::bundle::write::Options {
                thread_limit: Some(1),
                alloc_limit_bytes: Some(max_allocation_bytes),
                ..Default::default()
            };
            let (no_base_objects, sha1) = (None::<gix_odb::Handle>, gix_hash::Kind::Sha1);
            let pack = &mut PackScanner::new(pack, limits, memory, || throughput.expect_pack());
            let folder = Some(packs.as_path());
            gix_pack::Bundle::write_to_directory(pack, folder, progress, stop, no_base_objects, sha1, options)
                .map(|_| true)
        };
        let context = Context {
            handshake: &mut self.handshake,
            transport: &mut self.transport,
            user_agent: ("agent", Some(AGENT.into())),
            trace_packetlines: false,
        };
        let options = Options {
            shallow_file: folder.join("shallow"),
            shallow: &shallow,
            tags: Tags::None,
            reject_shallow_remote: false,
        };
        let mut wants = WantedIds { wanted, filter };
        let fetched = gix_protocol::fetch(&mut wants, store_pack, Discard, stop, context, options);
        match fetched {
            Ok(Some(_)) => {
                let odb = open_pack(folder, max_allocation_bytes).map_err(RepositoryFailure::disk)?;
                Ok(Objects { odb, lacks_large_files })
            }
            Ok(None) => Err(RepositoryFailure::unusable("an answer without the requested pack")),
            Err(error) if is_refused_id(&error) => Err(RepositoryFailure::NoSuchId),
            Err(error) => Err(error.into()),
        }
    }
}

/// Opens a received pack.
fn open_pack(folder: &Path, max_allocation_bytes: usize) -> io::Result<gix_odb::Handle> {
    let options = gix_odb::store::init::Options {
        use_multi_pack_index: false,
        alloc_limit_bytes: Some(max_allocation_bytes),
        current_dir: Some(PathBuf::from("/")),
        ..Default::default()
    };
    gix_odb::at_opts(folder, gix_hash::Kind::Sha1, None, options)
}

/// Returns true for a server's refusal of an id. gix reports the server's message as an unexpected part of the answer.
fn is_refused_id(error: &gix_error::Error) -> bool {
    let is_refusal = |error: &(dyn std::error::Error + 'static)| {
        let text = error.to_string();
        text.contains("not our ref") || text.contains("no such remote ref")
    };
    error.iter_errors().any(is_refusal)
}

fn offered_ref(found: Ref) -> Option<OfferedRef> {
    let (name, id, peeled) = found.unpack();
    let id = id?.to_owned();
    let (name, peeled) = (name.to_vec(), peeled.map_or(id, ToOwned::to_owned));
    let symbolic_target = match found {
        Ref::Symbolic { target, .. } => Some(target.into()),
        _ => None,
    };
    Some(OfferedRef { name, id, peeled, symbolic_target })
}

/// The ids to request. Larder has no objects to offer.
struct WantedIds<'a> {
    wanted: &'a [ObjectId],
    /// The objects that the server omits, in git's words.
    filter: Option<String>,
}

impl Negotiate for WantedIds<'_> {
    fn mark_complete_and_common_ref(&mut self) -> gix_error::Result<Action> {
        Ok(Action::MustNegotiate { remote_ref_target_known: Vec::new() })
    }

    fn add_wants(&mut self, arguments: &mut Arguments, _known: &[bool]) -> bool {
        self.wanted.iter().for_each(|id| arguments.want(id));
        if let Some(filter) = &self.filter {
            arguments.filter(filter);
        }
        !self.wanted.is_empty()
    }

    fn one_round(
        &mut self,
        _state: &mut one_round::State,
        _arguments: &mut Arguments,
        _previous: Option<&Response>,
    ) -> gix_error::Result<(Round, bool)> {
        let round =
            Round { haves_sent: 0, in_vain: 0, haves_to_send: 0, previous_response_had_at_least_one_in_common: false };
        Ok((round, true))
    }
}
