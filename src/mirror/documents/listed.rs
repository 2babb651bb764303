//! Looks a version up in upstream's own version list. An unlisted version is not fetched. With a registry that answers
//! for any version, a client could otherwise fill the store, and the first-seen records, which are never removed.

use crate::mirror::Documents;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{ModulePackage, Package, Version};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::documents::document_fetch::DocumentRequest;
use crate::mirror::freshness::Age;
use crate::mirror::request_context::RequestContext;
use crate::mirror::{Answer, StoredDocument};
use crate::store::Key;

/// The state of one version in upstream's version list.
pub(in crate::mirror) enum ListingState {
    /// Listed, with this spelling.
    Listed(String),
    /// Not listed. `checked` is upstream's last confirmation of the list, `age` that of the copy read.
    Unlisted { checked: Timestamp, age: Age },
    /// Upstream has no such list, or it cannot be read; then with the error.
    Unknown(Option<Error>),
}

impl ListingState {
    /// Reads the state from a list or its error. `spelled` looks the version up; `None` where the list is invalid.
    async fn of<F: Future<Output = Option<Option<String>>>>(
        list: Result<(Arc<StoredDocument>, Timestamp), Error>,
        spelled: impl FnOnce(Arc<StoredDocument>) -> F,
    ) -> Self {
        match list {
            Ok((list, checked)) => {
                let age = list.age();
                match spelled(list).await {
                    Some(Some(spelled)) => Self::Listed(spelled),
                    Some(None) => Self::Unlisted { checked, age },
                    None => Self::Unknown(None),
                }
            }
            Err(Error::NotFound(_)) => Self::Unknown(None),
            Err(error) => Self::Unknown(Some(error)),
        }
    }

    /// The version as upstream spells it, or as clients do where it is not listed.
    pub(in crate::mirror) fn spelled(&self, as_clients_do: impl ToString) -> String {
        match self {
            Self::Listed(spelled) => spelled.clone(),
            Self::Unlisted { .. } | Self::Unknown(_) => as_clients_do.to_string(),
        }
    }
}

fn of_answer(answer: Answer<Arc<StoredDocument>>) -> (Arc<StoredDocument>, Timestamp) {
    (answer.value, answer.checked)
}

impl Documents {
    /// Looks up a package's version in the list of its provider.
    pub(in crate::mirror) async fn listed(self: &Arc<Self>, package: &Package, call: &RequestContext) -> ListingState {
        let list = Box::pin(self.provider_versions(&package.provider, call)).await.map(of_answer);
        self.listed_in(package, list).await
    }

    async fn listed_in(
        &self,
        package: &Package,
        list: Result<(Arc<StoredDocument>, Timestamp), Error>,
    ) -> ListingState {
        let version = &package.version;
        ListingState::of(list, |list| async move {
            Some(list.versions().await.ok()?.get(version).map(|listed| listed.upstream_spelling.clone()))
        })
        .await
    }

    /// Looks up a version in the list of its module.
    pub(in crate::mirror) async fn module_listed(
        self: &Arc<Self>,
        package: &ModulePackage,
        call: &RequestContext,
    ) -> ListingState {
        let list = Box::pin(self.module_versions(&package.module, call)).await.map(of_answer);
        self.module_listed_in(package, list).await
    }

    async fn module_listed_in(
        &self,
        package: &ModulePackage,
        list: Result<(Arc<StoredDocument>, Timestamp), Error>,
    ) -> ListingState {
        let version = &package.version;
        ListingState::of(list, |list| async move {
            Some(list.module_versions().await.ok()?.get(version).map(|listed| listed.upstream_spelling.clone()))
        })
        .await
    }

    /// Refuses a package that is not stored and whose version upstream does not list. A list older than the lifetime of
    /// a 404 is revalidated first, because the version may just have been published.
    ///
    /// # Errors
    /// [`Error::NotFound`], which is cached as long as any 404.
    pub(in crate::mirror) async fn must_be_listed(
        self: &Arc<Self>,
        package: &Package,
        believed: Duration,
        call: &RequestContext,
    ) -> Result<ListingState, Error> {
        let mut listed = self.listed(package, call).await;
        if let ListingState::Unlisted { checked, age } = listed
            && checked.after(believed) < call.now
        {
            let list = self.ask_versions_again(&package.provider, Some(age), call).await;
            listed = self.listed_in(package, list.map(|list| (list.value, list.age.checked))).await;
        }
        let key = Key::ProofSet(package.clone());
        self.refuse_unlisted(&listed, key, &package.provider, &package.version, believed, call)?;
        Ok(listed)
    }

    /// Refuses an unlisted module version, like [`Self::must_be_listed`].
    pub(in crate::mirror) async fn module_must_be_listed(
        self: &Arc<Self>,
        package: &ModulePackage,
        wanted: &DocumentRequest,
        call: &RequestContext,
    ) -> Result<ListingState, Error> {
        let believed = wanted.rule.not_found_lifetime();
        let mut listed = self.module_listed(package, call).await;
        if let ListingState::Unlisted { checked, age } = listed
            && checked.after(believed) < call.now
        {
            let list = self.fetch_module_versions_now(&package.module, Some(age), call).await;
            listed = self.module_listed_in(package, list.map(|list| (list.value, list.age.checked))).await;
        }
        self.refuse_unlisted(&listed, wanted.key.clone(), &package.module, &package.version, believed, call)?;
        Ok(listed)
    }

    fn refuse_unlisted(
        &self,
        listed: &ListingState,
        key: Key,
        address: &impl fmt::Display,
        version: &Version,
        believed: Duration,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let ListingState::Unlisted { .. } = listed else { return Ok(()) };
        let reason = format!("the version list of {address} does not name {version}");
        call.config.not_found.insert(key, reason.clone(), call.now.after(believed), call.now);
        Err(Error::NotFound(reason))
    }
}
