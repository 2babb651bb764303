//! The client checks of `larder doctor`: does the client's own configuration lead to this larder? Some tests confirm
//! the finding with the real client.

use std::io::{Read, Write};

use crate::support::command_setup::CommandSetup;
use crate::support::doctor_setup::{
    configure_client, enable_tls, examine, examine_without_larder_config, providers_url, registry, small_store_setup,
    write,
};
use crate::support::http::get;
use crate::support::larder::{Folder, HOST};
use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::terraform::{Terraform, host_override, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Provider};

const MODULES: &str = "https://registry.terraform.io/v1/modules/";

/// A running larder, and a home directory whose client is not configured yet.
async fn site_with_larder() -> (FakeUpstream, CommandSetup, Process) {
    let upstream = registry().await;
    let setup = small_store_setup(&upstream);
    let larder = setup.serve();
    (upstream, setup, larder)
}

/// A running larder with a TLS certificate of this authority, and the authority's certificate as `ca.pem` in the home.
async fn site_with_tls_larder(ca: &TestCa) -> (FakeUpstream, CommandSetup, Process) {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    let (certificate, key) = ca.issue(&["127.0.0.1"]);
    enable_tls(&mut setup, &certificate, &key);
    write(&setup, "ca.pem", &ca.pem());
    let larder = setup.serve();
    (upstream, setup, larder)
}

/// Without a client configuration larder itself is not at fault: a warning, with the lines to write.
#[tokio::test]
async fn no_client_configuration_is_a_warning_with_the_lines_to_paste() {
    let (_upstream, setup, _larder) = site_with_larder().await;
    let report = examine(&setup, &[]).await;
    report.assert_warns("client.files", "clients ask every registry directly");
    write(&setup, ".tofurc", &setup.stdout_of(&["client-config"]).await);
    let report = examine(&setup, &[]).await;
    assert!(report.ids_of_warnings().contains(&"client.files"), "terraform does not read .tofurc: {report:#?}");
    write(&setup, ".terraformrc", &setup.stdout_of(&["client-config"]).await);
    std::fs::remove_file(setup.home.path().join(".tofurc")).unwrap();
    examine(&setup, &[]).await.assert_healthy();
}

/// A larder whose `[server] clients` leave out this machine refuses every `init` here.
#[tokio::test]
async fn a_larder_that_does_not_serve_this_machine_is_reported() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    setup.text = setup.text.replace("[server]\n", "[server]\nclients = [\"192.0.2.0/24\"]\n");
    let _larder = setup.serve();
    configure_client(&setup);
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["client.address"], "which refuses this machine: 127.0.0.1 is not among the clients");
    assert!(report.finding("listener").contains("is not among the clients"), "{report:#?}");
    assert!(report.advice("client.address").contains("[server] clients"), "{report:#?}");
}

/// Either nothing listens at the address, or another server does.
#[tokio::test]
async fn a_wrong_address_in_the_clients_configuration_is_reported() {
    let (upstream, setup, _larder) = site_with_larder().await;
    let wrong = providers_url(&setup).replace(&setup.base(), &format!("http://127.0.0.1:{}", free_port()));
    write(&setup, ".terraformrc", &host_override(HOST, &wrong, MODULES));
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["client.address"], "nothing listens there");
    assert!(report.advice("client.address").contains(&providers_url(&setup)), "{report:#?}");
    write(&setup, ".terraformrc", &host_override(HOST, &upstream.providers_url(), MODULES));
    examine(&setup, &[]).await.assert_fails(&["client.address"], "something else answers (404");
    let unknown = "http://no-such-larder.invalid/registry/registry.terraform.io/v1/providers/";
    write(&setup, ".terraformrc", &host_override(HOST, unknown, MODULES));
    examine(&setup, &[]).await.assert_fails(&["client.address"], "no-such-larder.invalid leads nowhere");
}

/// The client concatenates URLs.
#[tokio::test]
async fn a_missing_slash_is_reported_and_the_client_fails_because_of_it() {
    let (_upstream, setup, larder) = site_with_larder().await;
    let good = host_override(HOST, &providers_url(&setup), MODULES);
    let bad = host_override(HOST, providers_url(&setup).trim_end_matches('/'), MODULES);
    write(&setup, ".terraformrc", &bad);
    examine(&setup, &[]).await.assert_fails(&["client.slash"], "no final slash");
    write(&setup, ".terraformrc", &good);
    examine(&setup, &[]).await.assert_healthy();

    let Some(client) = Terraform::find() else { return };
    let mut workspace = client.workspace();
    workspace.require(&format!("{HOST}/hashicorp/null"), ">= 1.0.0");
    workspace.cli_config(&bad);
    let error = workspace.init().await.expect_failure().one_line();
    assert!(error.contains("421 larder: providers.v1") && error.contains("v1/providers/"), "{error}");
    workspace.cli_config(&good);
    workspace.init().await.expect_success();
    drop(larder);
}

/// A `host` block replaces the whole list of services.
#[tokio::test]
async fn an_override_that_names_only_providers_is_reported_and_modules_fail_with_it() {
    let (_upstream, setup, _larder) = site_with_larder().await;
    let single_service =
        |name: &str, url: &str| format!("host \"{HOST}\" {{\n  services = {{\n    \"{name}\" = \"{url}\"\n  }}\n}}\n");
    write(&setup, ".terraformrc", &single_service("providers.v1", &providers_url(&setup)));
    examine(&setup, &[]).await.assert_fails(&["client.services"], "only providers.v1");
    write(&setup, ".terraformrc", &single_service("modules.v1", MODULES));
    examine(&setup, &[]).await.assert_fails(&["client.services"], "no providers.v1");

    let Some(client) = Terraform::find() else { return };
    let mut workspace = client.workspace();
    workspace.file("main.tf", &format!("module \"m\" {{\n  source = \"{HOST}/acme/x/aws\"\n}}\n"));
    workspace.cli_config(&single_service("providers.v1", &providers_url(&setup)));
    let error = workspace.init().await.expect_failure().one_line();
    assert!(error.contains("does not provide a modules service"), "{error}");
}

/// A registry may offer one service and name the other with null. The block that `client-config` prints then names the
/// one service: the doctor accepts the block, and the client reads it.
#[tokio::test]
async fn a_registry_that_offers_one_service_needs_no_other_in_its_block() {
    for (service, other) in [("modules.v1", "providers.v1"), ("providers.v1", "modules.v1")] {
        let (upstream, setup, _larder) = site_with_larder().await;
        let folder = service.trim_end_matches(".v1");
        // The URL of `x.v1` contains `${`, which begins a template in a CLI configuration.
        let discovery = format!(
            r#"{{"{service}":"/v1/{folder}/","{other}":null,"login.v1":{{"client":"c","scopes":null}},"x.v1":"/${{x"}}"#
        );
        upstream.serve_json("/.well-known/terraform.json", &discovery);
        get(&format!("{}/registry/{HOST}/.well-known/terraform.json", setup.base())).await.expect(200);
        let printed = setup.stdout_of(&["client-config"]).await;
        assert!(printed.contains(service) && !printed.contains(other) && !printed.contains("null"), "{printed}");
        write(&setup, ".terraformrc", &printed);
        let report = examine(&setup, &[]).await;
        match service {
            "modules.v1" => report.assert_warns("upstream.discovery", "names modules.v1"),
            _ => report.assert_healthy(),
        }
        let config_without_service: String =
            printed.lines().filter(|line| !line.contains(service)).map(|line| format!("{line}\n")).collect();
        write(&setup, ".terraformrc", &config_without_service);
        examine(&setup, &[]).await.assert_fails(&["client.services"], "neither providers.v1 nor modules.v1");

        let Some(client) = Terraform::find() else { return };
        let mut workspace = client.workspace();
        workspace.file("main.tf", &format!("module \"m\" {{\n  source = \"{HOST}/acme/x/aws\"\n}}\n"));
        workspace.cli_config(&printed);
        let error = workspace.init().await.expect_failure().one_line();
        let message = if service == "modules.v1" {
            "cannot be found in the module registry"
        } else {
            "does not provide a modules service"
        };
        // The client has no error about its CLI configuration file, with or without a capital letter.
        assert!(error.contains(message) && !error.contains("onfiguration file"), "{error}");
    }
}

#[tokio::test]
async fn a_certificate_that_the_client_does_not_trust_is_reported() {
    let ca = TestCa::new();
    let (_upstream, setup, _larder) = site_with_tls_larder(&ca).await;
    let base = setup.base().replace("http:", "https:");
    let config = host_override(HOST, &format!("{base}/registry/{HOST}/v1/providers/"), MODULES);
    write(&setup, ".terraformrc", &config);
    let file = setup.home.path().join("ca.pem");
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["listener.certificate", "client.certificate"], "no authority that this machine trusts");
    examine(&setup, &[("SSL_CERT_FILE", file.to_str().unwrap())]).await.assert_healthy();
    let folder = setup.home.path().join("authorities");
    write(&setup, "authorities/any-name", &ca.pem());
    examine(&setup, &[("SSL_CERT_DIR", folder.to_str().unwrap())]).await.assert_healthy();

    let Some(client) = Terraform::find() else { return };
    let mut workspace = client.workspace();
    workspace.require(&format!("{HOST}/hashicorp/null"), ">= 1.0.0");
    workspace.cli_config(&config);
    let output = workspace.init().await.expect_failure().text;
    assert!(output.contains("certificate"), "{output}");
    workspace.trust(&ca.pem());
    workspace.init().await.expect_success();
}

/// `openssl req -x509` makes a self-signed server certificate that is its own authority; the clients accept it.
#[tokio::test]
async fn a_self_signed_certificate_is_accepted_as_the_client_accepts_it() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    let (certificate, key) = TestCa::self_signed(&["127.0.0.1"]);
    enable_tls(&mut setup, &certificate, &key);
    let _larder = setup.serve();
    let base = setup.base().replace("http:", "https:");
    let config = host_override(HOST, &format!("{base}/registry/{HOST}/v1/providers/"), MODULES);
    write(&setup, ".terraformrc", &config);
    examine(&setup, &[]).await.assert_fails(&["listener.certificate", "client.certificate"], "not trusted");
    let file = setup.home.path().join("cert.pem");
    examine(&setup, &[("SSL_CERT_FILE", file.to_str().unwrap())]).await.assert_healthy();

    let Some(client) = Terraform::find() else { return };
    let mut workspace = client.workspace();
    workspace.require(&format!("{HOST}/hashicorp/null"), ">= 1.0.0").trust(&certificate);
    workspace.cli_config(&config);
    workspace.init().await.expect_success();
}

#[tokio::test]
async fn http_instead_of_https_and_the_reverse_are_reported() {
    let (_upstream, setup, larder) = site_with_larder().await;
    let https = providers_url(&setup).replace("http:", "https:");
    write(&setup, ".terraformrc", &host_override(HOST, &https, MODULES));
    examine(&setup, &[]).await.assert_fails(&["client.scheme"], "speaks no TLS");
    drop(larder);
    let ca = TestCa::new();
    let (_upstream, setup, _larder) = site_with_tls_larder(&ca).await;
    let http = format!(
        "http{}/registry/{HOST}/v1/providers/",
        setup.base().trim_start_matches("https").trim_start_matches("http")
    );
    write(&setup, ".terraformrc", &host_override(HOST, &http, MODULES));
    let file = setup.home.path().join("ca.pem");
    let report = examine(&setup, &[("SSL_CERT_FILE", file.to_str().unwrap())]).await;
    report.assert_fails(&["client.scheme"], "speaks no plain HTTP");
}

#[tokio::test]
async fn urls_of_another_registry_or_of_none_are_reported() {
    let (upstream, mut setup, larder) = site_with_larder().await;
    let other = format!("{}/registry/registry.opentofu.org/v1/providers/", setup.base());
    write(&setup, ".terraformrc", &host_override(HOST, &other, MODULES));
    examine(&setup, &[]).await.assert_fails(&["client.host"], "does not mirror registry.opentofu.org");
    let nowhere = format!("{}/providers/", setup.base());
    write(&setup, ".terraformrc", &host_override(HOST, &nowhere, MODULES));
    examine(&setup, &[]).await.assert_fails(&["client.path"], "but not to a registry");
    drop(larder);
    let second_upstream = format!("[[upstream]]\nhost = \"registry.opentofu.org\"\nurl = \"{}/\"\n", upstream.origin());
    setup.text.push_str(&second_upstream);
    let _larder = setup.serve();
    let both_blocks = host_override(HOST, &other, MODULES) + &host_override("registry.opentofu.org", &other, MODULES);
    write(&setup, ".terraformrc", &both_blocks);
    examine(&setup, &[]).await.assert_fails(&["client.host"], "the same version has other bytes there");
}

/// Only the exact base URL of a registry, below the prefix of `public_url`, is accepted.
#[tokio::test]
async fn paths_that_only_look_like_a_registrys_are_reported() {
    let (_upstream, mut setup, larder) = site_with_larder().await;
    for path in [
        format!("/registry/{HOST}/"),
        format!("/registry/{HOST}/providers/"),
        format!("/registry/{HOST}/v1/modules/"),
        format!("/registry/{HOST}/v1/providers/hashicorp/"),
        format!("/mirror/{HOST}/"),
        format!("/wrong-prefix/registry/{HOST}/v1/providers/"),
    ] {
        write(&setup, ".terraformrc", &host_override(HOST, &format!("{}{path}", setup.base()), MODULES));
        examine(&setup, &[]).await.assert_fails(&["client.path"], "but not to a registry");
    }
    drop(larder);
    let url = format!("{}/registry/", setup.base());
    setup.text = setup.text.replacen("[server]\n", &format!("[server]\npublic_url = \"{url}\"\n"), 1);
    let _larder = setup.serve();
    write(&setup, ".terraformrc", &host_override(HOST, &providers_url(&setup), MODULES));
    examine(&setup, &[]).await.assert_fails(&["client.path"], "but not to a registry");
    let providers_url = format!("{url}registry/{HOST}/v1/providers/");
    write(&setup, ".terraformrc", &host_override(HOST, &providers_url, MODULES));
    examine(&setup, &[]).await.assert_healthy();
}

/// Go follows redirects, so this client reaches larder.
#[tokio::test]
async fn a_client_configured_through_a_redirect_reaches_larder() {
    let (_upstream, setup, _larder) = site_with_larder().await;
    // The doctor probes a larder with the version list of `~/~`, a name that no provider can have.
    let redirect_target = format!("{}/registry/{HOST}/v1/providers/~/~/versions", setup.base());
    let redirecting_server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = redirecting_server.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = redirecting_server.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let answer =
            format!("HTTP/1.1 308 Permanent Redirect\r\nlocation: {redirect_target}\r\ncontent-length: 0\r\n\r\n");
        let _ = stream.write_all(answer.as_bytes());
    });
    let providers_url = format!("http://{address}/registry/{HOST}/v1/providers/");
    write(&setup, ".terraformrc", &host_override(HOST, &providers_url, MODULES));
    examine(&setup, &[]).await.assert_healthy();
}

/// The doctor cannot check an address that only the client's proxy reaches.
#[tokio::test]
async fn a_larder_behind_the_clients_own_proxy_is_a_warning() {
    let (_upstream, setup, _larder) = site_with_larder().await;
    let providers_url = format!("http://mirror.invalid/registry/{HOST}/v1/providers/");
    write(&setup, ".terraformrc", &host_override(HOST, &providers_url, MODULES));
    examine(&setup, &[]).await.assert_fails(&["client.address"], "mirror.invalid leads nowhere");
    let report = examine(&setup, &[("HTTP_PROXY", "http://127.0.0.1:9")]).await;
    assert_eq!(report.ids_of_warnings(), ["client.address", "client.proxy"], "{report:#?}");
    assert!(report.finding("client.address").contains("proxy of HTTP_PROXY may lead elsewhere"), "{report:#?}");
}

/// The doctor probes the client's modules URL, with and without the final slash.
#[tokio::test]
async fn a_wrong_modules_url_is_reported() {
    let (upstream, mut setup, larder) = site_with_larder().await;
    let set_modules_path = |setup: &CommandSetup, path: &str| {
        write(setup, ".terraformrc", &host_override(HOST, &providers_url(setup), &format!("{}{path}", setup.base())));
    };
    let right_path = format!("/registry/{HOST}/v1/modules/");
    for path in [right_path.as_str(), right_path.trim_end_matches('/')] {
        set_modules_path(&setup, path);
        examine(&setup, &[]).await.assert_healthy();
    }
    for path in ["/", &right_path.replace("modules", "providers"), &right_path.replace(HOST, "registry.example")] {
        set_modules_path(&setup, path);
        let report = examine(&setup, &[]).await;
        report.assert_fails(&["client.services"], "serves no modules there");
        assert!(report.advice("client.services").contains(&format!("{}{right_path}", setup.base())), "{report:#?}");
    }
    let nowhere = format!("http://127.0.0.1:{}/v1/modules/", free_port());
    write(&setup, ".terraformrc", &host_override(HOST, &providers_url(&setup), &nowhere));
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["client.services"], "nothing listens there");
    assert!(report.advice("client.services").contains(&format!("{}{right_path}", setup.base())), "{report:#?}");
    drop(larder);
    setup.text.push_str(&format!("[[upstream]]\nhost = \"registry.example\"\nurl = \"{}/\"\n", upstream.origin()));
    let _larder = setup.serve();
    set_modules_path(&setup, &right_path.replace(HOST, "registry.example"));
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["client.host"], "which has other modules");
    assert!(report.advice("client.host").contains(&format!("{}{right_path}", setup.base())), "{report:#?}");
}

/// On a machine without larder, the client is checked against the larder that its configuration leads to.
#[tokio::test]
async fn a_machine_with_clients_only_is_checked_for_its_clients() {
    let (upstream, mut setup, larder) = site_with_larder().await;
    drop(larder);
    setup.text.push_str(&format!("[[upstream]]\nhost = \"registry.example\"\nurl = \"{}/\"\n", upstream.origin()));
    let larder = setup.serve();
    let home = Folder::new();
    let good = host_override(HOST, &providers_url(&setup), MODULES);
    let block = |url: &str| host_override("registry.example", url, "https://registry.example/v1/modules/");
    let other = providers_url(&setup).replace(HOST, "registry.example");
    let report_for = async |text: String| {
        std::fs::write(home.path().join(".terraformrc"), text).unwrap();
        examine_without_larder_config(home.path()).await
    };
    let report = report_for(good.clone() + &block(&other)).await;
    report.assert_warns("running", "no larder is set up on this machine");
    assert!(report.finding_of("client.override", "registry.example").contains("leads to larder"), "{report:#?}");
    assert!(report.finding("upstreams").contains("not checked"), "{report:#?}");
    let report = report_for(good.clone() + &block(&providers_url(&setup))).await;
    report.assert_fails(&["client.host"], "other bytes");
    assert!(report.advice("client.host").contains(&other), "{report:#?}");
    drop(larder);
    let report = report_for(good).await;
    report.assert_fails(&["client.address"], "nothing listens there");
    assert!(report.advice("client.address").contains(&format!("a larder runs at {}", setup.base())), "{report:#?}");
}

/// A client that cannot read its CLI configuration prints an error and continues without it.
#[tokio::test]
async fn a_file_that_the_client_cannot_read_is_reported() {
    let (_upstream, setup, _larder) = site_with_larder().await;
    write(&setup, ".terraformrc", "host \"registry.terraform.io\" {\n  services = {\n");
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["client.files"], ".terraformrc does not parse: line");
    configure_client(&setup);
    examine(&setup, &[("TF_CLI_CONFIG_FILE", "/nowhere/ci.tfrc")])
        .await
        .assert_fails(&["client.files"], "/nowhere/ci.tfrc");
    let ci = setup.home.path().join("ci.tfrc");
    std::fs::write(&ci, "").unwrap();
    let report = examine(&setup, &[("TF_CLI_CONFIG_FILE", ci.to_str().unwrap())]).await;
    report.assert_warns("client.override", "no host block");
}

/// The client reads both the main file and `.terraform.d`; a block in JSON counts too.
#[tokio::test]
async fn a_block_in_the_folder_of_the_client_counts() {
    let (_upstream, setup, _larder) = site_with_larder().await;
    let json = format!(
        r#"{{"host": {{"{HOST}": {{"services": {{"providers.v1": "{}", "modules.v1": "{MODULES}"}}}}}}}}"#,
        providers_url(&setup)
    );
    write(&setup, ".terraform.d/larder.tfrc.json", &json);
    write(&setup, ".terraformrc", "disable_checkpoint = true\n");
    examine(&setup, &[]).await.assert_healthy();
}

#[tokio::test]
async fn a_provider_installation_that_bypasses_larder_is_reported() {
    let ca = TestCa::new();
    let (_upstream, setup, _larder) = site_with_tls_larder(&ca).await;
    let base = setup.base().replace("http:", "https:");
    let block = host_override(HOST, &format!("{base}/registry/{HOST}/v1/providers/"), MODULES);
    let file = setup.home.path().join("ca.pem");
    let environment = [("SSL_CERT_FILE", file.to_str().unwrap())];
    let filesystem_mirror = "provider_installation {\n  filesystem_mirror {\n    path = \"/opt/providers\"\n  }\n}\n";
    let excluded = format!("provider_installation {{\n  direct {{\n    exclude = [\"{HOST}/*/*\"]\n  }}\n}}\n");
    let mirror = network_mirror(&format!("{base}/mirror/"));
    let without_a_slash = network_mirror(&format!("{base}/mirror"));
    let plain_http = network_mirror(&format!("{}/mirror/", base.replace("https:", "http:")));
    let wrong_path = network_mirror(&format!("{base}/registry/{HOST}/"));
    let mirror_and_direct = mirror.replace("  }\n}\n", "  }\n  direct {}\n}\n");
    let printed = setup.stdout_of(&["client-config", "--mirror"]).await;
    for (text, id, finding) in [
        (format!("{block}{filesystem_mirror}"), "client.installation", "from filesystem_mirror only"),
        (format!("{block}{excluded}"), "client.installation", "installed from nowhere"),
        (without_a_slash, "client.slash", "no final slash"),
        (plain_http, "client.scheme", "is not https"),
        (wrong_path, "client.path", "not to its mirror"),
        (mirror_and_direct.clone(), "client.installation", "direct lets the client ask the registry too"),
    ] {
        write(&setup, ".terraformrc", &text);
        examine(&setup, &environment).await.assert_fails(&[id], finding);
    }
    for text in [mirror, printed, format!("{block}{mirror_and_direct}"), block] {
        write(&setup, ".terraformrc", &text);
        examine(&setup, &environment).await.assert_healthy();
    }
}

#[tokio::test]
async fn other_client_settings_that_bypass_larder_are_warnings() {
    let (_upstream, setup, _larder) = site_with_larder().await;
    configure_client(&setup);
    examine(&setup, &[("TF_REGISTRY_CLIENT_TIMEOUT", "3")]).await.assert_warns("client.timeout", "no longer than 3 s");
    examine(&setup, &[("TF_REGISTRY_CLIENT_TIMEOUT", "30")]).await.assert_healthy();
    let missing = setup.home.path().join("cache-that-is-not-there");
    let environment = [("TF_PLUGIN_CACHE_DIR", missing.to_str().unwrap())];
    examine(&setup, &environment).await.assert_warns("client.cache", "is not a folder");
}

/// Go bypasses the proxy for loopback addresses only; the client's token passes through the proxy too.
#[tokio::test]
async fn a_proxy_in_between_and_a_token_without_tls_are_warnings() {
    let (_upstream, setup, _larder) = site_with_larder().await;
    let proxy = [("HTTP_PROXY", "http://127.0.0.1:9"), ("NO_PROXY", "127.0.0.1")];
    let token = [("TF_TOKEN_registry_terraform_io", "s3cret-of-client")];
    configure_client(&setup);
    examine(&setup, &proxy).await.assert_healthy();
    examine(&setup, &token).await.assert_healthy();
    // 0.0.0.0 reaches the listener by an address that is not loopback.
    let elsewhere = providers_url(&setup).replace("127.0.0.1", "0.0.0.0");
    write(&setup, ".terraformrc", &host_override(HOST, &elsewhere, MODULES));
    examine(&setup, &[]).await.assert_healthy();
    examine(&setup, &proxy).await.assert_warns("client.proxy", "through the proxy of HTTP_PROXY");
    examine(&setup, &token).await.assert_warns("client.credentials", "without TLS");
    write(
        &setup,
        ".terraform.d/credentials.tfrc.json",
        r#"{"credentials": {"registry.terraform.io": {"token": "x"}}}"#,
    );
    examine(&setup, &[]).await.assert_warns("client.credentials", "has a token for registry.terraform.io");
}

/// The registry is mirrored, and no file of the client mentions it.
#[tokio::test]
async fn a_registry_without_a_block_is_a_warning() {
    let (upstream, mut setup, larder) = site_with_larder().await;
    upstream.publish(Provider::new("acme", "null"));
    configure_client(&setup);
    drop(larder);
    let second_upstream = format!("[[upstream]]\nhost = \"registry.example\"\nurl = \"{}/\"\n", upstream.origin());
    setup.text.push_str(&second_upstream);
    let larder = setup.serve();
    let report = examine(&setup, &[]).await;
    report.assert_warns("client.override", "asks this registry directly");
    assert!(
        report.finding_of("upstream.list", "registry.example").contains("no provider of this upstream is stored"),
        "{report:#?}"
    );
    larder.get("/registry/registry.example/v1/providers/acme/null/versions").await.expect(200);
    let report = examine(&setup, &[]).await;
    assert!(report.finding_of("upstream.list", "registry.example").contains("acme/null has 1 version"), "{report:#?}");
}
