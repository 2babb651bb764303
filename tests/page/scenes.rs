//! Larders in the states that the pages show.

use std::time::Duration;

use larder::address::{Address, Hostname, Name, ProviderAddress};
use larder::clock::{Clock, Timestamp};
use larder::store::{Durability, HourOfDay, Key, Store};
use serde_json::{Value, json};

use crate::support::larder::{Folder, HOST, Larder};
use crate::support::null_provider::{edition, install, upstream_with};
use crate::support::terraform::{Terraform, host_override};
use crate::support::upstream::{FakeUpstream, Fault, Gate, Provider, SigningKey, Target};
use crate::support::warm_fixture::WarmFixture;

/// A larder with its upstreams, which must live as long as it.
pub(crate) struct Scene {
    pub(crate) larder: Larder,
    _upstreams: Vec<FakeUpstream>,
    _gate: Option<Gate>,
}

fn provider(namespace: &str, type_: &str) -> ProviderAddress {
    let [namespace, type_] = [namespace, type_].map(|name| Name::parse(name).unwrap());
    ProviderAddress { host: Hostname::parse(HOST).unwrap(), namespace, type_ }
}

fn alarm(kind: &str, address: &ProviderAddress, version: &str, detail: &str, since: Timestamp) -> Value {
    let resolve = match kind {
        "dropped" => Value::Null,
        "new-key" | "signature-lost" => json!(format!("larder accept {address}")),
        _ => json!(format!("larder accept {address}@{version}")),
    };
    let address = address.to_string();
    json!({ "kind": kind, "address": address, "version": version, "detail": detail, "since": since, "resolve": resolve })
}

/// A day that begins quietly at night and is busy in the afternoon.
fn write_traffic(store: &Store, now: Timestamp) {
    for hours_ago in 0..24 {
        let hour = now.0 / 3600 - hours_ago;
        let busy =
            [1, 1, 1, 1, 1, 2, 4, 9, 16, 22, 25, 21, 18, 22, 26, 27, 24, 17, 11, 8, 6, 4, 2, 1][(hour % 24) as usize];
        let minutes = (0..60).filter(|minute| hours_ago > 0 || *minute < now.0 % 3600 / 60).map(|minute| {
            let wave = (minute * 7 + hour * 13) % 11;
            let hits = busy * (3 + wave) * 4;
            let misses = if wave == 3 { busy } else { busy / 6 };
            let saved = hits * 9_000_000;
            let counts = json!({
                "hit": hits, "miss": misses, "revalidated": busy / 2, "stale": 0, "absent": wave / 4,
                "refused": if wave == 10 { busy / 4 } else { 0 }, "failed": 0, "saved_bytes": saved,
                "sent_bytes": saved + misses * 28_000_000, "upstream_bytes": misses * 28_500_000,
            });
            (minute.to_string(), counts)
        });
        let record = json!({ "hour": hour, "minutes": minutes.collect::<serde_json::Map<_, _>>() }).to_string();
        store.records.put(&Key::Traffic(HourOfDay::of(hour)), record.as_bytes(), Durability::Lazy).unwrap();
    }
}

/// A store with the traffic of a day and these alarms.
fn store_with(now: Timestamp, alarms: &[(ProviderAddress, Vec<Value>)]) -> Folder {
    let folder = Folder::new();
    let store = Store::open(folder.path(), now).unwrap();
    write_traffic(&store, now);
    for (address, alarms) in alarms {
        let record = json!({ "alarms": alarms }).to_string();
        store
            .records
            .put(&Key::Alarms(Address::Provider(address.clone())), record.as_bytes(), Durability::Synced)
            .unwrap();
    }
    store.close().unwrap();
    folder
}

impl Scene {
    /// A larder in the middle of a working day, with something of everything.
    pub(crate) async fn busy() -> Self {
        let clock = Clock::frozen();
        let now = clock.now();
        let ago = |seconds| Timestamp(now.0 - seconds);
        let aws = provider("hashicorp", "aws");
        let [datadog, random] = [provider("datadog", "datadog"), provider("hashicorp", "random")];
        let changed = "its proof set for linux_amd64 gives terraform-provider-aws_5.31.0_linux_amd64.zip the SHA-256 \
                       9b1c66f0c4b2dd4aa94e2d2bd2af6ce4d7f0f7a3f1f0a2bb63ac6e2f9c0de07f; it was \
                       4d2a90e1c8b54b1f0c4ef16a3b7bb8e0f9d6e6ad7b1d5f3b8a2c07d94ef581c3 when this version was first verified; \
                       signed by key 1F9D4E0C7AB2D6650893; the keys known for this provider are 72D7468F34365C6C";
        let hostile = "<img src=x onerror=alert(1)><script>alert(2)</script> is signed by key A2166B8DE8BDC3367D1901C11EE2FF37CA8DA16B";
        let folder = store_with(
            now,
            &[
                (aws.clone(), vec![alarm("waits-for-accept", &aws, "5.31.0", changed, ago(5 * 3600))]),
                (
                    datadog.clone(),
                    vec![
                        alarm(
                            "signature-lost",
                            &datadog,
                            "3.34.0",
                            "the registry lists no key; 3.33.0 was signed by key FB70BE941301C3EA",
                            ago(2 * 86_400),
                        ),
                        alarm("new-key", &datadog, "3.32.0", hostile, ago(9 * 86_400)),
                    ],
                ),
                (
                    random.clone(),
                    vec![alarm(
                        "dropped",
                        &random,
                        "3.5.0",
                        "upstream lists it no more; it is stored, and stays listed here (keep_gone)",
                        ago(40 * 60),
                    )],
                ),
            ],
        );
        let upstream = FakeUpstream::start().await;
        let other = FakeUpstream::start().await;
        let sizes = [
            ("hashicorp", "aws", "5.30.0", 900_000),
            ("hashicorp", "google", "5.10.0", 700_000),
            ("hashicorp", "kubernetes", "2.25.2", 300_000),
            ("hashicorp", "random", "3.6.0", 120_000),
            (
                "a-namespace-with-a-rather-long-name",
                "a-provider-with-a-rather-long-name-of-its-own",
                "12.34.56",
                90_000,
            ),
        ];
        for (namespace, type_, version, size) in sizes {
            upstream.publish(Provider::new(namespace, type_).version(version).size(size));
        }
        for version in ["4.0.0", "4.1.0", "4.2.0"] {
            upstream.publish(Provider::new("hashicorp", "azurerm").version(version).size(400_000));
        }
        upstream.publish(Provider::new("hashicorp", "vault").version("3.23.0").size(3_000_000));
        let larder = Larder::mirroring(&upstream)
            .upstream("registry.opentofu.org", &format!("{}/", other.origin()), "")
            .config_lines(
                "[[policy]]\nmatch = \"acme/*\"\naction = \"deny\"\nreason = \"ask #platform <b>to add it</b>\"\n\
                 [[policy]]\nmatch = \"a-namespace-with-a-rather-long-name/evil\"\naction = \"deny\"\n",
            )
            .store_at(&folder)
            .clock(&clock);
        let larder = larder.start().await;
        for (refused, times) in [("acme/anything", 12), ("a-namespace-with-a-rather-long-name/evil", 1)] {
            for _ in 0..times {
                larder.get(&format!("/registry/{HOST}/v1/providers/{refused}/versions")).await.expect(421);
            }
        }
        for (namespace, type_, version, _) in sizes {
            let document = format!("/registry/{HOST}/v1/providers/{namespace}/{type_}/{version}/download/linux/amd64");
            let document = larder.get(&document).await.expect(200).json();
            larder.get(document["download_url"].as_str().unwrap()).await.expect(200);
            clock.advance(Duration::from_secs(7));
        }
        other.fault(Target::Everything, Fault::Status(503));
        larder.get("/registry/registry.opentofu.org/.well-known/terraform.json").await;
        let fixture = WarmFixture::for_larder(&larder);
        let platforms = json!(["linux_amd64"]);
        let failed = json!({ "what": ["hashicorp/random@3.6.0", "hashicorp/absent@1.0.0"], "platforms": platforms });
        fixture.warm(&failed).await;
        let gate = upstream.hold_after(Target::Archive.with_path_part("vault"), 1_000_000);
        let what: Vec<String> = ["azurerm@4.0.0", "azurerm@4.1.0", "azurerm@4.2.0", "google@5.10.0", "vault@3.23.0"]
            .map(|name| format!("hashicorp/{name}"))
            .into();
        let job = fixture.start_job(&json!({ "what": what, "platforms": platforms, "pin": true })).await;
        fixture.wait_for_job(&job, |job| job.states().iter().filter(|state| **state == "fetched").count() == 3).await;
        Self { larder, _upstreams: vec![upstream, other], _gate: Some(gate) }
    }

    /// A larder with a quarantine: some versions are held back, one is approved.
    pub(crate) async fn with_quarantine() -> Self {
        let clock = Clock::frozen();
        let upstream = FakeUpstream::start().await;
        let names = [
            ("hashicorp", "aws", &["6.20.0", "6.21.0", "6.22.0"][..]),
            ("hashicorp", "google", &["7.1.0", "7.2.0-rc1"]),
            ("a-namespace-with-a-rather-long-name", "a-provider-with-a-rather-long-name-of-its-own", &["12.34.56"]),
        ];
        let rules = "[[policy]]\nmatch = \"a-namespace-with-a-rather-long-name/*\"\nminimum_age = \"36h\"\n\
                     [[policy]]\nmatch = \"*\"\nminimum_age = \"7d\"\nreason = \"we wait a week, see https://wiki.corp.example/quarantine\"\n";
        let larder = Larder::mirroring(&upstream).clock(&clock).config_lines(rules).start().await;
        for (days, is_first) in [(3, true), (0, false)] {
            for (namespace, type_, versions) in names {
                let versions = if is_first { &["1.0.0"] } else { versions };
                for version in versions {
                    upstream.publish(Provider::new(namespace, type_).version(version));
                }
                let list = format!("/registry/{HOST}/v1/providers/{namespace}/{type_}/versions");
                larder.get(&list).await.expect(200);
            }
            clock.advance(Duration::from_secs(days * 86_400 + 4_000));
        }
        larder
            .send_command(
                "approve",
                json!({ "what": ["hashicorp/aws@6.21.0"], "reason": "fixes CVE-2026-1234", "by": "Ada", "until": "2099-12-31" }),
            )
            .await;
        Self { larder, _upstreams: vec![upstream], _gate: None }
    }

    /// The larder of the demonstration after an evening of five hours, in which the real client installs what it installs there,
    /// and in which upstream is away for a while, publishes versions, and signs one with another key. Only the clock is moved on.
    /// `None` without the client.
    pub(crate) async fn evening() -> Option<Self> {
        let client = Terraform::find()?;
        let clock = Clock::frozen();
        let mut registry = FakeUpstream::start().await;
        let publish = |registry: &FakeUpstream, name: &str, version: &str, size: usize, key: Option<&SigningKey>| {
            let provider = Provider::new("acme", name).version(version).size(size);
            let provider =
                ["linux_amd64", "darwin_arm64"].iter().fold(provider, |all, platform| all.platform(platform));
            registry.publish(match key {
                Some(key) => provider.signed_by(key),
                None => provider,
            });
        };
        publish(&registry, "cloud", "5.31.0", 60_000_000, None);
        publish(&registry, "network", "2.4.1", 25_000_000, None);
        publish(&registry, "random", "3.6.0", 5_000_000, None);
        let larder = Larder::mirroring(&registry).clock(&clock).start().await;
        let lines =
            host_override(HOST, &larder.providers_url(HOST), &format!("{}/registry/{HOST}/v1/modules/", larder.base()));
        for five_minutes in 0..60 {
            match five_minutes {
                22 => registry.stop().await,
                31 => registry.restart().await,
                37 => publish(&registry, "cloud", "5.32.0", 61_000_000, None),
                46 => publish(&registry, "random", "3.7.0", 5_000_000, Some(&SigningKey::new_key())),
                _ => {}
            }
            // Most people go home at seven; the pipelines go on.
            for _ in 0..[3, 4, 2, 3, 2, 1][five_minutes / 10] {
                let mut workspace = client.workspace();
                workspace
                    .require("acme/cloud", "~> 5.31")
                    .require("acme/network", "2.4.1")
                    .require("acme/random", "~> 3.6");
                workspace.cli_config(&lines).init().await.expect_success();
            }
            clock.advance(Duration::from_secs(5 * 60));
        }
        let what = json!({ "what": ["acme/cloud", "acme/network", "acme/random"], "platforms": ["darwin_arm64"] });
        WarmFixture::for_larder(&larder).warm(&what).await;
        Some(Self { larder, _upstreams: vec![registry], _gate: None })
    }

    /// An offline larder with packages that are missing.
    pub(crate) async fn sealed() -> Self {
        let upstream = upstream_with(edition(1)).await;
        let connected = Larder::mirroring(&upstream).start().await;
        install(&connected).await;
        connected.versions("null").await.expect(200);
        let folder = connected.stop().await;
        let larder = Larder::mirroring(&upstream).store_at(&folder).network("offline = true").start().await;
        for (name, version) in
            [("null", "1.3.0"), ("aws", "5.31.0"), ("a-provider-with-a-rather-long-name-of-its-own", "1.0.0")]
        {
            larder.document(name, version).await;
        }
        Self { larder, _upstreams: vec![upstream], _gate: None }
    }

    /// A larder that refuses other bytes for acme/null 1.2.0.
    pub(crate) async fn refused() -> Self {
        let upstream = upstream_with(edition(1)).await;
        let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
        install(&larder).await;
        upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
        larder.document("null", "1.2.0").await.expect(200);
        assert_eq!(larder.alarms().await.len(), 1);
        Self { larder, _upstreams: vec![upstream], _gate: None }
    }
}
