//! Archives of modules give the files that the real client leaves when it unpacks them itself: generated ones with every kind
//! of entry, names that differ in case only, and names that occur twice.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use tar::EntryType;

use crate::support::git_module_fixture::{
    GitModuleFixture, download_module, download_path, installed, override_through,
};
use crate::support::larder::HOST;
use crate::support::module_fixture::{ModuleFixture, gz, noise, tar_gz, unpack_tar_gz};
use crate::support::repetitions;
use crate::support::terraform::{Terraform, host_override};
use crate::support::upstream::Module;

/// The number of archives of each format.
fn archives() -> u64 {
    repetitions(12, 40) as u64
}

/// Names that meet in every way: equal, equal after cleaning, in case only, in Unicode composition only, one below another.
const NAMES: [&str; 14] =
    ["a", "A", "a", "./a", "b/x", "b/X", "B/x", "b//x", "b", "c/d/e", "c/d", "e\u{301}", "\u{e9}", "a/b"];

fn content(rng: &mut StdRng) -> Vec<u8> {
    format!("# {}\n", rng.gen_range(0..1000)).into_bytes()
}

/// A tar.gz with a `main.tf` and generated entries.
fn generated_tar(rng: &mut StdRng) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: &str, kind: EntryType, mode: u32, bytes: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..161].copy_from_slice(b"a/no");
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        header.set_cksum();
        tar.append(&header, bytes).unwrap();
    };
    add("main.tf", EntryType::Regular, 0o644, b"# main\n");
    for _ in 0..rng.gen_range(1..7) {
        let kinds = [
            EntryType::Symlink,
            EntryType::Link,
            EntryType::Char,
            EntryType::Block,
            EntryType::Fifo,
            EntryType::Directory,
            EntryType::Continuous,
            EntryType::new(b'V'),
        ];
        let kind = if rng.gen_bool(0.6) { EntryType::Regular } else { *kinds.choose(rng).unwrap() };
        let has_content = matches!(kind.as_byte(), b'0' | b'7' | b'V');
        let bytes = if has_content { content(rng) } else { Vec::new() };
        add(NAMES.choose(rng).unwrap(), kind, *[0o644, 0o755, 0o600].choose(rng).unwrap(), &bytes);
    }
    gz(&tar.into_inner().unwrap())
}

/// A zip with a `main.tf` and generated entries: zip writers refuse a name that occurs twice.
fn generated_zip(rng: &mut StdRng) -> Vec<u8> {
    let (mut local, mut directory, mut count) = (Vec::new(), Vec::new(), 0_u16);
    let mut add = |name: &str, mode: u32, bytes: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        let size = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let name_bytes = u16::try_from(name.len()).unwrap().to_le_bytes();
        // The general purpose flag says that names are UTF-8; no compression, no time.
        let common =
            [&b"\x14\0\0\x08\0\0\0\0\0\0"[..], &crc.sum().to_le_bytes(), &size, &size, &name_bytes, b"\0\0"].concat();
        let offset = u32::try_from(local.len()).unwrap().to_le_bytes();
        local.extend([b"PK\x03\x04", &common[..], name.as_bytes(), bytes].concat());
        let attributes = (mode << 16).to_le_bytes();
        let entry = [b"PK\x01\x02\x14\x03", &common[..], &[0; 6], &attributes, &offset, name.as_bytes()].concat();
        directory.extend(entry);
        count += 1;
    };
    add("main.tf", 0o100_644, b"# main\n");
    for _ in 0..rng.gen_range(1..7) {
        // A name that occurs twice in two spellings is refused.
        let names: Vec<&str> = NAMES.into_iter().filter(|name| !name.contains("./") && !name.contains("//")).collect();
        let modes = [0o100_644, 0o100_755, 0o100_600, 0o120_777, 0o020_644, 0o010_644, 0o040_755, 0o644];
        let mode = *modes.choose(rng).unwrap();
        let bytes = if mode == 0o040_755 { Vec::new() } else { content(rng) };
        add(names.choose(rng).unwrap(), mode, &bytes);
    }
    let [count_bytes, zeros] = [count.to_le_bytes(), [0; 2]];
    let [size, offset] = [directory.len(), local.len()].map(|length| u32::try_from(length).unwrap().to_le_bytes());
    let end = [b"PK\x05\x06", &zeros[..], &zeros, &count_bytes, &count_bytes, &size, &offset, &zeros].concat();
    [local, directory, end].concat()
}

/// The folders (`None`) and the files of an installed module: the content, and whether the owner may execute it.
fn contents(folder: &Path) -> BTreeMap<String, Option<(Vec<u8>, bool)>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            assert!(!metadata.is_symlink(), "{path:?}");
            let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
            let file = (!metadata.is_dir())
                .then(|| (std::fs::read(&path).unwrap(), metadata.permissions().mode() & 0o100 != 0));
            if file.is_none() {
                folders.push(path);
            }
            found.insert(name, file);
        }
    }
    found
}

/// The modules that a client installs with this CLI configuration, and its output.
async fn installed_contents(
    client: &Terraform,
    fixture: &ModuleFixture,
    names: &[String],
    cli_config: &str,
) -> (BTreeMap<String, BTreeMap<String, Option<(Vec<u8>, bool)>>>, String) {
    let mut workspace = client.workspace();
    let calls = names.iter().map(|name| format!("module \"{name}\" {{\n  source = \"acme/{name}/test\"\n}}\n"));
    workspace.file("main.tf", &calls.collect::<String>()).trust(&fixture.ca.pem());
    workspace.cli_config(cli_config);
    let output = workspace.init().await;
    let modules = installed(&workspace).into_iter();
    (modules.map(|(name, folder)| (name, contents(&folder))).collect(), output.text)
}

#[tokio::test]
async fn generated_archives_give_the_files_that_the_client_unpacks_itself() {
    let Some(client) = Terraform::find() else { return };
    let fixture = ModuleFixture::start().await;
    let mut names = Vec::new();
    for seed in 0..archives() {
        let rng = &mut StdRng::seed_from_u64(seed);
        for (format, archive) in [("tar.gz", generated_tar(rng)), ("zip", generated_zip(rng))] {
            let name = format!("{}{seed}", &format[..3]).replace('.', "");
            let url = fixture.file(&format!("{name}.{format}"), &archive);
            fixture.publish(&name, &url);
            names.push(name);
        }
    }
    let direct = host_override(HOST, &fixture.registry.providers_url(), &fixture.registry.modules_url());
    let (expected, direct_output) = installed_contents(&client, &fixture, &names, &direct).await;
    let larder = fixture.larder().start().await;
    let (found, output) = installed_contents(&client, &fixture, &names, &override_through(larder.base())).await;
    let differences: Vec<String> = names
        .iter()
        .filter(|name| expected.get(*name) != found.get(*name))
        .map(|name| format!("{name}: {:#?}, and through larder {:#?}", expected.get(name), found.get(name)))
        .collect();
    assert!(differences.is_empty(), "{}\n{direct_output}\n{output}", differences.join("\n"));
    let installed_count = expected.len();
    assert!(installed_count > names.len() / 2 && installed_count < names.len(), "{installed_count}: {direct_output}");
}

/// A file beyond the limit is named with its size, the limit and the option that raises it, from every kind of source. After a
/// reload the module is served.
#[tokio::test]
async fn a_large_file_is_refused_by_name_and_served_after_a_reload_with_a_higher_limit() {
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    let large = noise(3, 3 << 20);
    let repository = fixture.repositories.repository("acme/large");
    repository.file("main.tf", "# large\n").bytes("bin/provider", &large).commit("large");
    repository.tag("v1.0.0");
    let zip = {
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, bytes) in [("main.tf", &b"# large\n"[..]), ("bin/provider", &large)] {
            zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    };
    let tar = tar_gz(&[("main.tf", b"# large\n"), ("bin/provider", &large)]);
    let archive = |name: &str, bytes: Vec<u8>| {
        fixture.archives.serve_file(&format!("/files/{name}"), "application/octet-stream", bytes);
        format!("{}/files/{name}", fixture.archives.origin())
    };
    let sources = [
        ("git", format!("git::{}/acme/large.git?ref=v1.0.0", fixture.git.origin())),
        ("tar", archive("large.tar.gz", tar)),
        ("zip", archive("large.zip", zip)),
    ];
    for (name, location) in &sources {
        fixture.registry.publish_module(Module::new("acme", name, "test").at(location));
    }
    let with_limit = |limit: &str| fixture.larder().store(&format!("max_module_file = \"{limit}\""));
    let larder = with_limit("2MiB").answer_within(crate::support::TEST_TIMEOUT).start().await;
    for (name, _) in &sources {
        let refused = larder.get(&download_path(name)).await.expect(502).text();
        assert!(refused.contains("bin/provider is 3.0 MiB; larder takes 2.0 MiB"), "{name}: {refused}");
        assert!(
            refused.contains("raise [store] max_module_file") && !refused.contains("publisher"),
            "{name}: {refused}"
        );
        assert!(larder.folder.blobs().is_empty(), "{name}");
    }
    larder.reload(with_limit("3MiB")).await.unwrap();
    for (name, _) in &sources {
        let (_, packed) = download_module(larder.base(), name).await;
        assert_eq!(unpack_tar_gz(&packed)["bin/provider"], large, "{name}");
    }
}

/// The texts of the other limits do not blame the publisher either.
#[tokio::test]
async fn a_module_with_too_many_entries_is_refused_as_beyond_a_limit_of_larder() {
    let fixture = ModuleFixture::start().await;
    let names: Vec<String> = (0..100_001).map(|number| format!("f{number}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    fixture.publish_archive("one", &tar_gz(&files));
    let larder = fixture.larder().answer_within(crate::support::TEST_TIMEOUT).start().await;
    let refused = larder.get(&download_path("one")).await.expect(502).text();
    assert!(
        refused.contains("more than 100000 files") && refused.contains("larder takes no larger module"),
        "{refused}"
    );
}
