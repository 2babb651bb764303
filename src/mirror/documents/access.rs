//! The policies about an address for a request: where they depend on ages, the version list is read first, because it says
//! which versions are new, and the dates are fetched behind it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::address::{Address, Version};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::documents::dates::VersionDates;
use crate::mirror::documents::{DocumentKind, Documents};
use crate::mirror::effects::Effects;
use crate::mirror::library::access::AddressAccess;
use crate::mirror::{Connectivity, RequestContext};
use crate::store::Key;
use crate::upstream::request::RequestPriority;

/// The shortest time between two requests for dates, while a version has none.
const ASK_AGAIN: Duration = Duration::from_secs(3600);
/// The shortest time between two requests for dates after one that failed. Meanwhile nobody waits for them.
const AFTER_FAILURE: Duration = Duration::from_secs(300);

impl Documents {
    /// The policies about an address, for this request.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn access_to(self: &Arc<Self>, address: &Address, call: &RequestContext) -> Result<AddressAccess, Error> {
        let access = call.access();
        let canonical = call.config.canonical(address);
        if !access.needs_ages(&canonical) {
            return Ok(access.of(&canonical, Default::default()));
        }
        // Without a list the stored times count, and a version that has none is held back.
        let _ = Box::pin(self.get(address, call)).await;
        self.ask_for_dates(address, call).await?;
        self.stored_access(canonical, call).await
    }

    /// The verdicts of the policies about an address, from the store alone. Asks no upstream.
    async fn stored_access(&self, canonical: Address, call: &RequestContext) -> Result<AddressAccess, Error> {
        let (access, config) = (call.access(), Arc::clone(&call.config));
        self.library.on_disk(move |library| library.read_access(&canonical, &access, &config)).await
    }

    /// Refuses a version that the policies do not allow.
    ///
    /// # Errors
    /// [`Error::Refused`], with the rule and its reason; the disk failed.
    pub async fn permit(
        self: &Arc<Self>,
        of: impl Into<Address>,
        version: &Version,
        call: &RequestContext,
    ) -> Result<(), Error> {
        if call.access().is_open() {
            return Ok(());
        }
        let of = of.into();
        // Before upstream is asked about it.
        call.access().permit_any(&of)?;
        let canonical = call.config.canonical(&of);
        let seen = self.library.generation_of_address(&canonical);
        let mut access = self.access_to(&of, call).await?;
        let mut permitted = access.permit(version);
        if permitted.is_err() && !access.denies(version) {
            // Another replica may have recorded an approval, or when the version was listed.
            self.library.refresh((&canonical).into()).await?;
            if self.library.generation_of_address(&canonical) != seen {
                access = self.stored_access(canonical, call).await?;
                permitted = access.permit(version);
            }
        }
        // Where the list is missing because upstream failed, that is the reason to tell: clients ask again after it.
        if permitted.is_err()
            && !access.denies(version)
            && access.lacks_times_of(version)
            && self.runtime.connectivity() == Connectivity::Online
        {
            Box::pin(self.get(&of, call)).await?;
        }
        permitted
    }

    /// The first moment at which an approval of the address no longer counts, if a verdict may depend on it.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn first_end_of_approval(
        &self,
        address: &Address,
        call: &RequestContext,
    ) -> Result<Option<Timestamp>, Error> {
        let (canonical, now) = (call.config.canonical(address), call.now);
        if !call.access().needs_ages(&canonical) {
            return Ok(None);
        }
        let approvals = self.library.on_disk(move |library| library.read_approvals(&canonical)).await?;
        Ok(approvals.ends(now).into_values().min())
    }

    /// Fetches the dates of versions in the background if the stored list names one without. Only where none is stored yet, the
    /// request waits for them, at most for the patience of its upstream.
    async fn ask_for_dates(self: &Arc<Self>, address: &Address, call: &RequestContext) -> Result<(), Error> {
        let upstream = call.upstream(address.host())?;
        let is_asked = upstream.settings.tells_dates()
            && self.runtime.connectivity() == Connectivity::Online
            && call.effects() == Effects::Real;
        if !is_asked {
            return Ok(());
        }
        // Its spelling is the canonical one: the answer counts for every spelling.
        let dates = VersionDates(call.config.canonical(address));
        let key = dates.key(&call.config);
        let stored = self.library.stored_document(&key).await?;
        let list = self.library.stored_document(&Key::version_list(call.config.canonical(address))).await?;
        let is_due = stored.as_ref().is_none_or(|dates| {
            let is_list_newer = list.is_some_and(|list| list.value.metadata.fetched > dates.value.metadata.checked);
            is_list_newer || dates.confirmed.checked.after(ASK_AGAIN) < call.now
        });
        let failed = self
            .failed_dates
            .get(&key)
            .is_some_and(|failed| call.now < failed.after(AFTER_FAILURE) && call.now >= failed);
        if !is_due || failed || call.refuse_if_absent(&key).is_err() {
            return Ok(());
        }
        // Last, because it parses the list.
        let (canonical, access, config) = (call.config.canonical(address), call.access(), Arc::clone(&call.config));
        let lacks_a_date = self
            .library
            .on_disk(move |library| Ok(library.read_access(&canonical, &access, &config)?.lacks_a_date()))
            .await?;
        if !lacks_a_date {
            return Ok(());
        }
        let (documents, flight_call) =
            (Arc::clone(self), RequestContext { priority: RequestPriority::Job, ..call.clone() });
        let (seen, is_first) = (stored.as_ref().map(|stored| stored.confirmed), stored.is_none());
        let asking = self.runtime.tasks.spawn(async move {
            if let Err(error) = documents.fetch_now(&dates, seen, &flight_call).await {
                documents.failed_dates.insert(key, flight_call.now);
                tracing::warn!(
                    %error,
                    "the registry tells no dates now; versions without one count from larder's own lists. If it never does, set \
                     dates = \"none\" in its [[upstream]]"
                );
            }
        });
        if is_first {
            let left = call.deadline.saturating_duration_since(Instant::now());
            let _ = tokio::time::timeout(upstream.settings.patience.min(left), asking).await;
        }
        Ok(())
    }
}
