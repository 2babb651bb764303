use std::path::Path;

use proptest::prelude::*;

use super::*;

const EXAMPLE: &str = r#"
# a comment
plugin_cache_dir = "$HOME/.cache/plugins"
host "Registry.Terraform.IO" {
  services = {
    "providers.v1" = "http://127.0.0.1:8080/registry/registry.terraform.io/v1/providers/"
    "modules.v1"   = "https://registry.terraform.io/v1/modules/",
    "login.v1"     = { client = "x", grant_types = ["authz_code"] }
  }
}
credentials "app.example" {
  token = "s3cret-s3cret"
}
provider_installation {
  network_mirror {
    url     = "https://mirror.example/mirror/"
    include = ["registry.terraform.io/*/*"]
  }
  direct {
    exclude = ["registry.terraform.io/*/*", "*/acme/*"]
  }
}
"#;

fn host(name: &str) -> Hostname {
    Hostname::parse(name).unwrap()
}

#[test]
fn hosts_credentials_and_installation_methods_are_read() {
    let config = CliConfig::read(EXAMPLE.as_bytes()).unwrap();
    let services = &config.hosts[&host("registry.terraform.io")];
    let names: Vec<&str> = services.keys().map(String::as_str).collect();
    assert_eq!(names, ["login.v1", "modules.v1", "providers.v1"]);
    assert_eq!(services["login.v1"], ServiceValue::Other);
    assert_eq!(services["modules.v1"], ServiceValue::Url("https://registry.terraform.io/v1/modules/".into()));
    assert_eq!(config.plugin_cache_dir.as_deref(), Some("$HOME/.cache/plugins"));
    assert_eq!(config.tokens.keys().collect::<Vec<_>>(), [&host("app.example")]);
    let methods = config.installation.as_deref().unwrap();
    assert_eq!(methods[0].source, InstallationSource::NetworkMirror { url: "https://mirror.example/mirror/".into() });
    let coverage = |method: &Method, name| method.coverage(&host(name), ClientKind::Terraform.default_host());
    assert_eq!(coverage(&methods[0], "registry.terraform.io"), Coverage::All);
    assert_eq!(coverage(&methods[0], "registry.opentofu.org"), Coverage::None);
    assert_eq!(coverage(&methods[1], "registry.terraform.io"), Coverage::None);
    assert_eq!(coverage(&methods[1], "registry.opentofu.org"), Coverage::Some);
    assert!(!format!("{config:?}").contains("s3cret"), "a token was stored");
}

/// JSON may write a block as an object or as a list of objects.
#[test]
fn json_is_read_like_hcl() {
    let hcl = CliConfig::read(
        br#"host "a.example" { services = { "providers.v1" = "http://x/" } }
            provider_installation {
              direct { include = ["a.example/*/*"] }
            }"#,
    );
    for json in [
        r#" {"host": {"a.example": {"services": {"providers.v1": "http://x/"}}},
             "provider_installation": {"direct": {"include": ["a.example/*/*"]}}}"#,
        r#"{"host": [{"a.example": [{"services": [{"providers.v1": "http://x/"}]}]}],
            "provider_installation": [{"direct": [{"include": ["a.example/*/*"]}]}]}"#,
    ] {
        assert_eq!(CliConfig::read(json.as_bytes()), hcl, "{json}");
    }
    assert!(hcl.is_ok());
}

/// HCL 1, which the clients read, lets `services` be a block.
#[test]
fn services_may_be_a_block() {
    let config = CliConfig::read(b"host \"a.example\" {\n services {\n  modules = \"m\"\n }\n}\n").unwrap();
    assert_eq!(config.hosts[&host("a.example")]["modules"], ServiceValue::Url("m".into()));
}

/// Observed with Terraform 1.11: it accepts the texts of the first list, and refuses those of the second.
#[test]
fn syntax_is_accepted_and_refused_as_by_the_clients() {
    let url = ServiceValue::Url("http://x/".into());
    for text in [
        "host \"a.example\" { services = { providers.v1 = \"http://x/\" } }",
        "host a.example { services { providers.v1 = \"http://x/\", modules.v1 = \"m\" } }",
        "host \"a.example\" { services = { \"b\" = 1 \"providers.v1\" = \"http://x/\" } } credentials \"b\" {}",
        "host \"a.example\" { // one\n services = { /* two */ providers.v1 = \"http://x/\" } } # three",
        "host \"a.example\" {\r\n services = {\r\n \"login.v1\" = { ports = [,1,, 2,] },\r\n providers.v1 = \"http://x/\"\r\n}\r\n}",
    ] {
        let config = CliConfig::read(text.as_bytes()).unwrap_or_else(|bad| panic!("{text}: {bad}"));
        assert_eq!(config.hosts[&host("a.example")]["providers.v1"], url, "{text}");
    }
    for (text, line, column) in [
        ("host \"a.example\" {\n services = { \"providers.v1\" : \"http://x/\" }\n}", 2, 30),
        ("host \"a.example\" {\n services = {\n", 3, 1),
        ("plugin_cache_dir = folder", 1, 20),
        ("plugin_cache_dir = \"a\nb\"", 1, 20),
        ("a b = \"x\"", 1, 5),
        ("a = [1 2]", 1, 8),
        ("a = -x", 1, 5),
        ("a = {} , , b = {}", 1, 10),
        (", a = 1", 1, 1),
        ("a = \"\\q\"", 1, 5),
        ("a = \"\\x+1\"", 1, 5),
        ("a = 1 /*/", 1, 7),
        ("}", 1, 1),
    ] {
        let bad = CliConfig::read(text.as_bytes()).unwrap_err();
        let has_position = matches!(&bad, BadHcl::Syntax { line: l, column: c, .. } if (*l, *c) == (line, column));
        assert!(has_position, "{text}: {bad}");
    }
    let heredoc = CliConfig::read(b"plugin_cache_dir = <<-END\n  /a\n  END\n").unwrap();
    assert_eq!(heredoc.plugin_cache_dir.as_deref(), Some("/a\n"));
}

/// A stack overflow, also while a value is dropped, would end the process.
#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let labels = format!("host {} {{}}", "a ".repeat(20_000));
    assert_eq!(CliConfig::read(labels.as_bytes()), Ok(CliConfig::default()));
    for opened in ["[", "{a=", "a{", "\"${", "a={", "<<"] {
        assert!(CliConfig::read(format!("a = {}", opened.repeat(20_000)).as_bytes()).is_err(), "{opened}");
        assert!(CliConfig::read(opened.repeat(20_000).as_bytes()).is_err(), "{opened}");
    }
}

#[test]
fn settings_that_clients_complain_about_are_reported_and_ignored() {
    let twice = "provider_installation {\n direct {}\n}\n".repeat(2);
    let config = CliConfig::read(twice.as_bytes()).unwrap();
    assert_eq!((config.installation.unwrap().len(), config.complaints.len()), (1, 1));
    let config = CliConfig::read(b"host \"a b\" {}\nprovider_installation {\n network_mirror {}\n}\n").unwrap();
    assert_eq!((config.installation.unwrap().len(), config.complaints.len()), (0, 2));
}

#[test]
fn merging_takes_hosts_from_the_later_file_and_the_installation_from_the_first() {
    let read = |text: &str| CliConfig::read(text.as_bytes()).unwrap();
    let first =
        read("host \"a.example\" {\n services = { \"a.v1\" = \"1\" }\n}\nprovider_installation {\n direct {}\n}\n");
    let later = read("host \"a.example\" {\n services = { \"b.v1\" = \"2\" }\n}\nprovider_installation {}\n");
    let merged = first.merge(later);
    assert_eq!(merged.hosts[&host("a.example")].keys().collect::<Vec<_>>(), ["b.v1"]);
    assert_eq!((merged.installation.unwrap().len(), merged.complaints.len()), (1, 1));
}

fn copy(text: &str) -> CliConfigCopy {
    CliConfigCopy::read(text.as_bytes()).unwrap()
}

/// The copy is for the client, so it has the secrets, the numbers and the unknown settings, too.
#[test]
fn a_copy_keeps_every_setting_of_hcl_and_json() {
    let text = copy(EXAMPLE).text();
    assert_eq!(CliConfig::read(text.as_bytes()), CliConfig::read(EXAMPLE.as_bytes()), "{text}");
    assert!(text.contains("\"token\" = \"s3cret-s3cret\""), "{text}");
    let future = copy("future \"a\" \"b\" {\n level = 0x1F\n on = true\n steps = [-1.5e3, \"x\", []]\n}\n").text();
    for line in ["level\" = 0x1F", "on\" = true", "steps\" = [-1.5e3, \"x\", []]"] {
        assert!(future.contains(line), "{line}: {future}");
    }
    let json = copy(
        "{\"credentials\":[{\"a.example\":{\"token\":\"t\"}},{\"b.example\":{\"token\":\"${u}\"}}],\"x\":null,\"n\":2}",
    )
    .text();
    let read = CliConfig::read(json.as_bytes()).unwrap();
    assert_eq!(read.tokens.keys().cloned().collect::<Vec<_>>(), [host("a.example"), host("b.example")]);
    assert_eq!(read.tokens[&host("a.example")], ClientToken::from("t"));
    assert!(json.contains("\\u0024{u}") && json.contains("\"n\" = 2") && !json.contains("\"x\""), "{json}");
    assert!(!format!("{:?}", copy(EXAMPLE)).contains("s3cret"), "a token was printed");
}

/// Order and number of the methods decide what the client installs.
#[test]
fn a_copy_keeps_the_order_of_installation_methods() {
    let methods = "provider_installation {\n dev_overrides {\n  \"a/b\" = \"/x\"\n }\n filesystem_mirror {\n  path = \"/1\"\n }\n \
        network_mirror {\n  url = \"https://m.example/\"\n }\n filesystem_mirror {\n  path = \"/2\"\n }\n direct {}\n}\n";
    let text = copy(methods).text();
    let methods = CliConfig::read(text.as_bytes()).unwrap().installation.unwrap();
    let names: Vec<&InstallationSource> = methods.iter().map(|method| &method.source).collect();
    let other = InstallationSource::Other("filesystem_mirror".to_owned());
    let mirror = InstallationSource::NetworkMirror { url: "https://m.example/".to_owned() };
    assert_eq!(names, [&other, &mirror, &other, &InstallationSource::Direct]);
    assert!(text.find("dev_overrides").unwrap() < text.find("filesystem_mirror").unwrap(), "{text}");
    let twice = copy("provider_installation {\n direct {}\n}\n");
    let mut merged = twice.clone();
    merged.merge(twice);
    assert_eq!(CliConfig::read(merged.text().as_bytes()).unwrap().complaints.len(), 1, "the client reports it");
}

#[test]
fn a_copy_merges_files_as_the_client_does() {
    let block = |host: &str, url: &str| format!("host \"{host}\" {{\n services = {{ \"a.v1\" = \"{url}\" }}\n}}\n");
    let mut merged = copy(&format!(
        "plugin_cache_dir = \"/first\"\ndisable_checkpoint = false\ncredentials \"c.example\" {{\n token = \"1\"\n}}\n{}{}",
        block("a.example", "1"),
        block("b.example", "1")
    ));
    merged.merge(copy(&format!(
        "plugin_cache_dir = \"/later\"\ndisable_checkpoint = true\ncredentials \"C.example\" {{\n token = \"2\"\n}}\n{}",
        block("A.example", "2")
    )));
    let read = |copy: &CliConfigCopy| CliConfig::read(copy.text().as_bytes()).unwrap();
    let url = |copy: &CliConfigCopy, name: &str| read(copy).hosts[&host(name)]["a.v1"].clone();
    let value = |text: &str| ServiceValue::Url(text.to_owned());
    assert_eq!((url(&merged, "a.example"), url(&merged, "b.example")), (value("2"), value("1")));
    assert_eq!(read(&merged).plugin_cache_dir.as_deref(), Some("/first"));
    let text = merged.text();
    assert!(text.contains("\"disable_checkpoint\" = true") && !text.contains("= false"), "{text}");
    assert!(text.contains("\"token\" = \"2\"") && !text.contains("\"token\" = \"1\""), "{text}");

    merged.add_missing(copy(&format!(
        "plugin_cache_dir = \"/other\"\n{}{}",
        block("a.example", "3"),
        block("c.example", "3")
    )));
    assert_eq!((url(&merged, "a.example"), url(&merged, "c.example")), (value("2"), value("3")));
    let mut larder = copy(&format!("{}{}", block("a.example", "larder"), block("b.example", "larder")));
    larder.remove_host(&host("a.example"));
    merged.set_hosts(larder);
    assert_eq!((url(&merged, "a.example"), url(&merged, "b.example")), (value("2"), value("larder")));
    assert_eq!(read(&merged).plugin_cache_dir.as_deref(), Some("/first"));
}

#[test]
fn each_client_has_its_own_search_paths() {
    let environment = |set: &[(&str, &str)]| -> Environment {
        set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let home = environment(&[("HOME", "/h")]);
    let xdg = environment(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]);
    for (client, set, existing, file, folder) in [
        (ClientKind::Terraform, &xdg, &["/h/.tofurc"][..], "/h/.terraformrc", "/h/.terraform.d"),
        (ClientKind::Opentofu, &home, &[], "/h/.tofurc", "/h/.terraform.d"),
        (ClientKind::Opentofu, &xdg, &[], "/x/opentofu/tofurc", "/x/opentofu"),
        (ClientKind::Opentofu, &xdg, &["/h/.terraformrc"], "/h/.terraformrc", "/x/opentofu"),
        (ClientKind::Opentofu, &xdg, &["/h/.terraformrc", "/h/.tofurc"], "/h/.tofurc", "/x/opentofu"),
        (ClientKind::Opentofu, &xdg, &["/h/.terraform.d"], "/x/opentofu/tofurc", "/h/.terraform.d"),
    ] {
        let exists = |path: &Path| existing.iter().any(|existing| Path::new(existing) == path);
        let search_paths = SearchPaths::of(client, set, &exists);
        assert_eq!(
            (search_paths.file.as_deref(), search_paths.folder.as_deref()),
            (Some(Path::new(file)), Some(Path::new(folder)))
        );
    }
    let named = environment(&[("HOME", "/h"), ("TF_CLI_CONFIG_FILE", "ci.tfrc")]);
    let search_paths = SearchPaths::of(ClientKind::Opentofu, &named, &|_| true);
    assert_eq!((search_paths.file.as_deref(), search_paths.folder), (Some(Path::new("ci.tfrc")), None));
}

proptest! {
    /// Any file is parsed or refused.
    #[test]
    fn any_file_is_parsed_or_refused(
        text in "([a-z]{1,3}|host|services|provider_installation|direct|include|[\"{}\\[\\]()=\n ?:!<$%.,-]){0,60}",
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let _ = CliConfig::read(text.as_bytes());
        let _ = CliConfig::read(format!("{{{text}").as_bytes());
        let _ = CliConfig::read(&bytes);
    }

    /// A URL is read verbatim from HCL and from JSON.
    #[test]
    fn a_service_url_is_read_verbatim(url in "[ -~é]{0,40}") {
        let quoted = serde_json::Value::from(url.as_str()).to_string();
        let json = format!("{{\"host\": {{\"a.example\": {{\"services\": {{\"providers.v1\": {quoted}}}}}}}}}");
        let hcl = format!("host \"a.example\" {{\n services = {{ \"providers.v1\" = {quoted} }}\n}}\n");
        let read = |text: String| CliConfig::read(text.as_bytes()).map(|config| config.hosts[&host("a.example")]["providers.v1"].clone());
        prop_assert_eq!(read(json).unwrap(), ServiceValue::Url(url.clone()));
        if !url.contains(['$', '%']) {
            prop_assert_eq!(read(hcl).unwrap(), ServiceValue::Url(url));
        }
    }

    /// A text and a label come back from the copy as they were written.
    #[test]
    fn a_copy_keeps_any_text(label in "\\PC{1,10}", text in "\\PC{0,20}|([a\"\\\\${}%n\t\n]){0,9}") {
        let quoted = crate::requirements::hcl::quoted;
        let written = format!("credentials {} {{\n token = {}\n}}\n", quoted(&label), quoted(&text));
        let copied = copy(&written).text();
        prop_assert_eq!(Hcl1Node::read(copied.as_bytes()), Hcl1Node::read(written.as_bytes()));
    }

    #[test]
    fn any_pattern_is_parsed(text in "[a-z*/.:]{0,20}", name in "[a-z]{1,5}\\.example") {
        let method = Method { source: InstallationSource::Direct, include: vec![text], exclude: vec!["*/*/*".to_owned()] };
        prop_assert_eq!(method.coverage(&host(&name), "registry.terraform.io"), Coverage::None);
    }
}
