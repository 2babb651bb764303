//! A connection with one repository: lists its refs and fetches packs.

use std::io;
use std::num::NonZeroU32;
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
use super::error::GitCodeError;
use super::pack_scanner::{PackLimits, PackScanner};
use super::refs::OfferedRef;
use super::repository::Repository;
use crate::packaging::TreeError;
use crate::upstream::limits::GitLimits;

/// User agent, in git's form.
const AGENT: &str = concat!("git/larder-", env!("CARGO_PKG_VERSION"));

/// The objects of one pack.
pub(super) type Objects = gix_odb::Handle;

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

/// An open connection to one repository.
pub(super) struct RepositoryConnection {
    transport: Box<dyn Transport>,
    handshake: Handshake,
    /// The repository's origin.
    pub(super) origin: String,
    limits: GitLimits,
    throughput: Arc<ThroughputGuard>,
}

impl RepositoryConnection {
    /// Connects to a repository and negotiates the protocol.
    pub(super) fn open(bridge: &GitBridge, repository: &Repository, limits: GitLimits) -> Result<Self, GitCodeError> {
        let origin = repository.origin_text();
        let max_object_bytes = limits.object_bytes;
        bridge.throughput.expect_answer();
        let mut transport: Box<dyn Transport> = match repository {
            Repository::Http(url) => {
                let url = url.as_str().trim_end_matches('/');
                let url = gix_url::parse(url).map_err(|e| GitCodeError::of(&origin, max_object_bytes, &e))?;
                Box::new(connect_http(HttpTransport::new(bridge.clone()), url, Protocol::V2, false))
            }
            Repository::Ssh(ssh) => {
                let (output, input) = bridge.connect_ssh(ssh.clone()).map_err(|_| GitCodeError::BridgeClosed)?;
                let path = ssh.path.as_str();
                let no_virtual_host = None::<(&str, _)>;
                Box::new(Connection::new(
                    output,
                    input,
                    Protocol::V2,
                    path,
                    no_virtual_host,
                    ConnectMode::Process,
                    false,
                ))
            }
        };
        let handshake =
            gix_protocol::handshake(&mut transport, Service::UploadPack, |_| Ok(None), Vec::new(), &mut Discard);
        let handshake = handshake.map_err(|e| GitCodeError::of(&origin, max_object_bytes, &e))?;
        let format = handshake.capabilities.capability("object-format");
        if format.and_then(|format| format.value().map(|value| value != "sha1")).unwrap_or_default() {
            return Err(GitCodeError::unusable(
                &origin,
                "a repository whose objects have no SHA-1, which larder cannot read",
            ));
        }
        Ok(Self { transport, handshake, origin, limits, throughput: Arc::clone(&bridge.throughput) })
    }

    fn git_error(&self, error: &gix_error::Error) -> GitCodeError {
        GitCodeError::of(&self.origin, self.limits.object_bytes, error)
    }

    /// Lists the refs that begin with one of these prefixes. Older servers send all refs. The number of refs is limited,
    /// because all of them are in memory.
    pub(super) fn list_refs(&mut self, prefixes: &[String]) -> Result<Vec<OfferedRef>, GitCodeError> {
        let refs = match &self.handshake.refs {
            Some(refs) => refs.clone(),
            None => {
                let mut ref_prefixes = RefPrefixes::new();
                ref_prefixes.extend(prefixes.iter().map(|prefix| BString::from(prefix.as_str())));
                let agent = ("agent", Some(AGENT.into()));
                let command = LsRefsCommand::new(Some(ref_prefixes), &self.handshake.capabilities, agent);
                let listed = command.invoke_blocking(&mut self.transport, &mut Discard, false);
                listed.map_err(|e| self.git_error(&e))?
            }
        };
        if refs.len() > self.limits.names {
            return Err(GitCodeError::tree(&self.origin, TreeError::TooLarge(format!("{} names", self.limits.names))));
        }
        Ok(refs.into_iter().filter_map(offered_ref).collect())
    }

    /// Returns true if the server may send objects that no ref names.
    pub(super) fn may_serve_any_id(&self) -> bool {
        self.handshake.server_protocol_version == Protocol::V2
    }

    /// Returns true if the server can omit trees.
    pub(super) fn can_omit_trees(&self) -> bool {
        let fetch = self.handshake.capabilities.capability("fetch");
        self.may_serve_any_id() && fetch.and_then(|fetch| fetch.supports("filter")).unwrap_or_default()
    }

    /// Fetches a pack into `folder`, which is created.
    pub(super) fn fetch_pack(
        &mut self,
        wanted: &[ObjectId],
        extent: Extent,
        folder: &Path,
        stop: &AtomicBool,
    ) -> Result<Objects, GitCodeError> {
        let packs = folder.join("pack");
        std::fs::create_dir(folder).and_then(|()| std::fs::create_dir(&packs)).map_err(GitCodeError::Disk)?;
        let limits = PackLimits::of(extent, self.limits);
        let shallow = match extent {
            Extent::OneCommit => Shallow::DepthAtRemote(NonZeroU32::MIN),
            Extent::CommitsOnly | Extent::Everything => Shallow::NoChange,
        };
        let max_blob_bytes = limits.blob_bytes;
        let throughput = Arc::clone(&self.throughput);
        throughput.expect_answer();
        let store_pack = |pack: &mut dyn io::BufRead,
                          progress: &mut dyn gix_utils::progress::DynNestedProgress,
                          stop: &AtomicBool| {
            let options = gix_pack::bundle::write::Options {
                thread_limit: Some(1),
                alloc_limit_bytes: Some(max_blob_bytes),
                ..Default::default()
            };
            let no_base_objects = None::<Objects>;
            let mut pack = PackScanner::new(pack, limits, || throughput.expect_pack());
            let sha1 = gix_hash::Kind::Sha1;
            gix_pack::Bundle::write_to_directory(
                &mut pack,
                Some(&packs),
                progress,
                stop,
                no_base_objects,
                sha1,
                options,
            )
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
        let mut wants = WantedIds { wanted, extent };
        let fetched = gix_protocol::fetch(&mut wants, store_pack, Discard, stop, context, options);
        match fetched {
            Ok(Some(_)) => open_pack(folder, max_blob_bytes).map_err(GitCodeError::Disk),
            Ok(None) => Err(GitCodeError::unusable(&self.origin, "an answer without the requested pack")),
            Err(error) if is_refused_id(&error) => Err(GitCodeError::NoSuchId { origin: self.origin.clone() }),
            Err(error) => Err(self.git_error(&error)),
        }
    }
}

/// Opens a received pack.
fn open_pack(folder: &Path, max_blob_bytes: usize) -> io::Result<Objects> {
    let options = gix_odb::store::init::Options {
        use_multi_pack_index: false,
        alloc_limit_bytes: Some(max_blob_bytes),
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
    Some(match found {
        Ref::Peeled { full_ref_name, tag, object } => {
            OfferedRef { name: full_ref_name.into(), id: tag, peeled: object, symbolic_target: None }
        }
        Ref::Direct { full_ref_name, object } => {
            OfferedRef { name: full_ref_name.into(), id: object, peeled: object, symbolic_target: None }
        }
        Ref::Symbolic { full_ref_name, target, tag, object } => OfferedRef {
            name: full_ref_name.into(),
            id: tag.unwrap_or(object),
            peeled: object,
            symbolic_target: Some(target.into()),
        },
        Ref::Unborn { .. } => return None,
    })
}

/// The ids to request. Larder has no objects to offer.
struct WantedIds<'a> {
    wanted: &'a [ObjectId],
    extent: Extent,
}

impl Negotiate for WantedIds<'_> {
    fn mark_complete_and_common_ref(&mut self) -> gix_error::Result<Action> {
        Ok(Action::MustNegotiate { remote_ref_target_known: Vec::new() })
    }

    fn add_wants(&mut self, arguments: &mut Arguments, _known: &[bool]) -> bool {
        self.wanted.iter().for_each(|id| arguments.want(id));
        if self.extent == Extent::CommitsOnly {
            arguments.filter("tree:0");
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
