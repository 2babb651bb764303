//! Acceptance tests: the real `terraform` installs through larder, and again when the upstream is gone.

use crate::support::larder::{HOST, Larder};
use crate::support::terraform::{Terraform, Workspace, host_override, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Provider, SigningKey, Target};

fn publish(upstream: &FakeUpstream) {
    for version in ["1.1.0", "1.2.0", "1.3.0-beta.1", "2.0.0"] {
        upstream.publish(
            Provider::new("acme", "null")
                .version(version)
                .platform("linux_amd64")
                .platform("darwin_arm64")
                .size(3_000_000),
        );
    }
    let random = Provider::new("acme", "random").version("3.0.1");
    upstream.publish(
        random.platform("linux_amd64").platform("windows_amd64").directory_entries().unknown_fields().size(200_000),
    );
    upstream.publish(Provider::new("acme", "tiny").version("0.1").platform("linux_amd64").size(10));
}

fn workspace_requiring(client: &Terraform, host: &str) -> Workspace {
    let mut workspace = client.workspace();
    workspace.require(&format!("{host}/acme/null"), "~> 1.1").require(&format!("{host}/acme/random"), ">= 3.0.0");
    workspace
}

/// The number of files in a version's SHA256SUMS.
fn sums_file_count(upstream: &FakeUpstream, name: &str, version: &str) -> usize {
    upstream.sums_bytes("acme", name, version).iter().filter(|byte| **byte == b'\n').count()
}

fn override_config(larder: &Larder) -> String {
    host_override(HOST, &larder.providers_url(HOST), "http://127.0.0.1:9/v1/modules/")
}

/// Promise 6, the acceptance test: a user adds a few lines to the CLI
/// configuration and changes no `source` address, and `init` works without the upstream.
#[tokio::test]
async fn init_works_through_an_override_and_again_when_the_upstream_is_gone() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = FakeUpstream::start().await;
    publish(&upstream);
    let direct = workspace_requiring(&client, HOST);
    direct.cli_config(&host_override(HOST, &upstream.providers_url(), &upstream.modules_url()));
    direct.init().await.expect_success();

    let larder = Larder::mirroring(&upstream).start().await;
    let workspace = workspace_requiring(&client, HOST);
    // The lines that `serve` prints, pasted unchanged.
    workspace.cli_config(larder.client_config());
    workspace.init().await.expect_success();
    assert_eq!(workspace.lock_file(), direct.lock_file());

    upstream.forget_requests();
    workspace.remove_lock_and_installed();
    workspace.init().await.expect_success();
    assert_eq!(upstream.count_of(Target::Everything), 0, "a second init within the fresh time asked upstream");
    assert_eq!(workspace.lock_file(), direct.lock_file());

    upstream.stop().await;
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).always_revalidate().store_at(&folder).start().await;
    let workspace = workspace_requiring(&client, HOST);
    workspace.cli_config(&override_config(&larder));
    workspace.init().await.expect_success();
    assert_eq!(workspace.lock_file(), direct.lock_file());
    assert!(larder.versions("null").await.expect(200).has_cache_status("detail=stale"));
}

/// Signatures and checksums that the client accepts install through larder with the same lock file, and what it refuses is
/// refused.
#[tokio::test]
async fn signatures_of_text_and_names_listed_twice_are_judged_as_by_the_client() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    let provider = |name: &str| Provider::new("acme", name).size(100_000);
    let cases = [
        (provider("text").signed_by(&SigningKey::new_text_key()), true),
        (provider("after").other_sums_after(), true),
        (provider("folder").filename("dist/terraform-provider-folder_1.2.0_{platform}.zip"), true),
        (provider("before").other_sums_before(), false),
    ];
    let larder = Larder::mirroring(&upstream).start().await;
    for (provider, is_accepted) in cases {
        let source = provider.source();
        upstream.publish(provider);
        let direct = host_override(HOST, &upstream.providers_url(), &upstream.modules_url());
        let mut lock_files = Vec::new();
        for cli_config in [direct, override_config(&larder)] {
            let mut workspace = client.workspace();
            workspace.require(&format!("{HOST}/{source}"), "1.2.0").cli_config(&cli_config);
            let output = workspace.init().await;
            assert_eq!(output.status.success(), is_accepted, "{source}: {}", output.text);
            lock_files.push(std::fs::read_to_string(workspace.path().join(".terraform.lock.hcl")).unwrap_or_default());
        }
        assert_eq!(lock_files[0], lock_files[1], "{source}");
    }
}

/// The list has `0.1`, the client requests `0.1.0`, and upstream only knows `0.1`.
#[tokio::test]
async fn a_version_in_an_unusual_upstream_spelling_is_installed() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    publish(&upstream);
    let larder = Larder::mirroring(&upstream).start().await;
    let mut workspace = client.workspace();
    workspace.require("acme/tiny", "0.1.0");
    workspace.cli_config(&override_config(&larder));
    workspace.init().await.expect_success();
}

#[tokio::test]
async fn a_pre_release_is_installed_when_it_is_requested_exactly() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    publish(&upstream);
    let larder = Larder::mirroring(&upstream).start().await;
    let mut workspace = client.workspace();
    workspace.require("acme/null", "1.3.0-beta.1");
    workspace.cli_config(&override_config(&larder));
    workspace.init().await.expect_success();
    assert!(workspace.lock_file().contains("version     = \"1.3.0-beta.1\""), "{}", workspace.lock_file());
}

#[tokio::test]
async fn init_works_through_a_network_mirror_over_tls() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = FakeUpstream::start().await;
    publish(&upstream);
    let ca = TestCa::new();
    let larder = Larder::mirroring(&upstream).tls(&ca, &["127.0.0.1"]).start().await;
    let mut workspace = workspace_requiring(&client, HOST);
    workspace.trust(&ca.pem());
    workspace.cli_config(&network_mirror(&format!("{}/mirror/", larder.base())));
    let output = workspace.init().await.expect_success();
    assert!(output.text.contains("verified checksum"), "{}", output.text);

    upstream.stop().await;
    workspace.remove_lock_and_installed();
    workspace.init().await.expect_success();
    assert_eq!(workspace.lock_file().matches("\"h1:").count(), 2);
}

#[tokio::test]
async fn init_works_through_larders_own_host_name_over_tls() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    publish(&upstream);
    let ca = TestCa::new();
    let builder = Larder::mirroring(&upstream).server(&format!("default_upstream = \"{HOST}\""));
    let larder = builder.tls(&ca, &["localhost"]).start().await;
    let mut workspace = workspace_requiring(&client, &format!("localhost:{}", larder.address().port()));
    workspace.trust(&ca.pem());
    workspace.init().await.expect_success();
    let lock = workspace.lock_file();
    for line in String::from_utf8(upstream.sums_bytes("acme", "null", "1.2.0")).unwrap().lines() {
        assert!(lock.contains(&format!("\"zh:{}\"", &line[..64])), "{lock}");
    }
}

#[tokio::test]
async fn providers_lock_and_providers_mirror_work_through_an_override() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    let platforms = ["linux_amd64", "darwin_arm64", "windows_amd64", "linux_arm64"];
    let provider = Provider::new("acme", "null").version("1.2.0");
    upstream.publish(platforms.iter().fold(provider, |provider, platform| provider.platform(platform)).size(100_000));
    let larder = Larder::mirroring(&upstream).start().await;
    let mut workspace = client.workspace();
    workspace.require("acme/null", "1.2.0");
    workspace.cli_config(&override_config(&larder));
    let flags: Vec<String> = platforms.iter().map(|platform| format!("-platform={platform}")).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    workspace.run(&[&["providers", "lock"], &flags[..]].concat()).await.expect_success();
    let lock = workspace.lock_file();
    assert_eq!(
        (lock.matches("\"h1:").count(), lock.matches("\"zh:").count()),
        (4, sums_file_count(&upstream, "null", "1.2.0")),
        "{lock}"
    );

    workspace.run(&[&["providers", "mirror"], &flags[..], &["out"]].concat()).await.expect_success();
    let zip = workspace.path().join(format!("out/{HOST}/acme/null/terraform-provider-null_1.2.0_linux_arm64.zip"));
    assert_eq!(std::fs::read(zip).unwrap(), upstream.archive_bytes("acme", "null", "1.2.0", "linux_arm64"));
}

/// A larder whose upstream is another larder.
#[tokio::test]
async fn a_larder_behind_a_larder_gives_the_same_lock_file() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    publish(&upstream);
    let direct = workspace_requiring(&client, HOST);
    direct.cli_config(&host_override(HOST, &upstream.providers_url(), &upstream.modules_url()));
    direct.init().await.expect_success();

    let inner = Larder::mirroring(&upstream).server("public_url = \"https://inner.example/tf/\"").start().await;
    // The real address of `inner`; its public URL is for clients.
    let inner_url = format!("http://{}/registry/{HOST}/", inner.address());
    let outer = Larder::builder().upstream(HOST, &inner_url, "").start().await;
    let workspace = workspace_requiring(&client, HOST);
    workspace.cli_config(&override_config(&outer));
    workspace.init().await.expect_success();
    assert_eq!(workspace.lock_file(), direct.lock_file());
}

/// An upstream that is down never looks like "no such provider".
#[tokio::test]
async fn with_nothing_stored_and_the_upstream_gone_the_client_shows_the_cause() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = FakeUpstream::start().await;
    upstream.stop().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let workspace = workspace_requiring(&client, HOST);
    workspace.cli_config(&override_config(&larder));
    let output = workspace.init().await.expect_failure();
    let text = output.one_line();
    assert!(text.contains("502 larder: ") && text.contains("connection refused (`larder doctor`"), "{text}");
    assert!(!text.contains("does not have a provider named"), "{text}");
}
