//! Warming configurations: the job resolves their requirements and adds items as it finds them. A folder, a tar and
//! JSON are equivalent requests.

use serde_json::{Value, json};

use crate::support::larder::HOST;
use crate::support::reports;
use crate::support::shelf::{Shelf, tar_gz};
use crate::support::site::Site;
use crate::support::upstream::{Provider, Target};
use crate::support::warm_jobs::{Desk, both, error};

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
const NET: &str = "module \"deep\" {\n  source = \"acme/deep/test\"\n}\nterraform {\n  required_providers {\n    third = { source = \"acme/third\" }\n  }\n}\n";

/// Three providers, and two modules of which one calls the other.
async fn shelf() -> Shelf {
    let shelf = Shelf::start().await;
    for name in ["null", "other", "third"] {
        shelf.registry.publish(both(Provider::new("acme", name)));
    }
    shelf.put("net", &tar_gz(&[("main.tf", NET.as_bytes())]));
    shelf.put("deep", &tar_gz(&[("main.tf", b"# nothing\n")]));
    shelf
}

fn files() -> [(&'static str, &'static str); 2] {
    [("prod/main.tf", MAIN), ("shared/main.tf", SHARED)]
}

/// Each item as `NAME@VERSION STATE`, sorted.
fn sorted(job: &Value) -> Vec<String> {
    let word = |item: &Value, key: &str| item[key].as_str().unwrap().to_owned();
    let short = |what: String| what.strip_prefix(&format!("{HOST}/")).map_or(what.clone(), str::to_owned);
    let items = job["items"].as_array().unwrap().iter();
    let mut items: Vec<String> =
        items.map(|item| format!("{} {}", short(reports::name(item)), word(item, "state"))).collect();
    items.sort();
    items
}

fn all(state: &str) -> Vec<String> {
    let names =
        ["acme/deep/test@1.0.0", "acme/net/test@1.0.0", "acme/null@1.2.0", "acme/other@1.2.0", "acme/third@1.2.0"];
    names.iter().map(|name| format!("{name} {state}")).collect()
}

/// A plan reports the state at its end: modules that it read to find further requirements are stored by then.
#[tokio::test]
async fn the_modules_that_a_plan_had_to_read_are_stored_when_it_ends() {
    let mut shelf = shelf().await;
    shelf.put("calls", &tar_gz(&[("main.tf", b"module \"deep\" {\n  source = \"acme/deep/test\"\n}\n")]));
    let larder = shelf.larder().start().await;
    let desk = Desk::of(&larder);
    let order = json!({ "files": { "main.tf": "module \"calls\" {\n  source = \"acme/calls/test\"\n}\n" } });
    let first = desk.post("/admin/v1/plan", &order).await.expect(200).json();
    assert_eq!((&first["ready"], &first["sums"]["have"]), (&json!(true), &json!(2)), "{first}");
    shelf.registry.stop().await;
    let second = desk.post("/admin/v1/plan", &order).await.expect(200).json();
    assert_eq!((&second["items"], &second["ready"]), (&first["items"], &json!(true)), "{second}");
}

#[tokio::test]
async fn the_requirements_of_a_configuration_are_warmed_and_served_without_upstream() {
    let mut shelf = shelf().await;
    let larder = shelf.larder().start().await;
    let desk = Desk::of(&larder);
    let gate = shelf.archives.hold(Target::Path("deep".to_owned()));
    let order = json!({
        "files": files().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "roots": ["prod"], "platforms": ["linux_amd64"],
    });
    let path = desk.begin(&order).await;
    // The two modules are items before the job knows their requirements.
    let is_resolving = |job: &Value| job["resolving"] == true && job["items"].as_array().unwrap().len() == 2;
    let job = desk.once(&path, is_resolving).await;
    assert_eq!(job["what"], json!(["./prod"]), "{job}");
    gate.open();
    let job = desk.ended(&path).await;
    assert_eq!((sorted(&job), &job["state"]), (all("fetched"), &json!("done")), "{job}");
    assert_eq!(job["resolving"], Value::Null);

    shelf.registry.stop().await;
    shelf.archives.stop().await;
    let again = desk.warm(&order).await;
    assert_eq!(sorted(&again), all("held"));
}

/// Section 3: a tar can be sent with `curl`.
#[tokio::test]
async fn a_tar_of_configurations_is_the_same_order() {
    let shelf = shelf().await;
    let larder = shelf.larder().start().await;
    let desk = Desk::of(&larder);
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
        desk.send("POST", &format!("/admin/v1/warm?{query}"), "application/x-tar", tar.clone()).await
    };
    let taken = send("root=prod&platform=linux_amd64&client=terraform&pin").await.expect(202);
    let job = desk.ended(taken.header("location")).await;
    assert_eq!((sorted(&job), &job["pin"]), (all("fetched"), &json!(true)), "{job}");
    let done = desk.post("/admin/v1/pin", &json!({ "what": ["acme/net/test", "acme/third"] })).await.expect(200).json();
    assert!(done["items"].as_array().unwrap().iter().all(|item| item["outcome"] == "as_before"), "{done}");
    for (query, why) in
        [("root=stage", "stage"), ("client=tofu", "terraform or opentofu"), ("folder=x", "root, client and pin")]
    {
        let said = send(query).await.expect(400).text();
        assert!(said.contains(why), "{said}");
    }
}

/// An unavailable requirement has its location and reason, and stops nothing else.
#[tokio::test]
async fn an_unavailable_requirement_is_a_failed_item_with_its_file_and_line() {
    let shelf = shelf().await;
    shelf.archives.serve_file("/files/net.tar.gz", "application/octet-stream", b"no archive".to_vec());
    let larder = shelf.larder().start().await;
    let desk = Desk::of(&larder);
    let text = format!("{MAIN}module \"elsewhere\" {{\n  source = \"git::https://git.example/x.git\"\n}}\n");
    let order = json!({
        "what": ["acme/null@1.2.0"], "files": { "prod/main.tf": text, "shared/main.tf": SHARED }, "roots": ["prod"],
        "platforms": ["linux_amd64"],
    });
    let job = desk.warm(&order).await;
    assert_eq!(job["state"], "failed", "{job}");
    let items = job["items"].as_array().unwrap();
    let item = |part: &str| {
        let found = items.iter().position(|item| reports::name(item).contains(part));
        found.unwrap_or_else(|| panic!("{part}: {job}"))
    };
    assert!(error(&job, item("git.example")).contains("prod/main.tf"), "{job}");
    assert!(error(&job, item("acme/net/test")).contains("prod/main.tf"), "{job}");
    let failed = items.iter().filter(|item| item["state"] == "failed").count();
    assert_eq!(failed, 2, "one thing is told twice: {job}");
    for name in ["acme/null@1.2.0", "acme/other@1.2.0"] {
        assert_ne!(items[item(name)]["state"], "failed", "{job}");
    }
}

/// The configuration is part of the job's record.
#[tokio::test]
async fn a_job_of_a_configuration_continues_after_a_restart() {
    let shelf = shelf().await;
    let larder = shelf.larder().start().await;
    let desk = Desk::of(&larder);
    let gate = shelf.registry.hold(Target::Archive.of("third"));
    let files: std::collections::BTreeMap<_, _> = files().into_iter().collect();
    let path = desk.begin(&json!({ "files": files, "roots": ["prod"], "platforms": ["linux_amd64"] })).await;
    shelf.registry.wait_for(Target::Archive.of("third"), 1).await;
    let folder = larder.stop().await;
    gate.open();
    let archives = shelf.archives.requests().len();
    // The CA file is in the store's folder.
    let larder = shelf.larder_on(&folder).start().await;
    let job = Desk::of(&larder).ended(&path).await;
    assert_eq!((sorted(&job).len(), &job["state"]), (5, &json!("done")), "{job}");
    assert_eq!(shelf.archives.requests().len(), archives, "a module was fetched twice");
}

/// A folder that calls a local module beside it, and a tar of both.
#[tokio::test]
async fn the_command_warms_a_folder_and_a_tar() {
    let shelf = shelf().await;
    let mut site = Site::new(&shelf.registry);
    let authority = site.home.path().join("ca.pem");
    std::fs::write(&authority, shelf.ca.pem()).unwrap();
    site.text = format!("{}[network]\nallow_private = [\"127.0.0.1\"]\nca_file = {authority:?}\n", site.text);
    for (path, text) in files() {
        let path = site.home.path().join("estate").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let estate = site.home.path().join("estate");
    let tar = site.home.path().join("estate.tar");
    let mut builder = tar::Builder::new(std::fs::File::create(&tar).unwrap());
    builder.append_dir_all(".", &estate).unwrap();
    builder.finish().unwrap();
    for (what, word) in [(estate.join("prod"), "fetched"), (tar, "stored")] {
        let said = site.run(&["warm", what.to_str().unwrap(), "--platform", "linux_amd64"]).await;
        assert_eq!(said.code, Some(0), "{said:?}");
        for name in ["acme/deep/test 1.0.0\n", "acme/third 1.2.0 (linux_amd64)"] {
            let name = name.trim_end();
            assert!(said.out.contains(&format!("{word:9} {name}")), "{said:?}");
        }
        assert!(said.out.contains("5 archives: 5 "), "{said:?}");
    }
}
