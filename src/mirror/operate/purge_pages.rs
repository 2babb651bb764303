//! Purges the details pages of a module or a provider. Lists name others too, and stay until they are revalidated.

use crate::mirror::Library;
use url::Url;

use crate::address::{ModuleAddress, PackageSelector, ProviderAddress, Version, Versions};
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::operate::purge::PurgeResult;
use crate::store::StoreError;

impl Library {
    /// Purges the details pages of the selected versions, and that of the latest one.
    pub(in crate::mirror) fn purge_pages(
        &self,
        selector: &PackageSelector,
        purged: &mut PurgeResult,
    ) -> Result<(), StoreError> {
        for page in self.store.records.pages_of(selector.host())? {
            // A page's key is a digest, so only its URL shows its subject.
            let document = self.store.records.get(&page)?.and_then(StoredDocument::read);
            if document.is_some_and(|document| has_details_of(selector, &document.metadata.asked)) {
                self.purge_document(&page, purged)?;
            }
        }
        self.bump_pages_revision(selector.host());
        Ok(())
    }
}

/// Returns true if the URL has details of the selection, ignoring case. A module whose name differs only in case loses
/// a page at most.
fn has_details_of(selector: &PackageSelector, url: &Url) -> bool {
    let (names, versions): (&[&str], &Versions) = match selector {
        PackageSelector::Module(selection) => {
            let ModuleAddress { namespace, name, system, .. } = &selection.of;
            (&[namespace.as_str(), name.as_str(), system.as_str()], &selection.versions)
        }
        PackageSelector::Provider(selection) => {
            let ProviderAddress { namespace, type_, .. } = &selection.of;
            (&[namespace.as_str(), type_.as_str()], &selection.versions)
        }
    };
    let path: Vec<&str> = url.path_segments().into_iter().flatten().collect();
    let ends_in_them = |path: &[&str]| {
        let is_it = |(part, name): (&&str, &&str)| part.eq_ignore_ascii_case(name);
        path.len() >= names.len() && path[path.len() - names.len()..].iter().zip(names).all(is_it)
    };
    let of_a_version = |(last, before): (&&str, &[&str])| {
        Version::parse_lenient(last).is_ok_and(|version| versions.include(&version)) && ends_in_them(before)
    };
    url.query().is_none() && (ends_in_them(&path) || path.split_last().is_some_and(of_a_version))
}
