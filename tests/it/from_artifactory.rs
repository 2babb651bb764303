//! The trip of docs/from-artifactory.md with the real client: the blocks of the page, word for word but for their addresses.

use crate::support::command_setup::CommandSetup;
use crate::support::markdown::blocks;
use crate::support::module_fixture::tar_gz;
use crate::support::terraform::Terraform;
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Module, Provider};

const TOKEN: &str = "a-token-of-the-other-system";

/// A network mirror and a registry of private packages, both with a token, in one host.
async fn other_system(ca: &TestCa, public: &FakeUpstream) -> FakeUpstream {
    let system = FakeUpstream::builder().tls_with(ca).token(TOKEN).start().await;
    let remote = "/artifactory/api/terraform/terraform-remote/providers/registry.terraform.io/acme/null";
    system.serve_json(&format!("{remote}/index.json"), r#"{"versions":{"1.2.0":{}}}"#);
    system.serve_json(&format!("{remote}/1.2.0.json"), r#"{"archives":{"linux_amd64":{"url":"null.zip"}}}"#);
    let archive = public.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    system.serve_file(&format!("{remote}/null.zip"), "application/zip", archive);
    system.publish(Provider::new("corp", "internal").platform("linux_amd64"));
    let module = tar_gz(&[("main.tf", b"variable \"name\" { default = \"x\" }\n")]);
    system.serve_file("/modules/vpc.tar.gz", "application/gzip", module);
    let location = format!("{}/modules/vpc.tar.gz", system.origin());
    system.publish_module(Module::new("corp", "vpc", "aws").version("1.0.0").at(&location));
    system
}

#[tokio::test]
async fn clients_of_another_mirror_move_to_larder_by_the_lines_of_the_page() {
    let Some(client) = Terraform::find() else { return };
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/from-artifactory.md")).unwrap();
    let block = |language: &str, number: usize| {
        let blocks = blocks(&page).into_iter().filter(|block| block.language == language);
        blocks.map(|block| block.text).nth(number).unwrap()
    };
    let ca = TestCa::new();
    let public = FakeUpstream::start().await;
    public.publish(Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64"));
    let system = other_system(&ca, &public).await;
    let host = format!("127.0.0.1:{}", system.port());

    let before = block("hcl", 0).replace("artifactory.corp.example", &host).replace('…', TOKEN);
    let mut workspace = client.workspace();
    workspace.trust(&ca.pem()).require("acme/null", "1.2.0").require(&format!("{host}/corp/internal"), "1.2.0");
    workspace.file("vpc.tf", &format!("module \"vpc\" {{\n  source = \"{host}/corp/vpc/aws\"\n}}\n"));
    workspace.cli_config(&before).init().await.expect_success();
    assert!(system.count_where(|request| request.path.contains("terraform-remote")) > 2);
    let (h1_before, zh_count) = hashes_of(&workspace.lock_file(), "acme/null");
    assert_eq!((h1_before.len(), zh_count), (1, 0), "{}", workspace.lock_file());

    let mut setup = CommandSetup::new(&public);
    let ca_file = setup.home.path().join("ca.pem");
    std::fs::write(&ca_file, ca.pem()).unwrap();
    std::fs::write(setup.home.path().join("artifactory-token"), TOKEN).unwrap();
    let public_line = format!("host = \"registry.terraform.io\"\nurl = \"{}/\"", public.origin());
    let upstreams = block("toml", 0).replace("artifactory.corp.example", &host);
    let upstreams = upstreams.replace("host = \"registry.terraform.io\"", &public_line);
    let (own, _) = setup.text.split_once("[[upstream]]").unwrap();
    setup.text = format!("{own}[network]\nca_file = {ca_file:?}\n{upstreams}");
    let larder = setup.serve();

    let after = setup.stdout_of(&["client-config"]).await;
    let expected = block("hcl", 1).replace("http://larder.corp.example:8080", &setup.base());
    // larder prints every service of the registry, each name and URL with one space between.
    for line in expected.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")) {
        assert!(after.lines().any(|printed| printed.trim() == line), "{line} is not in {after}");
    }
    let seen = system.requests().len();
    workspace.remove_installed();
    workspace.cli_config(&after).init().await.expect_success();
    let asked = system.requests().split_off(seen);
    assert!(!asked.iter().any(|request| request.path.contains("terraform-remote")), "{asked:#?}");
    let (h1, _) = hashes_of(&workspace.lock_file(), "acme/null");
    assert!(h1.contains(&h1_before[0]), "{h1:?}: the hash of the old lock file stays");

    let lock = ["providers", "lock", "-platform=linux_amd64", "-platform=darwin_arm64", "acme/null"];
    workspace.run(&lock).await.expect_success();
    let (h1, zh_count) = hashes_of(&workspace.lock_file(), "acme/null");
    let sums = public.sums_bytes("acme", "null", "1.2.0").split(|byte| *byte == b'\n').count() - 1;
    assert_eq!((h1.len(), zh_count), (2, sums), "{}", workspace.lock_file());
    larder.terminate_promptly().await;
}

/// The `h1:` of a provider in a lock file, and the count of its `zh:`.
fn hashes_of(lock_file: &str, source: &str) -> (Vec<String>, usize) {
    let block = lock_file.split("provider \"").find(|block| block.contains(&format!("/{source}\""))).unwrap();
    let h1 = block.split('"').filter(|word| word.starts_with("h1:")).map(str::to_owned).collect();
    (h1, block.matches("\"zh:").count())
}
