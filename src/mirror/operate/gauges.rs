//! The gauges of the mirror, read when they are scraped.

use crate::mirror::Mirror;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::clock::Clock;
use crate::mirror::Connectivity;
use crate::mirror::counters::ObjectKind;
use crate::mirror::operate::status::StoreState;
use crate::store::{DiskSpace, Totals};

/// A collector of the mirror's gauges. Reads the disk, so it belongs on a blocking thread.
#[derive(Debug)]
pub struct MirrorGauges {
    /// The mirror.
    pub mirror: Arc<Mirror>,
    /// The clock.
    pub clock: Clock,
}

impl Collector for MirrorGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { mirror, clock } = self;
        let mut to = GaugeWriter(&mut encoder);
        let Totals { archives, archive_bytes, documents, document_bytes, page_bytes: _ } =
            mirror.library.store.index.totals();
        let label = |kind: ObjectKind| [("kind", kind.word())];
        let counts = [(label(ObjectKind::Archive), archives), (label(ObjectKind::Document), documents)];
        to.family("larder_store_objects", "What is stored, by kind", None, counts)?;
        let bytes = [(label(ObjectKind::Archive), archive_bytes), (label(ObjectKind::Document), document_bytes)];
        to.family("larder_store", "What is stored, by kind", Some(&Unit::Bytes), bytes)?;
        to.bytes("larder_store_limit", "What may be stored", mirror.library.refresh_size_limit())?;
        if let Ok(DiskSpace { free_bytes, .. }) = mirror.library.store.disk_space() {
            to.bytes("larder_store_free", "Free space on the store's disk", free_bytes)?;
        }
        to.bytes("larder_index", "The index of the store on disk", mirror.library.store.index.disk_bytes())?;
        let now = mirror.library.store_state();
        let states = StoreState::ALL.map(|state| ([("state", state.word())], u64::from(state == now)));
        to.family("larder_store_state", "How the store is: 1 for the one state it is in", None, states)?;
        to.gauge(
            "larder_offline",
            "Whether nothing may go out",
            u64::from(mirror.runtime.connectivity() == Connectivity::Offline),
        )?;
        let upstreams = mirror.runtime.upstream_states(clock.now());
        let left_alone =
            upstreams.iter().map(|upstream| ([("host", upstream.host.as_str())], upstream.left_alone.len() as u64));
        let help = "Origins that are left alone after failures, by the upstream that led there";
        to.family("larder_breaker_open", help, None, left_alone)?;
        let missing = mirror.library.missing_in_words().len() as u64;
        to.gauge("larder_missing", "Requested while offline and not stored, at most 1100", missing)?;
        let whole = mirror.library.store.index.is_complete().into();
        to.gauge("larder_index_whole", "Whether the index knows all files; nothing is evicted before that", whole)?;
        let waiting = mirror.library.waiting_for_accept() as u64;
        to.gauge("larder_waiting_for_accept", "Versions published again that wait for accept", waiting)?;
        let unattended = mirror.archives.unattended_fills() as u64;
        let help = "Archive downloads in flight that clients started and no client waits for";
        to.gauge("larder_fills_unattended", help, unattended)?;
        to.gauge("larder_waiting_requests", "Requests that wait for an upstream", mirror.runtime.waiting_count() as u64)
    }
}

struct GaugeWriter<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl GaugeWriter<'_, '_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.encode_gauge(name, help, None, |encoder| ConstGauge::new(value).encode(encoder))
    }

    fn bytes(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.encode_gauge(name, help, Some(&Unit::Bytes), |encoder| ConstGauge::new(value).encode(encoder))
    }

    fn family<'l>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl IntoIterator<Item = ([(&'l str, &'l str); 1], u64)>,
    ) -> fmt::Result {
        self.encode_gauge(name, help, unit, |mut encoder| {
            let mut values = values.into_iter();
            values.try_for_each(|(labels, value)| ConstGauge::new(value).encode(encoder.encode_family(&labels)?))
        })
    }

    fn encode_gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl FnOnce(MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        // Registered metrics get this full stop from the library.
        values(self.0.encode_descriptor(name, &format!("{help}."), unit, MetricType::Gauge)?)
    }
}
