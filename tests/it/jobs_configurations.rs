//! Warming configurations: the job resolves their requirements and adds items as it finds them. A folder, a tar and
//! JSON are equivalent requests.

use serde_json::json;

use crate::support::command_setup::CommandSetup;
use crate::support::larder::HOST;
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::reports::JobReport;
use crate::support::upstream::{Provider, Target};
use crate::support::warm_fixture::{WarmFixture, both_platforms};

const MAIN: &str = r#"
terraform {
  required_providers {
    null = { source = "acme/null", version = "~> 1.0" }
  }
}
module "net" {
  source  = "acme/net/test"
  version = "1.0.0"
}
module "local" {
  source = "../shared"
}
"#;
const SHARED: &str = "terraform {\n  required_providers {\n    other = { source = \"acme/other\" }\n  }\n}\n";
const NET_MODULE: &str = "module \"deep\" {\n  source = \"acme/deep/test\"\n}\nterraform {\n  required_providers {\n    third = { source = \"acme/third\" }\n  }\n}\n";

/// Three providers, and two modules of which one calls the other.
async fn registry_with_packages() -> ModuleFixture {
    let fixture = ModuleFixture::start().await;
    for name in ["null", "other", "third"] {
        fixture.registry.publish(both_platforms(Provider::new("acme", name)));
    }
    fixture.publish_archive("net", &tar_gz(&[("main.tf", NET_MODULE.as_bytes())]));
    fixture.publish_archive("deep", &tar_gz(&[("main.tf", b"# nothing\n")]));
    fixture
}

fn files() -> [(&'static str, &'static str); 2] {
    [("prod/main.tf", MAIN), ("shared/main.tf", SHARED)]
}

/// Each item as `NAME@VERSION STATE`, sorted.
fn sorted_items(job: &JobReport) -> Vec<String> {
    let short = |name: String| name.strip_prefix(&format!("{HOST}/")).map_or(name.clone(), str::to_owned);
    let mut items: Vec<String> =
        job.items.iter().map(|item| format!("{} {}", short(item.name()), item.state)).collect();
    items.sort();
    items
}

/// All five required packages in this state, as `sorted_items` returns them.
fn all_packages(state: &str) -> Vec<String> {
    let names =
        ["acme/deep/test@1.0.0", "acme/net/test@1.0.0", "acme/null@1.2.0", "acme/other@1.2.0", "acme/third@1.2.0"];
    names.iter().map(|name| format!("{name} {state}")).collect()
}

/// A plan reports the state at its end: modules that it read to find further requirements are stored by then.
#[tokio::test]
async fn the_modules_that_a_plan_reads_are_stored_when_it_ends() {
    let mut fixture = registry_with_packages().await;
    fixture.publish_archive("calls", &tar_gz(&[("main.tf", b"module \"deep\" {\n  source = \"acme/deep/test\"\n}\n")]));
    let larder = fixture.larder().start().await;
    let warm_fixture = WarmFixture::for_larder(&larder);
    let request = json!({ "files": { "main.tf": "module \"calls\" {\n  source = \"acme/calls/test\"\n}\n" } });
    let first = warm_fixture.post("/admin/v1/plan", &request).await.expect(200).json();
    assert_eq!((&first["ready"], &first["sums"]["have"]), (&json!(true), &json!(2)), "{first}");
    fixture.registry.stop().await;
    let second = warm_fixture.post("/admin/v1/plan", &request).await.expect(200).json();
    assert_eq!((&second["items"], &second["ready"]), (&first["items"], &json!(true)), "{second}");
}

#[tokio::test]
async fn the_requirements_of_a_configuration_are_warmed_and_served_without_upstream() {
    let mut fixture = registry_with_packages().await;
    let larder = fixture.larder().start().await;
    let warm_fixture = WarmFixture::for_larder(&larder);
    let gate = fixture.archives.hold_body(Target::Path("deep".to_owned()));
    let request = json!({
        "files": files().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "roots": ["prod"], "platforms": ["linux_amd64"],
    });
    let path = warm_fixture.start_job(&request).await;
    // The two modules are items before the job knows their requirements.
    let is_resolving = |job: &JobReport| job.resolving && job.items.len() == 2;
    let job = warm_fixture.wait_for_job(&path, is_resolving).await;
    assert_eq!(job.what, ["./prod"], "{job}");
    gate.open();
    let job = warm_fixture.finished_job(&path).await;
    assert_eq!((sorted_items(&job), &*job.state), (all_packages("fetched"), "done"), "{job}");
    assert!(!job.resolving);

    fixture.registry.stop().await;
    fixture.archives.stop().await;
    let again = warm_fixture.warm(&request).await;
    assert_eq!(sorted_items(&again), all_packages("held"));
}

/// A tar can be sent with `curl`.
#[tokio::test]
async fn a_tar_of_configurations_is_an_equivalent_request() {
    let fixture = registry_with_packages().await;
    let larder = fixture.larder().start().await;
    let warm_fixture = WarmFixture::for_larder(&larder);
    let mut tar = tar::Builder::new(Vec::new());
    for (path, text) in files() {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append_data(&mut header, format!("./{path}"), text.as_bytes()).unwrap();
    }
    let tar = tar.into_inner().unwrap();
    let send = async |query: &str| {
        warm_fixture.send("POST", &format!("/admin/v1/warm?{query}"), "application/x-tar", tar.clone()).await
    };
    let response = send("root=prod&platform=linux_amd64&client=terraform&pin").await.expect(202);
    let job = warm_fixture.finished_job(response.header("location")).await;
    assert_eq!((sorted_items(&job), job.pin), (all_packages("fetched"), true), "{job}");
    let done = warm_fixture
        .post("/admin/v1/pin", &json!({ "what": ["acme/net/test", "acme/third"] }))
        .await
        .expect(200)
        .json();
    assert!(done["items"].as_array().unwrap().iter().all(|item| item["outcome"] == "as_before"), "{done}");
    for (query, reason) in
        [("root=stage", "stage"), ("client=pulumi", "terraform or opentofu"), ("folder=x", "root, client and pin")]
    {
        let output = send(query).await.expect(400).text();
        assert!(output.contains(reason), "{output}");
    }
}

/// An unavailable requirement is reported with its location and reason; the other requirements are fetched.
#[tokio::test]
async fn an_unavailable_requirement_is_a_failed_item_with_its_file_and_line() {
    let fixture = registry_with_packages().await;
    fixture.archives.serve_file("/files/net.tar.gz", "application/octet-stream", b"no archive".to_vec());
    let larder = fixture.larder().start().await;
    let warm_fixture = WarmFixture::for_larder(&larder);
    let text = format!("{MAIN}module \"elsewhere\" {{\n  source = \"git::https://git.example/x.git\"\n}}\n");
    let request = json!({
        "what": ["acme/null@1.2.0"], "files": { "prod/main.tf": text, "shared/main.tf": SHARED }, "roots": ["prod"],
        "platforms": ["linux_amd64"],
    });
    let job = warm_fixture.warm(&request).await;
    assert_eq!(job.state, "failed", "{job}");
    let items = &job.items;
    let item_index = |part: &str| {
        let index = items.iter().position(|item| item.name().contains(part));
        index.unwrap_or_else(|| panic!("{part}: {job}"))
    };
    assert!(job.error(item_index("git.example")).contains("prod/main.tf"), "{job}");
    assert!(job.error(item_index("acme/net/test")).contains("prod/main.tf"), "{job}");
    let failed = items.iter().filter(|item| item.state == "failed").count();
    assert_eq!(failed, 2, "an unavailable item is reported twice: {job}");
    for name in ["acme/null@1.2.0", "acme/other@1.2.0"] {
        assert_ne!(items[item_index(name)].state, "failed", "{job}");
    }
}

/// The configuration is part of the job's record.
#[tokio::test]
async fn a_job_of_a_configuration_continues_after_a_restart() {
    let fixture = registry_with_packages().await;
    let larder = fixture.larder().start().await;
    let warm_fixture = WarmFixture::for_larder(&larder);
    let gate = fixture.registry.hold_body(Target::Archive.with_path_part("third"));
    let files: std::collections::BTreeMap<_, _> = files().into_iter().collect();
    let path =
        warm_fixture.start_job(&json!({ "files": files, "roots": ["prod"], "platforms": ["linux_amd64"] })).await;
    fixture.registry.wait_for(Target::Archive.with_path_part("third"), 1).await;
    let folder = larder.stop().await;
    gate.open();
    let archives = fixture.archives.requests().len();
    // The CA file is in the store's folder, so `larder_on` finds it again.
    let larder = fixture.larder_on(&folder).start().await;
    let job = WarmFixture::for_larder(&larder).finished_job(&path).await;
    assert_eq!((sorted_items(&job).len(), &*job.state), (5, "done"), "{job}");
    assert_eq!(fixture.archives.requests().len(), archives, "a module was fetched twice");
}

/// A folder that calls a local module beside it, and a tar of both.
#[tokio::test]
async fn the_command_warms_a_folder_and_a_tar() {
    let fixture = registry_with_packages().await;
    let mut setup = CommandSetup::new(&fixture.registry);
    let ca_file = setup.home.path().join("ca.pem");
    std::fs::write(&ca_file, fixture.ca.pem()).unwrap();
    setup.text = format!("{}[network]\nallow_private = [\"127.0.0.1\"]\nca_file = {ca_file:?}\n", setup.text);
    for (path, text) in files() {
        let path = setup.home.path().join("estate").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let estate = setup.home.path().join("estate");
    let tar = setup.home.path().join("estate.tar");
    let mut builder = tar::Builder::new(std::fs::File::create(&tar).unwrap());
    builder.append_dir_all(".", &estate).unwrap();
    builder.finish().unwrap();
    for (configuration, outcome) in [(estate.join("prod"), "fetched"), (tar, "stored")] {
        let output = setup.run(&["warm", configuration.to_str().unwrap(), "--platform", "linux_amd64"]).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        for name in ["acme/deep/test 1.0.0\n", "acme/third 1.2.0 (linux_amd64)"] {
            let name = name.trim_end();
            assert!(output.out.contains(&format!("{outcome:9} {name}")), "{output:?}");
        }
        assert!(output.out.contains("5 archives: 5 "), "{output:?}");
    }
}
