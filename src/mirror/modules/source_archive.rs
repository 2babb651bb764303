//! Fetches a module source archive: download, compare with its checksum, unpack.

use std::io::Seek;

use url::Url;

use crate::error::Error;
use crate::mirror::modules::fetch::{FetchTreeError, SourceFetch, TreePermit, ask_for, location_fault};
use crate::mirror::modules::source_download::{DownloadedSource, SourceDownload};
use crate::packaging::{Tree, TreeError, unpack};
use crate::upstream::error::Fault;
use crate::upstream::outbound::origin;
use crate::upstream::request::{Fetched, Validators};
use crate::upstream::source::{ArchiveSource, Checksum, ExpectedChecksum};

/// Maximum size of a checksum list, in bytes.
const MAX_CHECKSUM_LIST_BYTES: u64 = 1 << 20;

impl SourceFetch<'_> {
    /// Downloads an archive, compares it with the checksum in its address, and unpacks it.
    pub(in crate::mirror) async fn archive(
        &mut self,
        source: &ArchiveSource,
        tree: Tree,
    ) -> Result<(Tree, TreePermit, Validators), FetchTreeError> {
        let subject = self.subject();
        let expected = match &source.checksum {
            None => None,
            Some(ExpectedChecksum::Is(checksum)) => Some(checksum.clone()),
            Some(ExpectedChecksum::Listed(list)) => Some(self.listed_checksum(list, &source.url).await?),
        };
        let (package, outbound) = (self.package.to_string(), &self.call.config.outbound);
        let ask = ask_for(self.modules, &self.upstream, &self.credential_scope, self.call, &source.url, &subject);
        let downloaded = SourceDownload::new(self.modules, outbound, ask, self.reservation).run(&package).await;
        let DownloadedSource { staged, validators, name } = downloaded.map_err(|error| match error {
            Error::Upstream(error) => location_fault((*error).clone()),
            error => error.into(),
        })?;
        let turn = self.unpack_permit().await?;
        let (format, origin) = (source.format, origin(&source.url));
        let unpacked = self
            .modules
            .library
            .on_disk(move |_| {
                let (mut tree, _name) = (tree, name);
                let mut file = staged.file()?;
                let unpacked = match expected.map(|expected| (Checksum::of(expected.kind(), &mut file), expected)) {
                    Some((Ok(actual), expected)) if actual != expected => {
                        Err(UnpackFailure::Checksum { expected, actual })
                    }
                    Some((Err(error), _)) => return Err(staged.unreadable(error)),
                    Some((Ok(_), _)) | None => {
                        file.rewind().map_err(|error| staged.unreadable(error))?;
                        unpack(format, &mut file, &mut tree).map(|()| tree).map_err(UnpackFailure::Tree)
                    }
                };
                // Discarded even if it is wrong, so that a resume never builds on wrong bytes.
                staged.discard()?;
                Ok(unpacked)
            })
            .await?;
        match unpacked {
            Ok(tree) => Ok((tree, turn, validators)),
            Err(UnpackFailure::Tree(reason)) => Err(self.refused(&origin, reason).into()),
            Err(UnpackFailure::Checksum { expected, actual }) => {
                let verdict = format!("its bytes have {actual}, but its address says {expected}");
                Err(FetchTreeError::StaleLocation(Error::Unverified {
                    subject: format!("{subject} from {origin}"),
                    verdict,
                }))
            }
        }
    }

    /// Waits for a permit to unpack. The caller holds nothing but its staging file meanwhile.
    async fn unpack_permit(&self) -> Result<TreePermit, Error> {
        let turn = self.modules.work.unpacking.take(&self.upstream.settings.host, self.call.priority).await;
        let reason = || "the limit of archives unpacked at one time is reached".to_owned();
        turn.map(TreePermit::Unpacking).ok_or_else(|| Error::Busy { subject: self.subject(), reason: reason() })
    }

    /// Fetches a checksum list and finds the archive's checksum in it.
    async fn listed_checksum(&self, list: &Url, archive: &Url) -> Result<Checksum, FetchTreeError> {
        let subject = format!("the list of checksums for {}", self.subject());
        let fetched =
            self.call.config.outbound.small_file(self.request(list, &subject), None, MAX_CHECKSUM_LIST_BYTES).await;
        let found = match fetched.map_err(location_fault)? {
            Fetched::New(document) => Checksum::in_list(&document.body, list, archive),
            Fetched::Unchanged => None,
        };
        let unlisted =
            || self.failed(origin(list), Fault::Unusable("its list of checksums has none for the archive".into()));
        Ok(found.ok_or_else(unlisted)?)
    }
}

enum UnpackFailure {
    Checksum { expected: Checksum, actual: Checksum },
    Tree(TreeError),
}
