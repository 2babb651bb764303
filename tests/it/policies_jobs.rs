//! Policies in jobs, plans, commands and transfers: whatever brings a package in, gives it away or speaks of it.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::bundle_transfer::{BundleKey, applied_receipt, bundle_of, outcomes, refusal, warm_up};
use crate::support::command_setup::CommandSetup;
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::provider_trees;
use crate::support::reports::name;
use crate::support::run_setup::RunSetup;
use crate::support::sealed::upstream_with_four_versions;
use crate::support::upstream::{FakeUpstream, Module, Provider, Target};
use crate::support::warm_fixture::{WarmFixture, items};

const POLICY: &str =
    "[[policy]]\nmatch = \"acme/null\"\nversions = \"= 1.3.0\"\naction = \"deny\"\nreason = \"1.3.0 loses state\"\n";
const CAUSE: &str = "the policy for acme/null denies it: 1.3.0 loses state";
/// The same with the versions, where there is room for them.
const RULE: &str = "the policy for acme/null denies the versions = 1.3.0: 1.3.0 loses state";

/// The items of a plan as `WHAT STATE WHY`.
fn planned(plan: &Value) -> Vec<String> {
    let items = plan["items"].as_array().unwrap().iter();
    let line = |item: &Value| {
        format!("{} {} {}", name(item), item["state"].as_str().unwrap(), item["why"].as_str().unwrap_or_default())
    };
    items.map(|item| line(item).replace(&format!("{HOST}/"), "")).collect()
}

fn configuration(constraint: &str) -> Value {
    let text = format!(
        "terraform {{\n  required_providers {{\n    null = {{ source = \"{HOST}/acme/null\", version = \"{constraint}\" }}\n  }}\n}}\n"
    );
    json!({ "files": { "main.tf": text }, "platforms": ["linux_amd64"] })
}

/// A constraint resolves to the newest permitted version. What names the denied version is told of the rule.
#[tokio::test]
async fn warm_ups_and_plans_choose_the_newest_permitted_version_and_name_the_rule_otherwise() {
    let upstream = upstream_with_four_versions().await;
    let larder = Larder::mirroring(&upstream).config_lines(POLICY).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    for what in ["acme/null", "acme/null@~> 1.2"] {
        let job = fixture.warm(&json!({ "what": [what], "platforms": ["linux_amd64"] })).await;
        assert_eq!((job.state.as_str(), items(&job)[0].contains("1.2.0")), ("done", true), "{:?}", items(&job));
    }
    let plan = fixture.post("/admin/v1/plan", &configuration(">= 1.0.0")).await.expect(200).json();
    assert_eq!(planned(&plan), ["acme/null@1.2.0 have "]);
    upstream.forget_requests();
    let lock = format!("provider \"{HOST}/acme/null\" {{\n  version = \"1.3.0\"\n}}\n");
    let mut locked = configuration(">= 1.0.0");
    locked["files"][".terraform.lock.hcl"] = json!(lock);
    let by_lock_file = json!({ "lock_files": [{ "name": "lock", "text": lock }], "platforms": ["linux_amd64"] });
    for order in [
        json!({ "what": ["acme/null@1.3.0"], "platforms": ["linux_amd64"] }),
        json!({ "what": ["acme/null@~> 1.3"], "platforms": ["linux_amd64"] }),
        configuration("1.3.0"),
        configuration(">= 1.3.0"),
        by_lock_file,
        locked,
    ] {
        let plan = fixture.post("/admin/v1/plan", &order).await.expect(200).json();
        let lines = planned(&plan);
        assert!(lines.len() == 1 && lines[0].contains(" cannot ") && lines[0].contains(CAUSE), "{order}: {lines:?}");
        assert_eq!((plan["ready"].as_bool(), plan["sums"]["cannot"].as_u64()), (Some(false), Some(1)));
        let job = fixture.warm(&order).await;
        let text =
            serde_json::to_string(&job.items.iter().map(|item| format!("{item:?}")).collect::<Vec<_>>()).unwrap();
        assert!(job.state != "done" && text.contains(CAUSE), "{order}: {} {text}", job.state);
    }
    assert_eq!(upstream.count_of(Target::Archive), 0);
}

/// Offline the rule is told too, and a permitted version that is missing is said to be missing.
#[tokio::test]
async fn an_offline_plan_tells_a_rule_from_a_missing_package() {
    let upstream = upstream_with_four_versions().await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("null").await.expect(200);
    larder.get(&larder.archive_path("null", "1.3.0").await).await.expect(200);
    let folder = larder.stop().await;
    let offline =
        Larder::mirroring(&upstream).config_lines(POLICY).network("offline = true").store_at(&folder).start().await;
    let fixture = WarmFixture::for_larder(&offline);
    let plan = fixture.post("/admin/v1/plan", &configuration("1.3.0")).await.expect(200).json();
    assert!(planned(&plan)[0].contains(CAUSE), "{:?}", planned(&plan));
    let plan = fixture.post("/admin/v1/plan", &configuration(">= 1.0.0")).await.expect(200).json();
    assert_eq!(plan["items"][0]["state"], "need", "{plan:#}");
    assert_eq!(plan["items"][0]["version"], "1.2.0", "{plan:#}");
}

/// A module that a rule denies is neither warmed nor read for the modules that it calls.
#[tokio::test]
async fn a_denied_module_is_not_warmed_and_not_read() {
    let fixture = ModuleFixture::with_one_module().await;
    let url = fixture.file("two.tar.gz", &tar_gz(&[("main.tf", b"# two\n")]));
    fixture.registry.publish_module(Module::new("acme", "one", "test").version("2.0.0").at(&url));
    let rule = "[[policy]]\nmatch = \"acme/one/test\"\nversions = \"< 2.0\"\nreason = \"2.x is not reviewed\"\n";
    let larder = fixture.larder().config_lines(rule).start().await;
    let warm = WarmFixture::for_larder(&larder);
    let job = warm.warm(&json!({ "what": ["acme/one/test"] })).await;
    assert!(format!("{:?}", job.items).contains("1.0.0"), "{:?}", job.items);
    let call = "module \"one\" {\n  source = \"acme/one/test\"\n  version = \"2.0.0\"\n}\n";
    for order in [json!({ "what": ["acme/one/test@2.0.0"] }), json!({ "files": { "main.tf": call } })] {
        let plan = warm.post("/admin/v1/plan", &order).await.expect(200).json();
        assert!(
            planned(&plan)[0].contains("the policy for acme/one/test does not allow it: 2.x is not reviewed"),
            "{:?}",
            planned(&plan)
        );
        let job = warm.warm(&order).await;
        assert!(format!("{:?}", job.items).contains("2.x is not reviewed"), "{:?}", job.items);
    }
    assert_eq!(larder.folder.blobs().len(), 1);
}

/// A recurring warm-up fetches the newest permitted version.
#[tokio::test]
async fn a_recurring_warm_up_obeys_the_policies() {
    let upstream = upstream_with_four_versions().await;
    let warm = "[[warm]]\nwhat = [\"acme/null\"]\nplatforms = [\"linux_amd64\"]\n";
    let larder = Larder::mirroring(&upstream).config_lines(&format!("{POLICY}{warm}")).start().await;
    let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    let is_stored =
        async || larder.folder.blobs().iter().any(|blob| std::fs::read(blob).is_ok_and(|bytes| bytes == zip));
    crate::support::until("the recurring warm-up stores 1.2.0", is_stored).await;
    assert_eq!(larder.folder.blobs().len(), 1);
}

/// `refresh` does not ask upstream about a denied version that is stored, and says why where that is named.
#[tokio::test]
async fn a_refresh_of_a_denied_version_names_the_rule() {
    let upstream = upstream_with_four_versions().await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.document("null", "1.3.0").await.expect(200);
    larder.document("null", "1.2.0").await.expect(200);
    larder.reload(Larder::mirroring(&upstream).config_lines(POLICY)).await.unwrap();
    upstream.forget_requests();
    let refresh = async |what: &str| {
        let body = json!({ "what": [what] }).to_string();
        let request = crate::support::http::client().post(format!("{}/admin/v1/refresh", larder.admin()));
        let request = request.bearer_auth(larder.token()).header("content-type", "application/json").body(body);
        crate::support::http::send(request).await.unwrap().json()
    };
    let whole = refresh("acme/null").await;
    assert!(whole["ok"] == true && !whole.to_string().contains("1.3.0"), "{whole:#}");
    let named = refresh("acme/null@1.3.0").await;
    assert!(named["ok"] == false && named.to_string().contains(CAUSE), "{named:#}");
    let documents = upstream.requests().into_iter().filter(|request| request.path.contains("/1.3.0/")).count();
    assert_eq!(documents, 0, "{:?}", upstream.requests());
}

/// A bundle holds nothing that the giving side denies, and the taking side refuses what it denies itself.
#[tokio::test]
async fn bundles_are_given_and_taken_under_the_policies() {
    let (upstream, key) = (upstream_with_four_versions().await, BundleKey::new());
    let exporter = key.with_signing_key(Larder::mirroring(&upstream)).start().await;
    let job = warm_up(&exporter, &["acme/null@1.3.0", "acme/null@1.2.0"], &["linux_amd64"]).await;
    let whole = bundle_of(&exporter, &job, None).await;
    exporter.reload(key.with_signing_key(Larder::mirroring(&upstream)).config_lines(POLICY)).await.unwrap();
    let request = crate::support::http::client().post(format!("{}/admin/v1/bundle", exporter.admin()));
    let order = json!({ "job": job, "created": 1_795_293_761 }).to_string();
    let request = request.bearer_auth(exporter.token()).header("content-type", "application/json").body(order);
    let refused = crate::support::http::send(request).await.unwrap();
    assert!(refused.status != 200 && refused.text().contains(CAUSE), "{} {}", refused.status, refused.text());

    let importer = key.sealed().config_lines(POLICY).start().await;
    let receipt = applied_receipt(&importer, whole).await;
    let (package, why) = refusal(&receipt);
    assert!(package.contains("1.3.0") && why.contains(CAUSE), "{package} {why}");
    assert_eq!(outcomes(&receipt).iter().filter(|(_, outcome)| outcome == "applied").count(), 3, "{receipt:?}");
    importer.document("null", "1.2.0").await.expect(200);
    importer.document("null", "1.3.0").await.expect(421);
    assert_eq!(importer.folder.blobs().len(), 1);
}

/// A tree for other tools holds nothing that is denied, and an import refuses it.
#[tokio::test]
async fn trees_are_exported_and_imported_under_the_policies() {
    let upstream = provider_trees::upstream().await;
    let (mut setup, tree) = provider_trees::exporter_and_tree(&upstream);
    let warmed = setup.run(&["warm", "acme/null@1.2.0", "acme/null@1.3.0", "--platform", "linux_amd64"]).await;
    assert_eq!(warmed.code, Some(0), "{warmed:?}");
    let export = [
        "export",
        tree.to_str().unwrap(),
        "--for=acme/null@1.2.0",
        "--for=acme/null@1.3.0",
        "--platform",
        "linux_amd64",
    ];
    let exported = setup.run(&export).await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    setup.text.push_str(POLICY);
    let again = ["export", "again", "--for=acme/null@1.2.0", "--for=acme/null@1.3.0", "--platform", "linux_amd64"];
    let refused = setup.run(&again).await;
    assert!(refused.code != Some(0) && refused.out.contains(CAUSE), "{refused:?}");

    let mut sealed = crate::support::tree_imports::sealed(&upstream);
    sealed.text.push_str(POLICY);
    let imported = sealed.run(&["import", tree.to_str().unwrap(), "--unsigned"]).await;
    assert!(imported.code != Some(0) && format!("{}{}", imported.out, imported.err).contains(CAUSE), "{imported:?}");
    let blobs = files_below(&sealed.home.path().join("v1/blobs"));
    assert_eq!(blobs, 1, "{imported:?}");
}

fn files_below(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files_below(&path) } else { 1 }).sum()
}

/// `explain` says what a client gets, and names the rule: of a version, of a URL and of an address that is denied.
#[tokio::test]
async fn explain_names_the_rule() {
    let upstream = upstream_with_four_versions().await;
    upstream.publish(Provider::new("acme", "evil"));
    let mut setup = CommandSetup::new(&upstream);
    setup.text.push_str(&format!("{POLICY}[[policy]]\nmatch = \"acme/evil\"\naction = \"deny\"\n"));
    let _running = setup.serve();
    setup.run(&["warm", "acme/null", "--platform", "linux_amd64"]).await;
    for (subject, cause) in [
        ("acme/null@1.3.0", CAUSE),
        ("acme/evil", "the policy for acme/evil denies every version"),
        ("/registry/registry.terraform.io/v1/providers/acme/null/1.3.0/download/linux/amd64", CAUSE),
    ] {
        let explained = setup.run(&["explain", subject]).await;
        assert!(explained.out.contains(cause), "{subject}: {explained:?}");
        let report: Value = serde_json::from_str(&setup.run(&["explain", subject, "--json"]).await.out).unwrap();
        assert_eq!(report["verdict"], "refused", "{report:#}");
        let steps = report["steps"].as_array().unwrap();
        assert!(steps.iter().any(|step| step["rule"] == "policy"), "{report:#}");
    }
    let chosen: Value = serde_json::from_str(&setup.run(&["explain", "acme/null", "--json"]).await.out).unwrap();
    assert_eq!((chosen["version"].as_str(), chosen["verdict"].as_str()), (Some("1.2.0"), Some("served")), "{chosen:#}");
}

/// `larder run` without a running larder starts one under the same rules.
#[tokio::test]
async fn run_starts_a_larder_under_the_policies() {
    let upstream: FakeUpstream = upstream_with_four_versions().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let config = setup.read("home/config/larder/mirror.toml");
    setup.write("home/config/larder/mirror.toml", &format!("{config}{POLICY}"));
    setup.require(&[&format!("{HOST}/acme/null")]);
    setup.init(&[]).await;
    let lock = setup.read("work/.terraform.lock.hcl");
    assert!(lock.contains("version = \"1.2.0\""), "{lock}");
}

/// `larder policy test` judges every version, by the running larder and without one, and the exit code tells a script.
#[tokio::test]
async fn policy_test_shows_the_verdict_of_every_version() {
    let upstream = upstream_with_four_versions().await;
    upstream.publish(Provider::new("acme", "evil"));
    let mut setup = CommandSetup::new(&upstream);
    setup.text.push_str(&format!("{POLICY}[[policy]]\nmatch = \"acme/evil\"\naction = \"deny\"\n"));
    let running = setup.serve();
    let whole = setup.run(&["policy", "test", "acme/null"]).await;
    let expected = format!(
        "acme/null: 3 of 4 versions may be used (2 rules in the configuration)\n  1.3.0  denied   {RULE}\n  1.2.0  allowed\n  1.1.0  allowed\n  1.0.0  allowed\n"
    );
    assert_eq!((whole.code, whole.out.as_str()), (Some(0), expected.as_str()));
    drop(running);
    upstream.forget_requests();
    for (what, code, text) in [
        ("acme/null@1.2.0", 0, "this version may be used"),
        ("acme/null@1.3.0", 3, "this version may NOT be used"),
        ("acme/null@~> 1.3", 3, RULE),
        ("acme/null@9.9.9", 0, "upstream does not list it"),
        ("acme/evil", 3, "NONE of its versions may be used: the policy for acme/evil denies every version"),
        ("acme/evil@1.0.0", 3, "NONE of its versions may be used"),
    ] {
        let output = setup.run(&["policy", "test", what]).await;
        assert!(output.code == Some(code) && output.out.contains(text), "{what}: {output:?}");
    }
    assert_eq!(
        upstream.count_of(Target::Versions),
        0,
        "the stored list is fresh, and a denied provider is not asked for"
    );
    let report: Value = serde_json::from_str(&setup.run(&["policy", "test", "acme/null", "--json"]).await.out).unwrap();
    assert_eq!(
        (&report["versions"][0]["verdict"], &report["versions"][1]["verdict"]),
        (&json!("denied"), &json!("allowed"))
    );
    let nonsense = setup.run(&["policy", "test", "acme"]).await;
    assert_eq!(nonsense.code, Some(1), "{nonsense:?}");
}

/// `plan --policy FILE` tells what a policy would break before it is in force, and a laxer one what it would free.
#[tokio::test]
async fn a_plan_tries_the_policies_of_a_file() {
    let upstream = upstream_with_four_versions().await;
    let mut setup = CommandSetup::new(&upstream);
    setup.text.push_str("[[policy]]\nmatch = \"acme/null\"\nversions = \"< 1.2\"\n");
    let work = setup.home.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let text =
        "terraform {\n  required_providers {\n    null = { source = \"acme/null\", version = \">= 1.0.0\" }\n  }\n}\n";
    std::fs::write(work.join("main.tf"), text).unwrap();
    let (strict, lax) = (setup.home.path().join("strict.toml"), setup.home.path().join("lax.toml"));
    // The file of another machine: what it says besides policies is not read for problems.
    std::fs::write(&strict, "[[upstream]]\nhost = \"registry.corp.example\"\ntoken = { env = \"NOT_HERE\" }\n[[policy]]\nmatch = \"acme/*\"\naction = \"deny\"\nreason = \"frozen\"\n").unwrap();
    std::fs::write(&lax, POLICY).unwrap();
    let _running = setup.serve();
    let folder = work.to_str().unwrap();
    let plan = async |file: Option<&std::path::Path>| {
        let option = file.map(|file| ["--policy".to_owned(), file.display().to_string()]).into_iter().flatten();
        let option: Vec<String> = option.collect();
        let option: Vec<&str> = option.iter().map(String::as_str).collect();
        setup.run(&[&["plan", folder, "--platform", "linux_amd64"], &option[..]].concat()).await
    };
    let now = plan(None).await;
    assert!(now.out.contains("acme/null 1.1.0 (linux_amd64)"), "{now:?}");
    let broken = plan(Some(&strict)).await;
    assert!(broken.code == Some(3) && broken.out.contains("the policy for acme/* denies it: frozen"), "{broken:?}");
    let freed = plan(Some(&lax)).await;
    assert!(freed.out.contains("acme/null 1.2.0 (linux_amd64)"), "{freed:?}");
    // The larder itself goes on under its own rules.
    let again = plan(None).await;
    assert!(again.out.contains("acme/null 1.1.0 (linux_amd64)"), "{again:?}");
    for (text, reason) in [
        ("[server]\nopen = true\n", "has no [[policy]]"),
        ("[[policy]]\nmatch = \"acme\"\n", "is not a pattern of addresses"),
        ("[[policy]\n", "this is not TOML"),
    ] {
        std::fs::write(&strict, text).unwrap();
        let refused = plan(Some(&strict)).await;
        assert!(refused.code == Some(1) && refused.err.contains(reason), "{refused:?}");
    }
    let missing = plan(Some(std::path::Path::new("/nowhere/policy.toml"))).await;
    assert!(missing.code == Some(1) && missing.err.contains("cannot be read"), "{missing:?}");
}

/// `verify` and `accept` fetch nothing that a rule denies.
#[tokio::test]
async fn verify_and_accept_do_not_fetch_what_is_denied() {
    let fixture = ModuleFixture::with_one_module().await;
    let folder = crate::support::larder::Folder::new();
    let larder = fixture.larder_on(&folder).start().await;
    larder.get(&format!("/registry/{HOST}/v1/modules/acme/one/test/1.0.0/download")).await.expect(204);
    let rule = "[[policy]]\nmatch = \"acme/one/test\"\naction = \"deny\"\nreason = \"frozen\"\n";
    larder.reload(fixture.larder_on(&folder).config_lines(rule)).await.unwrap();
    let blob = larder.folder.blobs().remove(0);
    let bytes = std::fs::read(&blob).unwrap();
    std::fs::write(&blob, vec![7; bytes.len()]).unwrap();
    fixture.registry.forget_requests();
    fixture.archives.forget_requests();
    let request = crate::support::http::client().post(format!("{}/admin/v1/verify", larder.admin()));
    let request = request.bearer_auth(larder.token()).header("content-type", "application/json").body("{}");
    let verified = crate::support::http::send(request).await.unwrap().expect(200).text();
    assert!(verified.contains("\"refused\"") && verified.contains("frozen"), "{verified}");
    let accepted = larder.send_command("accept", json!({ "what": ["acme/one/test@1.0.0"] })).await;
    assert!(format!("{accepted:?}").contains("frozen"), "{accepted:?}");
    let asked = fixture.registry.count_of(Target::Everything) + fixture.archives.count_of(Target::Everything);
    assert_eq!(asked, 0, "{:?}", fixture.registry.requests());
    assert!(larder.folder.blobs().is_empty());
}

/// An offline plan does not promise that a bundle brings what a rule denies.
#[tokio::test]
async fn an_offline_plan_of_a_denied_provider_names_the_rule() {
    let upstream = upstream_with_four_versions().await;
    let rule = "[[policy]]\nmatch = \"acme/null\"\naction = \"deny\"\nreason = \"frozen\"\n";
    let offline = Larder::mirroring(&upstream).config_lines(rule).network("offline = true").start().await;
    let fixture = WarmFixture::for_larder(&offline);
    for order in [json!({ "what": ["acme/null"], "platforms": ["linux_amd64"] }), configuration(">= 1.0.0")] {
        let plan = fixture.post("/admin/v1/plan", &order).await.expect(200).json();
        let line = planned(&plan).remove(0);
        assert!(line.contains(" cannot ") && line.contains("the policy for acme/null denies it: frozen"), "{line}");
    }
}

/// A plan that tries a laxer policy fetches no module that the rules of this larder deny.
#[tokio::test]
async fn a_laxer_trial_stores_nothing_that_is_denied() {
    let fixture = ModuleFixture::with_one_module().await;
    let rule = "[[policy]]\nmatch = \"acme/one/test\"\naction = \"deny\"\n";
    let larder = fixture.larder().config_lines(rule).start().await;
    let call = "module \"one\" {\n  source = \"acme/one/test\"\n  version = \"1.0.0\"\n}\n";
    let order = json!({ "files": { "main.tf": call }, "policy": [{ "match": "other/*", "action": "deny" }] });
    let plan = WarmFixture::for_larder(&larder).post("/admin/v1/plan", &order).await.expect(200).json();
    assert!(planned(&plan)[0].contains("the policy for acme/one/test denies every version"), "{plan:#}");
    assert!(larder.folder.blobs().is_empty());
    let warm = WarmFixture::for_larder(&larder).post("/admin/v1/warm", &order).await.expect(400).text();
    assert!(warm.contains("only a plan tries others"), "{warm}");
}
