//! Documents: JSON that larder fetched from upstreams and that ages.

pub(in crate::mirror) mod discovery;
pub(in crate::mirror) mod document_fetch;
pub(in crate::mirror) mod listed;
pub(in crate::mirror) mod module_location;
pub(in crate::mirror) mod module_versions;
pub(in crate::mirror) mod pages;
pub(in crate::mirror) mod provider_versions;
pub(in crate::mirror) mod revalidate;

use std::sync::Arc;

use crate::mirror::library::stored_document::DocumentFlight;
use crate::mirror::request_context::{FetchReason, FlightGroup};
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::{Library, Runtime};
use crate::store::Key;

/// Fetches, revalidates and serves documents: discovery, version lists, module locations and API pages.
#[derive(Debug)]
pub struct Documents {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    flights: SingleFlights<(Key, FetchReason, FlightGroup), SharedResult<DocumentFlight>>,
}

impl Documents {
    pub(in crate::mirror) fn new(runtime: Arc<Runtime>, library: Arc<Library>) -> Arc<Self> {
        Arc::new(Self { runtime, library, flights: SingleFlights::default() })
    }
}
