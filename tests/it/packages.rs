//! What packages, images and manifests install: larder reads the configurations, and what one file names another one has.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::larder::Folder;
use crate::support::process::{command, run};
use crate::support::programs::find;
use crate::support::upstream::sha256_hex;

/// Scripts that change `mirror.toml`, and the line that each of them writes.
const CHANGED_LINES: &[(&str, &str)] =
    &[("systemd/package", "path = \"/var/lib/larder\""), ("deploy/Containerfile", "listen = \"0.0.0.0:8080\"")];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The lines below `key: |` of a YAML file, without their indentation.
fn block_scalar(yaml: &str, key: &str) -> String {
    let mut lines = yaml.lines().skip_while(|line| line.trim() != format!("{key}: |")).skip(1).peekable();
    let indentation = lines.peek().unwrap().len() - lines.peek().unwrap().trim_start().len();
    let block = lines.take_while(|line| line.is_empty() || line.starts_with(&" ".repeat(indentation)));
    block.map(|line| format!("{}\n", line.get(indentation..).unwrap_or_default())).collect()
}

/// The words after each `name`, such as the value of `runAsUser:`.
fn values<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.trim().strip_prefix(name)).map(str::trim).collect()
}

async fn expect_valid(folder: &Folder, subject: &str, config: &str) {
    let file = folder.path().join("mirror.toml");
    std::fs::write(&file, config).unwrap();
    let output = run(command(folder.path(), &["check", "--config", file.to_str().unwrap()])).await;
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{subject}: {output:?}");
}

#[tokio::test]
async fn larder_reads_the_configuration_of_the_config_map_as_it_is_and_with_its_comments_as_options() {
    let (folder, config) = (Folder::new(), block_scalar(&text("deploy/kubernetes/configmap.yaml"), "mirror.toml"));
    assert!(config.contains("listen = \"0.0.0.0:8080\"") && config.contains("[[upstream]]"), "{config}");
    expect_valid(&folder, "the ConfigMap", &config).await;

    let token = folder.path().join("admin-token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let is_option =
        |line: &str| line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    let lines = config.lines().map(|line| line.strip_prefix("# ").filter(|line| is_option(line)).unwrap_or(line));
    let all: String = lines.map(|line| format!("{line}\n")).collect();
    let all = all.replace("/run/secrets/larder/admin-token", token.to_str().unwrap());
    for option in ["\n[admin]\n", "\ntoken = ", "\n[store]\n", "\nclients = ", "\npublic_url = "] {
        assert!(all.contains(option), "{option}: {all}");
    }
    expect_valid(&folder, "the ConfigMap with its comments", &all).await;
}

/// The Debian package and the image install `mirror.toml` with one line changed.
#[tokio::test]
async fn larder_reads_the_configurations_that_packages_make_of_the_sample() {
    let (folder, sample) = (Folder::new(), text("mirror.toml"));
    for &(file, expected) in CHANGED_LINES {
        let script = text(file);
        let line = script.lines().find(|line| line.contains("sed '")).unwrap();
        let expression = line.split('\'').nth(1).unwrap();
        let mut sed = Command::new("sed");
        sed.arg(expression).arg(root().join("mirror.toml"));
        let made = String::from_utf8(sed.output().unwrap().stdout).unwrap();
        let changed: Vec<&str> =
            made.lines().zip(sample.lines()).filter(|(a, b)| a != b).map(|(line, _)| line).collect();
        assert!(changed.len() == 1 && changed[0].starts_with(expected), "{file}: {changed:?}");
        expect_valid(&folder, file, &made).await;
    }
}

/// The absolute paths of programs and documents that the unit names.
#[test]
fn the_debian_package_installs_what_the_unit_names() {
    let manifest: toml::Table = text("Cargo.toml").parse().unwrap();
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().unwrap();
    let installed: Vec<String> = assets
        .iter()
        .map(|asset| {
            let part = |index: usize| asset[index].as_str().unwrap();
            // A target that ends with a slash is a folder.
            match part(1).strip_suffix('/') {
                Some(folder) => format!("/{folder}/{}", part(0).rsplit('/').next().unwrap()),
                None => format!("/{}", part(1)),
            }
        })
        .collect();
    let unit = text("systemd/larder.service");
    let programs = values(&unit, "ExecStart=").into_iter().map(|line| line.split(' ').next().unwrap());
    let documents = values(&unit, "Documentation=").into_iter().filter_map(|url| url.strip_prefix("file:"));
    let named: Vec<&str> = programs.chain(documents).collect();
    assert_eq!(named.len(), 2, "{named:?}");
    for path in named.into_iter().chain(["/etc/larder/mirror.toml", "/usr/share/man/man1/*.1.gz"]) {
        assert!(installed.iter().any(|file| file == path), "{path}: {installed:?}");
    }
    for asset in assets {
        let source = asset[0].as_str().unwrap();
        let folder = source.rsplit_once('/').map_or("", |(folder, _)| folder);
        let exists = root().join(source).exists() || source.contains('*') && root().join(folder).is_dir();
        assert!(exists || source.starts_with("target/"), "{source} does not exist");
    }
}

#[test]
fn the_stateful_set_runs_the_image_as_the_image_is_made() {
    let (image, set) = (text("deploy/Containerfile"), text("deploy/kubernetes/statefulset.yaml"));
    let user = values(&image, "USER ")[0];
    for (key, id) in ["runAsUser:", "runAsGroup:"].into_iter().zip(user.split(':')) {
        assert_eq!(values(&set, key), [id], "{key}");
    }
    let store = values(&image, "VOLUME ")[0];
    assert_eq!(values(&image, "ENV STATE_DIRECTORY="), [store]);
    assert_eq!(values(&set, "mountPath:"), [store, "/etc/larder"]);
    assert_eq!(values(&set, "containerPort:"), values(&image, "EXPOSE "));
    assert_eq!(values(&set, "replicas:"), ["1"]);
    let version = format!("image: larder:{}", env!("CARGO_PKG_VERSION"));
    assert!(set.contains(&version), "{version}");
}

/// The base images of the Containerfile: name, tag and digest.
fn bases(containerfile: &str) -> Vec<(&str, &str, &str)> {
    let images = containerfile
        .lines()
        .filter_map(|line| line.strip_prefix("ARG ")?.split_once("_IMAGE="))
        .map(|(_, image)| image);
    images
        .map(|image| {
            let (name, digest) = image.split_once('@').unwrap_or_else(|| panic!("{image} has no digest"));
            let (name, tag) = name.rsplit_once(':').unwrap();
            (name.strip_prefix("docker.io/").unwrap(), tag, digest)
        })
        .collect()
}

/// Answers HEAD requests for manifests as a registry does that asks for a token (OCI distribution): each tag has the digest that
/// `digest_of` says.
fn registry_with_tokens(digest_of: fn(&str) -> Option<String>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let realm = origin.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = String::new();
            let mut reader = BufReader::new(&stream);
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
            let path = head.split(' ').nth(1).unwrap_or_default();
            let has_index_type = head.to_lowercase().contains("application/vnd.oci.image.index.v1+json");
            let answer = match path.strip_prefix("/v2/").and_then(|rest| rest.split_once("/manifests/")) {
                None => {
                    let path = path.replace("%3a", ":").replace("%2f", "/").replace("%3A", ":").replace("%2F", "/");
                    let scope = path.split("scope=repository:").nth(1).unwrap_or_default();
                    let body = format!("{{\"token\": \"for {}\"}}", scope.trim_end_matches(":pull"));
                    format!("200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                }
                Some((name, _)) if !head.contains(&format!("Bearer for {name}\r\n")) => format!(
                    "401 Unauthorized\r\nContent-Length: 0\r\nWWW-Authenticate: Bearer realm=\"{realm}/token\",service=\"r.example\",scope=\"repository:{name}:pull\"\r\n\r\n"
                ),
                Some((name, tag)) => match digest_of(&format!("{name}:{tag}")).filter(|_| has_index_type) {
                    Some(digest) => format!("200 OK\r\nContent-Length: 7\r\nDocker-Content-Digest: {digest}\r\n\r\n"),
                    None => "404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
                },
            };
            let _ = write!(stream, "HTTP/1.1 {}", answer.replacen("\r\n", "\r\nConnection: close\r\n", 1));
        }
    });
    origin
}

/// The image is built on bases that no push to a tag changes, and one command renews their digests.
#[tokio::test]
async fn the_bases_of_the_image_have_digests_which_one_command_renews() {
    let containerfile = text("deploy/Containerfile");
    let before = bases(&containerfile);
    assert_eq!(before.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), ["library/rust", "library/debian"]);
    for (name, _, digest) in &before {
        let hex = digest.strip_prefix("sha256:").unwrap();
        assert!(
            hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')),
            "{name}@{digest}"
        );
    }
    for used in containerfile.lines().filter_map(|line| line.strip_prefix("FROM ")) {
        assert!(used.starts_with("${BUILD_IMAGE}") || used.starts_with("${RUN_IMAGE}"), "FROM {used}");
    }

    if find("curl").is_none() {
        return;
    }
    let folder = Folder::new();
    let copy = folder.path().join("deploy");
    std::fs::create_dir(&copy).unwrap();
    for file in ["renew-bases", "Containerfile"] {
        std::fs::copy(root().join("deploy").join(file), copy.join(file)).unwrap();
    }
    let renew = async |registry: String| {
        let mut renewal = Command::new(copy.join("renew-bases"));
        renewal.env("REGISTRY", registry).env("no_proxy", "127.0.0.1");
        let output = run(renewal).await;
        (output, std::fs::read_to_string(copy.join("Containerfile")).unwrap())
    };
    let (output, renewed) =
        renew(registry_with_tokens(|tag| Some(format!("sha256:{}", sha256_hex(tag.as_bytes()))))).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    for (was, is) in before.iter().zip(bases(&renewed)) {
        let digest = format!("sha256:{}", sha256_hex(format!("{}:{}", was.0, was.1).as_bytes()));
        assert_eq!((is.0, is.1, is.2), (was.0, was.1, digest.as_str()));
        assert!(output.out.contains(&digest), "{output:?}");
    }
    let other_lines =
        |text: &str| text.lines().filter(|line| !line.contains("_IMAGE=")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(other_lines(&renewed), other_lines(&containerfile));

    // A registry without the tag changes nothing.
    let (output, kept) = renew(registry_with_tokens(|_| None)).await;
    assert!(output.code == Some(1) && output.err.contains("library/rust:"), "{output:?}");
    assert_eq!(kept, renewed);
}
