//! Outbound connections: trusted certificates, taken-over names, and proxies of the environment.

use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Provider, Target};

fn provider() -> Provider {
    Provider::new("acme", "null").version("1.2.0").platform("linux_amd64").size(2_000_000)
}

async fn assert_installs(larder: &Larder, upstream: &FakeUpstream) {
    let path = larder.archive_path("null", "1.2.0").await;
    let archive = larder.get(&path).await.expect(200);
    assert_eq!(archive.body, upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
}

/// Although the registry's host name resolves to larder, larder connects to the configured address, and sends and
/// verifies that name.
#[tokio::test]
async fn a_taken_over_registry_is_requested_at_the_configured_address_under_its_host_name() {
    let ca = TestCa::new();
    let upstream = FakeUpstream::builder().tls_with(&ca).certificate_name(HOST).http2().start().await;
    upstream.publish(provider());
    let larder = Larder::builder()
        .upstream(HOST, &format!("https://{HOST}/"), &format!("addresses = [\"127.0.0.1:{}\"]", upstream.port()))
        .trusting(&ca)
        // The documents of the fake upstream name its address, not its host name.
        .allow_private("127.0.0.1")
        .start()
        .await;
    assert_installs(&larder, &upstream).await;
    let registry = [Target::Discovery, Target::Versions, Target::Document];
    let requests_with_address = upstream.count_where(|request| {
        registry.contains(&request.target) && request.header("host").is_some_and(|host| host.starts_with("127."))
    });
    assert_eq!(requests_with_address, 0, "a request to the registry has its address as the Host, not its name");
}

#[tokio::test]
async fn an_untrusted_certificate_is_named_in_the_error() {
    let upstream = FakeUpstream::builder().tls().start().await;
    upstream.publish(provider());
    let larder = Larder::mirroring(&upstream).start().await;
    let refused = larder.versions("null").await.expect(502);
    assert!(refused.text().contains("certificate"), "{}", refused.text());
}

/// HTTP(S)_PROXY and NO_PROXY of the environment apply to every outbound request.
#[tokio::test]
async fn a_proxy_in_the_environment_is_used_unless_no_proxy_says_otherwise() {
    // The proxy answers for any host: the host below exists nowhere else.
    let proxy = FakeUpstream::start().await;
    proxy.publish(provider());
    for (no_proxy, uses_proxy) in [("", true), ("registry.invalid", false)] {
        let folder = Folder::new();
        let config = Larder::builder().store_at(&folder).upstream(HOST, "http://registry.invalid/", "").config_text();
        proxy.forget_requests();
        let larder = Process::serve_with(&config, folder.path(), |command| {
            command.env("HTTP_PROXY", proxy.origin()).env("http_proxy", proxy.origin());
            command.env("NO_PROXY", no_proxy).env("no_proxy", no_proxy);
        });
        let larder = larder.unwrap_or_else(|error| panic!("{error:?}"));
        let versions = larder.get(&format!("/registry/{HOST}/v1/providers/acme/null/versions")).await;
        assert_eq!(versions.status, if uses_proxy { 200 } else { 502 }, "{}", versions.text());
        assert_eq!(proxy.count_where(|_| true) > 0, uses_proxy, "NO_PROXY={no_proxy}");
    }
}
