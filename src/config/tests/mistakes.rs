//! Tests of the message for each mistake in a configuration.
#![expect(clippy::disallowed_methods, reason = "tests make their own files")]

use super::*;

#[test]
fn all_problems_are_reported_together_with_their_lines() {
    let text = r#"[server]
listen = "8080"
listn = "127.0.0.1:8080"
open = "yes"
default_upstream = "registry.terraform.io"
clients = ["10.0.0.0/8",
           "10.0.0.0/99"]
[stor]
[[upstream]]
host = "a.example"
patience = 2
[[upstream]]
host = "A.example"
verification = "none"
fresh = { versions = "5" }
[[credential]]
host = "git.example"
upstreams = ["b.example"]
token = { env = "UNSET1" }
"#;
    assert_eq!(
        problems_of(text).lines().collect::<Vec<_>>(),
        [
            "12 problems in the configuration:",
            r#"mirror.toml:2: server.listen: "8080" is not an address or a host name with a port; write for example listen = "127.0.0.1:8080""#,
            "mirror.toml:3: server.listn: unknown; did you mean listen? known here: listen, public_url, tls, default_upstream, \
             clients, open, trusted_proxies",
            "mirror.toml:4: server.open: this is of type string, not boolean; write for example open = true",
            "mirror.toml:5: server.default_upstream: registry.terraform.io is not one of the upstreams (a.example)",
            r#"mirror.toml:7: server.clients: "10.0.0.0/99" is neither a network nor an address; write for example clients = ["10.0.0.0/8"]"#,
            "mirror.toml:8: stor: unknown; did you mean store? known here: server, admin, store, network, bundle, audit, lock, fleet, upstream, credential, policy, client, warm",
            r#"mirror.toml:11: upstream.patience: this is of type integer, not string; write for example patience = "2s""#,
            "mirror.toml:13: upstream.host: a.example is an upstream already, on line 10",
            r#"mirror.toml:14: upstream.verification: "none" is none of signature, signature-if-keys, checksum; write for example verification = "signature""#,
            r#"mirror.toml:15: upstream.fresh.versions: "5" is not a duration with its unit; write for example versions = "5m""#,
            "mirror.toml:18: credential.upstreams: b.example is not one of the upstreams (a.example)",
            "mirror.toml:19: credential.token.env: the environment variable UNSET1 is not set, or is not text",
        ]
    );
}

#[test]
fn mistakes_in_policies_are_reported() {
    let long = "x".repeat(151);
    let text = format!(
        "[[policy]]\nmatch = \"hashicorp\"\n[[policy]]\nversions = \">> 5\"\naction = \"forbid\"\nreason = \"a\\nb\"\n\
         [[policy]]\nmatch = \"*\"\nreason = \"{long}\"\nminimum = \"7d\"\n[[policy]]\nmatch = \"*/aws\"\nreason = \"\"\n\
         [[policy]]\nmatch = \"a/*\"\naction = \"deny\"\nminimum_age = \"7d\"\n[[policy]]\nmatch = \"b/*\"\nminimum_age = \"7\"\n"
    );
    let problems = problems_of(&text);
    for line in [
        "mirror.toml:2: policy.match: \"hashicorp\" is not a pattern of addresses",
        "mirror.toml:4: policy.versions: \">> 5\" is not a version constraint",
        "mirror.toml:5: policy.action: \"forbid\" is neither allow nor deny; write for example action = \"deny\"",
        "mirror.toml:6: policy.reason: a reason is one line, without control characters",
        "mirror.toml:3: policy.match: missing; write for example match = \"hashicorp/*\"",
        "mirror.toml:9: policy.reason: it has 151 characters",
        "mirror.toml:10: policy.minimum: unknown",
        "mirror.toml:12: policy.match: \"*/aws\" is not a pattern of addresses",
        "mirror.toml:13: policy.reason: an empty reason says nothing",
        "mirror.toml:17: policy.minimum_age: a rule that denies has no age",
        "mirror.toml:20: policy.minimum_age: \"7\" is not a duration with its unit",
    ] {
        assert!(problems.contains(line), "{line}\n{problems}");
    }
}

#[test]
fn mistakes_in_clients_are_reported() {
    let sha256 = "ab".repeat(32);
    let text = format!(
        "[[client]]\nname = \"a b\"\ntoken = \"secret-secret-secret\"\n[[client]]\nname = \"one\"\ntoken = {{ sha256 = \"abc\" }}\n\
         [[client]]\nname = \"two\"\ntoken = []\nallow = [\"x\"]\nnetworks = [\"10/8\"]\n\
         [[client]]\nname = \"three\"\ntoken = [{{ sha256 = \"{sha256}\" }}, {{ env = \"UNSET\" }}, {{ env = \"SHORT\" }}]\n\
         [[client]]\nname = \"three\"\ntoken = {{ sha256 = \"{sha256}\" }}\nallow = [\"other.example/*\"]\n\
         [[client]]\nname = \"six\"\nallow = []\nnetworks = []\n\
         [[client]]\nname = \"seven\"\noidc = {{ issuer = \"http://ci.example\", audience = \"\", claims = {{}}, jwks = {{ file = \"absent\" }} }}\n\
         [[client]]\nname = \"eight\"\noidc = {{ issuer = \"https://ci.example\", claims = {{ sub = 3 }} }}\n\
         [[client]]\nname = \"nine\"\noidc = {{ issuer = \"https://ci.example\", claims = {{ aud = \"x\", sub = \"**\" }} }}\n\
         [[client]]\nname = \"ten\"\noidc = {{ issuer = \"https://user@ci.example\", audience = \"larder\", claims = {{ sub = \"a\" }} }}\n\
         [[client]]\nname = \"eleven\"\noidc = {{ issuer = \"https://[::1]:8443\", audience = \"larder\", claims = {{ sub = \"a\" }}, ca = \"\" }}\n"
    );
    let short = |name: &str| (name == "SHORT").then(|| "too-short".to_owned());
    let problems = Config::parse(&text, Path::new("mirror.toml"), &short).unwrap_err().to_string();
    for line in [
        "mirror.toml:2: client.name: a name has 1 to 64 letters",
        "mirror.toml:3: client.token: a secret is named here, never written",
        "mirror.toml:6: client.token.sha256: a SHA-256 has 64 hex digits",
        "mirror.toml:9: client.token: an empty list lets nobody in",
        "mirror.toml:10: client.allow: \"x\" is not a pattern of addresses",
        "mirror.toml:11: client.networks: \"10/8\" is neither a network nor an address",
        "mirror.toml:14: client.token.env: the environment variable UNSET is not set",
        "mirror.toml:14: client.token: the token has fewer than 20 characters",
        "mirror.toml:15: client.name: three is a client already, on line 12",
        "mirror.toml:15: client.token: this token is that of the client on line 12, too",
        "mirror.toml:19: client.token: missing; write for example token = { file = \"/etc/larder/ci.token\" }",
        "mirror.toml:21: client.allow: an empty list allows nothing",
        "mirror.toml:22: client.networks: an empty list allows no network",
        "mirror.toml:25: client.oidc.issuer: an issuer is an https URL",
        "mirror.toml:25: client.oidc.audience: an audience is not empty",
        "mirror.toml:25: client.oidc.claims: without a claim every job of that issuer is this client",
        "mirror.toml:25: client.oidc.jwks.file: absent: cannot be read",
        "mirror.toml:28: client.oidc.audience: missing",
        "mirror.toml:28: client.oidc.claims: this is of type integer, not string",
        "mirror.toml:31: client.oidc.claims: aud is judged already",
        "mirror.toml:31: client.oidc.claims: sub = \"**\" is true for every job of that issuer",
        "mirror.toml:34: client.oidc.issuer: an issuer is an https URL",
        "mirror.toml:37: client.oidc.issuer: larder cannot ask an issuer at this address",
        "mirror.toml:37: client.oidc.ca: this is not a path",
    ] {
        assert!(problems.contains(line), "{line}\n{problems}");
    }
    assert!(!problems.contains("too-short") && !problems.contains("secret-secret"), "{problems}");
}

#[test]
fn syntax_errors_are_reported_together_with_other_problems() {
    let message = problems_of(
        "[store]\nmemory = \"much\"\n[server]\nlisten = 127.0.0.1:8080\nopen = maybe\n[network\noffline = 1\n",
    );
    for line in
        ["mirror.toml:4: this is not TOML", "mirror.toml:5: this is not TOML", "mirror.toml:6: this is not TOML"]
    {
        assert!(message.contains(line), "{message}");
    }
    assert!(message.contains("mirror.toml:2: store.memory: \"much\" is not a size"), "{message}");
    assert!(message.starts_with("4 problems"), "{message}");
}

#[test]
fn every_bad_value_is_reported_with_its_line_key_and_problem() {
    let upstream = |options: &str| format!("[[upstream]]\nhost = 'r.example'\n{options}");
    let credential = |options: &str| format!("[[credential]]\nhost = 'git.example'\n{options}");
    let cases: Vec<(String, &str, &str)> = vec![
        ("server = 3".into(), "1: server:", "write for example [server]"),
        ("[[server]]".into(), "1: server:", "not table"),
        ("[server]\nlisten = 'localhost'".into(), "2: server.listen:", "not an address or a host name with a port"),
        ("[admin]\nlisten = 'localhost:port'".into(), "2: admin.listen:", "not an address or a host name"),
        ("[admin]\nlisten = 'http://localhost:80'".into(), "2: admin.listen:", "not an address or a host name"),
        ("[server]\npublic_url = 'mirror.example'".into(), "2: server.public_url:", "is not a URL"),
        ("[server]\npublic_url = 'ftp://m.example/'".into(), "2: server.public_url:", "neither https:// nor http://"),
        ("[server]\npublic_url = 'https://m.example/?a'".into(), "2: server.public_url:", "no query"),
        ("[server]\npublic_url = 'https://m.example/#a'".into(), "2: server.public_url:", "no query and no fragment"),
        (
            "[server]\npublic_url = 'https://@m.example/'".into(),
            "2: server.public_url:",
            "user name or password is refused",
        ),
        ("[server]\ntls = { certificate = 'absent.pem' }".into(), "2: server.tls.key:", "missing"),
        ("[server]\ntls = { certificate = 'absent.pem' }".into(), "2: server.tls.certificate:", "cannot be read"),
        ("[server]\ntls = { certificate = '/', key = '/' }".into(), "2: server.tls.key:", "a folder"),
        ("[server]\ndefault_upstream = 'no_host'".into(), "2: server.default_upstream:", "not a host name"),
        ("[server]\nclients = []".into(), "2: server.clients:", "allows no client"),
        ("[server]\nclients = '10.0.0.0/8'".into(), "2: server.clients:", "not array of strings"),
        ("[server]\nclients = [8]".into(), "2: server.clients:", "not string"),
        (
            "[server]\ntrusted_proxies = ['proxy']".into(),
            "2: server.trusted_proxies:",
            "neither a network nor an address",
        ),
        ("[admin]\nlisten = '127.0.0.1:8080'".into(), "2: admin.listen:", "is also [server] listen"),
        ("[admin]\ntoken = 'hello'".into(), "2: admin.token:", "a secret is named here, never written"),
        ("[admin]\ntoken = {}".into(), "2: admin.token:", "names no secret"),
        ("[admin]\ntoken = { env = 'EMPTY' }".into(), "2: admin.token.env:", "EMPTY is empty"),
        ("[admin]\ntoken = { file = 'absent' }".into(), "2: admin.token.file:", "absent cannot be read"),
        ("[admin]\ntoken = { file = 'a', env = 'A' }".into(), "2: admin.token.file:", "only one of env, file"),
        ("[store]\npath = ''".into(), "2: store.path:", "not a path"),
        ("[store]\npath = '~/larder'".into(), "2: store.path:", "in place of ~"),
        ("[store]\nmax_size = '0'".into(), "2: store.max_size:", "too small"),
        ("[store]\nmax_size = '99999999EiB'".into(), "2: store.max_size:", "not a size"),
        ("[store]\nmemory = '-1MiB'".into(), "2: store.memory:", "not a size"),
        ("[store]\nmemory = 64".into(), "2: store.memory:", "integer, not string"),
        ("[network]\noffline = 1".into(), "2: network.offline:", "not boolean"),
        ("[network]\nsealed_platforms = ['linux']".into(), "2: network.sealed_platforms:", "not a platform"),
        ("[network]\nca_file = 'absent'".into(), "2: network.ca_file:", "cannot be read"),
        (
            "[network]\nallow_private = ['https://a.example:1']".into(),
            "2: network.allow_private:",
            "the form http://name:port",
        ),
        (
            "[network]\nallow_private = ['http://a.example']".into(),
            "2: network.allow_private:",
            "the form http://name:port",
        ),
        (
            "[network]\nallow_private = ['http://a.example:80/x']".into(),
            "2: network.allow_private:",
            "the form http://name:port",
        ),
        ("[network]\nallow_private = ['a.example:80']".into(), "2: network.allow_private:", "has a port"),
        ("[network]\nallow_private = ['*.example']".into(), "2: network.allow_private:", "nor a host name"),
        ("upstream = []".into(), "1: upstream:", "mirrors nothing"),
        ("upstream = 'a'".into(), "1: upstream:", "[[upstream]]"),
        ("[upstream]\nhost = 'a.example'".into(), "1: upstream:", "[[upstream]]"),
        ("[[upstream]]".into(), "1: upstream.host:", "missing"),
        (upstream("url = 'https://me@r.example/'"), "3: upstream.url:", "user name or password is refused"),
        (upstream("addresses = ['192.0.2.7']"), "3: upstream.addresses:", "not an address with a port"),
        (
            upstream("url = 'https://r.example:8443/'\naddresses = ['192.0.2.7:443']"),
            "4: upstream.addresses:",
            "another port than the 8443",
        ),
        (
            upstream("token = { env = 'A' }\nheader = { name = 'x-a', value = { env = 'A' } }"),
            "4: upstream.header:",
            "only one of",
        ),
        (upstream("token = { env = 'BROKEN' }"), "3: upstream.token:", "a header cannot carry"),
        (upstream("basic = { user = 'a:b', password = { env = 'A' } }"), "3: upstream.basic.user:", "a colon"),
        (upstream("basic = { user = 'a' }"), "3: upstream.basic.password:", "missing"),
        (upstream("header = { name = 'x y', value = { env = 'A' } }"), "3: upstream.header.name:", "not a header name"),
        (
            upstream("header = { name = 'Host', value = { env = 'A' } }"),
            "3: upstream.header.name:",
            "belongs to the connection",
        ),
        (
            upstream("header = { name = 'x-a', value = { env = 'BROKEN' } }"),
            "3: upstream.header.value:",
            "a header cannot carry",
        ),
        (upstream("credentials_for = ['a b']"), "3: upstream.credentials_for:", "not a host name"),
        (upstream("fresh = '5m'"), "3: upstream.fresh:", "not table"),
        (upstream("fresh = { api = '11years' }"), "3: upstream.fresh.api:", "ten years"),
        (upstream("fresh = { lists = '1m' }"), "3: upstream.fresh.lists:", "known here: versions"),
        (upstream("patience = '9s'"), "3: upstream.patience:", "longer than 8s"),
        (upstream("keep_gone = 'yes'"), "3: upstream.keep_gone:", "not boolean"),
        (upstream("fold_case = 0"), "3: upstream.fold_case:", "not boolean"),
        (credential(""), "1: credential:", "no credential"),
        (
            credential("upstreams = ['r.example']\ntoken = { env = 'A' }"),
            "3: credential.upstreams:",
            "not one of the upstreams",
        ),
        (credential("ssh = { key = 'absent' }"), "3: credential.ssh.known_hosts:", "missing"),
        (
            credential("ssh = { key = 'a', known_hosts = 'b' }\ntoken = { env = 'A' }"),
            "3: credential.ssh:",
            "only one of",
        ),
        ("[[credential]]\ntoken = { env = 'A' }".into(), "1: credential.host:", "missing"),
    ];
    for (text, line_and_key, problem) in cases {
        let message = problems_of(&text);
        let prefix = format!("mirror.toml:{line_and_key}");
        assert!(
            message.lines().any(|line| line.starts_with(&prefix) && line.contains(problem)),
            "{text}\n{prefix} {problem}\n{message}"
        );
    }
}

#[test]
fn a_file_that_cannot_be_read_is_one_problem_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| Config::load(Some(path)).unwrap_err().to_string();
    assert!(message(&folder.path().join("absent.toml")).contains("absent.toml: the configuration cannot be read"));
    assert!(message(folder.path()).contains("a folder"));
    let file = folder.path().join("mirror.toml");
    std::fs::write(&file, "# ".repeat(600_000)).unwrap();
    assert!(message(&file).contains("larger than 1048576 bytes"));
    std::fs::write(&file, b"[server]\n# \xff\n").unwrap();
    assert!(message(&file).contains("not UTF-8 text (line 2)"));
}

#[test]
fn a_file_full_of_mistakes_is_read_quickly_and_reported_in_few_lines() {
    let keys: String = (0..50_000).map(|n| format!("key{n} = 1\n")).collect();
    assert!(problems_of(&keys).lines().count() < 60);
    assert!(problems_of(&"?\n".repeat(200_000)).lines().count() < 60);
}

#[test]
fn control_characters_in_a_file_do_not_reach_the_terminal() {
    let message = problems_of("\"a\\u001b[2J\" = 1\nserver.listen = \"\\u001b[2J\"");
    assert!(!message.contains('\u{1b}'), "{message:?}");
}

/// A wrong entry is reported once, without a second report about an empty list.
#[test]
fn a_wrong_entry_of_a_list_is_reported_once() {
    let message = problems_of("[server]\nclients = [\"10.0.0.0/33\"]\n");
    assert!(message.starts_with("1 problem") && message.contains("neither a network"), "{message}");
    assert!(problems_of("[server]\nclients = []\n").contains("allows no client"));
    let message = problems_of("[upstream]\nhost = \"a.example\"\n");
    assert!(message.starts_with("1 problem") && !message.contains("mirrors nothing"), "{message}");
}

/// A misspelt required key is not also reported as missing.
#[test]
fn a_misspelt_required_key_is_reported_once() {
    let message = problems_of("[[upstream]]\nhots = \"registry.example\"\n");
    assert!(message.starts_with("1 problem") && message.contains("did you mean host?"), "{message}");
    assert!(problems_of("[[upstream]]\npatience = \"1s\"\n").contains("upstream.host: missing"));
}

/// A URL in place of a host is a common slip after copying it from a registry.
#[test]
fn a_url_in_place_of_a_host_is_reported_with_the_host_to_write() {
    for (given, name) in
        [("https://registry.example/v1", "registry.example"), ("http://localhost:8080/", "localhost:8080")]
    {
        let message = problems_of(&format!("[[upstream]]\nhost = \"{given}\"\n"));
        assert!(message.contains(&format!("write \"{name}\"")) && !message.contains("for example"), "{message}");
    }
    assert!(!problems_of("[[upstream]]\nhost = \"https://u:s3cret@registry.example/\"\n").contains("s3cret"));
}

#[test]
fn recurring_warm_ups_of_an_offline_larder_give_a_warning() {
    let warnings = |offline: bool| {
        let text = format!("[network]\noffline = {offline}\n[[warm]]\nwhat = [\"hashicorp/aws\"]\n");
        parse(&text).unwrap().1
    };
    assert!(warnings(false).is_empty());
    assert!(warnings(true)[0].to_string().contains("offline is true"), "{:?}", warnings(true));
}

/// A key of an earlier version says what is so now, and is no unknown key.
#[test]
fn a_removed_key_names_the_remedy() {
    for value in ["true", "false"] {
        let problem = problems_of(&format!("[server]\nopen = true\nhttp2 = {value}\n"));
        assert!(
            problem.contains("mirror.toml:3: server.http2: larder answers clients over HTTP/1.1 only"),
            "{problem}"
        );
        assert!(problem.contains("a proxy in front of larder") && !problem.contains("unknown"), "{problem}");
    }
}

#[test]
fn each_mistake_in_a_fleet_is_reported_with_its_line() {
    for (lines, expected) in [
        (&["bucket"][..], "mirror.toml:1: fleet.bucket: missing; write for example bucket = \"s3://larder/mirror\""),
        (
            &["database"],
            "mirror.toml:1: fleet.database: missing; write for example database = { env = \"LARDER_DATABASE\" }",
        ),
        (
            &["database = \"postgresql://larder:hunter2@db.example/larder\""],
            "mirror.toml:4: fleet.database: a secret is named here, never written",
        ),
        (
            &["database = { env = \"MYSQL\" }"],
            "mirror.toml:4: fleet.database: the URL of the database begins with another scheme than postgresql://",
        ),
        (
            &["database = { env = \"IN_THE_CLEAR\" }"],
            "mirror.toml:4: fleet.database: sslmode=disable would send the password",
        ),
        (&["database = { env = \"NOWHERE\" }"], "mirror.toml:4: fleet.database: the URL of the database names no host"),
        (&["database = { env = \"ONE_OF_SEVERAL\" }"], "mirror.toml:4: fleet.database: this is no URL of a database"),
        (&["database = { env = \"NO_URL\" }"], "mirror.toml:4: fleet.database: this is no URL of a database"),
        (&["bucket = \"larder\""], "mirror.toml:3: fleet.bucket: \"larder\" is not the URL of a bucket"),
        (
            &["bucket = \"ftp://larder\""],
            "mirror.toml:3: fleet.bucket: \"ftp://larder\" begins with none of s3://, gs:// and az://",
        ),
        (&["bucket = \"s3:///mirror\""], "mirror.toml:3: fleet.bucket: \"s3:///mirror\" names no bucket"),
        (&["bucket = \"s3://Larder\""], "mirror.toml:3: fleet.bucket: \"s3://Larder\" has a name that no bucket has"),
        (&["bucket = \"s3://larder/a/../b\""], "mirror.toml:3: fleet.bucket: \"s3://larder/a/../b\" has a prefix"),
        (&["secret = []"], "mirror.toml:6: fleet.secret: an empty list proves nothing"),
        (
            &["secret = \"hunter2-0123456789abcdef-0123456789\""],
            "mirror.toml:6: fleet.secret: a secret is named here, never written",
        ),
        (&["secret = [{ env = \"SHORT\" }]"], "mirror.toml:6: fleet.secret: the secret has fewer than 32 bytes"),
        (
            &["secret = [{ env = \"SECRET\" }, { env = \"SECRET\" }]"],
            "mirror.toml:6: fleet.secret: this secret is in the list already",
        ),
        (
            &["bucket_key = { access_key = { env = \"POD_IP\" }, secret = { env = \"SECRET\" } }"],
            "mirror.toml:7: fleet.secret: this secret is that of [fleet] bucket_key, too",
        ),
        (
            &[
                "bucket = \"gs://larder\"",
                "bucket_key = { access_key = { env = \"POD_IP\" }, secret = { env = \"MYSQL\" } }",
            ],
            "mirror.toml:4: fleet.bucket_key: gs:// takes the key of a service account from the file that",
        ),
        (
            &["advertise = { env = \"DATABASE\" }"],
            "mirror.toml:2: fleet.advertise: this holds no IP address; write for example",
        ),
        (
            &["advertise = { env = \"LOOPBACK\" }"],
            "mirror.toml:2: fleet.advertise: http://127.0.0.1:8082/ is this machine for every replica",
        ),
        (
            &["advertise = \"http://localhost:8082\""],
            "mirror.toml:2: fleet.advertise: http://localhost:8082/ is this machine for every replica",
        ),
        (&["serve_behind = \"30s\""], "mirror.toml:7: fleet.serve_behind: \"30s\" is less than a minute"),
    ] {
        let problems = fleet_with(lines).unwrap_err().to_string();
        assert!(problems.contains(expected), "{expected}\n{problems}");
        assert!(!problems.contains("hunter2") && problems.starts_with("1 problem"), "{problems}");
    }
}
