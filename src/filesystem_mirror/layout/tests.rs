//! Paths of provider trees, as Terraform's reader parses them.

use proptest::prelude::*;

use super::*;

/// The kind of the file at a path of the layout.
fn kind_of(path: &str) -> MirrorFileKind {
    match MirrorPath::parse(path).unwrap() {
        PathMeaning::File(found) => found.kind,
        meaning => panic!("{path}: {meaning:?}"),
    }
}

#[test]
fn the_kind_of_each_file_is_parsed_from_its_name() {
    let folder = "registry.example/acme/null";
    let (version, linux) = (Version::parse("1.2.0-rc.1+b").unwrap(), Platform::parse("linux_amd64").unwrap());
    let package = || (version.clone(), linux.clone());
    for (name, kind) in [
        ("index.json", MirrorFileKind::Index),
        ("1.2.0-rc.1+b.json", MirrorFileKind::VersionIndex(version.clone())),
        ("terraform-provider-null_1.2.0-rc.1+b_linux_amd64.zip", MirrorFileKind::Archive(package().0, package().1)),
        // Terraform's reader takes any case and ignores the text after the architecture.
        ("Terraform-Provider-NULL_1.2.0-rc.1+b_Linux_AMD64_v2.ZIP", MirrorFileKind::Archive(package().0, package().1)),
        ("terraform-provider-null_1.2.0-rc.1+b_linux_amd64.json", MirrorFileKind::Document(package().0, package().1)),
        ("terraform-provider-null_1.2.0-rc.1+b_SHA256SUMS", MirrorFileKind::Sums(SumsScope::Version(version.clone()))),
        (
            "terraform-provider-null_1.2.0-rc.1+b_linux_amd64_SHA256SUMS.sig",
            MirrorFileKind::Signature(SumsScope::Package(package().0, package().1)),
        ),
    ] {
        assert_eq!(kind_of(&format!("{folder}/{name}")), kind, "{name}");
    }
}

#[test]
fn ignored_files_are_foreign_and_misnamed_archives_are_reported() {
    let folder = "registry.example/acme/null";
    for path in [
        "README",
        "a/b",
        "a/b/c",
        "registry.example/acme/null/README.md",
        "a b/c/d/e",
        "x/y/z/1.0.0/linux/f",
        "registry.example/acme/null/1.2.0/linux_amd64",
    ] {
        assert_eq!(MirrorPath::parse(path), Ok(PathMeaning::Foreign), "{path}");
    }
    for name in [
        "terraform-provider-other_1.2.0_linux_amd64.zip",
        "terraform-provider-null_v1.2.0_linux_amd64.zip",
        "terraform-provider-null_1.2.0_linux.zip",
        "terraform-provider-null_1.2.0_li-nux_amd64.zip",
        "null.zip",
    ] {
        let read = MirrorPath::parse(&format!("{folder}/{name}")).unwrap();
        assert!(matches!(read, PathMeaning::Misnamed(_)), "{name}: {read:?}");
    }
    let package_folder = format!("{folder}/1.2.0/linux_amd64");
    let Ok(PathMeaning::Unpacked(package, file)) = MirrorPath::parse(&format!("{package_folder}/docs/index.md")) else {
        panic!()
    };
    assert_eq!(package.to_string(), "registry.example/acme/null 1.2.0 (linux_amd64)");
    assert_eq!(
        (file.as_str(), enclosing_package_folder(&format!("{package_folder}/docs/index.md"))),
        ("docs/index.md", &*package_folder)
    );
    assert_eq!(enclosing_package_folder(&package_folder), package_folder);
    assert_eq!(enclosing_package(&package_folder), Some(package));
}

#[test]
fn malformed_paths_and_paths_out_of_the_tree_are_refused() {
    let too_long = "a".repeat(MAX_PATH + 1);
    for path in ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/./b", "a/", "a\\b", "a/\0", "a/b\n", &too_long] {
        assert!(MirrorPath::parse(path).is_err(), "{path:?}");
    }
}

#[test]
fn hosts_are_written_in_unicode_and_read_in_both_spellings() {
    for host in ["bücher.example", "xn--bcher-kva.example", "BÜCHER.example"] {
        let Ok(PathMeaning::File(path)) = MirrorPath::parse(&format!("{host}/acme/null/index.json")) else { panic!() };
        assert_eq!(path.to_string(), "bücher.example/acme/null/index.json");
    }
    let Ok(PathMeaning::File(path)) = MirrorPath::parse("localhost:5000/acme/null/index.json") else { panic!() };
    assert_eq!(path.folder(), "localhost:5000/acme/null");
}

/// Generates every kind of file.
fn any_kind() -> impl Strategy<Value = MirrorFileKind> {
    let version = "[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}(-[a-zA-Z0-9.-]{1,6})?(\\+[a-zA-Z0-9]{1,4})?"
        .prop_filter_map("a version", |text| Version::parse(&text).ok());
    let platform = "[a-z0-9]{1,8}_[a-z0-9]{1,8}".prop_filter_map("a platform", |text| Platform::parse(&text).ok());
    (0..8_usize, version, platform).prop_map(|(number, version, platform)| match number {
        0 => MirrorFileKind::Index,
        1 => MirrorFileKind::VersionIndex(version),
        2 => MirrorFileKind::Sums(SumsScope::Version(version)),
        3 => MirrorFileKind::Signature(SumsScope::Version(version)),
        4 => MirrorFileKind::Sums(SumsScope::Package(version, platform)),
        5 => MirrorFileKind::Signature(SumsScope::Package(version, platform)),
        6 => MirrorFileKind::Document(version, platform),
        _ => MirrorFileKind::Archive(version, platform),
    })
}

proptest! {
    #[test]
    fn every_printed_path_parses_to_itself(
        host in "[a-z]{1,8}\\.example(:[1-9][0-9]{0,3})?|b[üé]{1,3}cher\\.example|xn--bcher-kva\\.example",
        namespace in "[a-z0-9][a-z0-9_-]{0,9}",
        type_ in "[a-z0-9][a-z0-9_-]{0,9}",
        kind in any_kind(),
    ) {
        let provider = provider(&host, &namespace, &type_).unwrap();
        let path = MirrorPath { provider, kind };
        prop_assert_eq!(MirrorPath::parse(&path.to_string()), Ok(PathMeaning::File(path)));
    }

    #[test]
    fn arbitrary_text_never_panics_and_a_file_stays_in_its_provider_folder(
        path in "\\PC{0,60}|[a-z./_\\\\-]{0,40}|[a-z]{1,3}/[a-z]{1,3}/[a-z]{1,3}/terraform-provider-[a-z_0-9.é-]{0,30}(\\.zip|\\.json|_SHA256SUMS(\\.sig)?)?",
    ) {
        if let Ok(PathMeaning::File(found)) = MirrorPath::parse(&path) {
            let written = found.to_string();
            prop_assert_eq!(written.split('/').count(), 4);
            prop_assert!(!written.split('/').any(|segment| segment.is_empty() || segment == "." || segment == ".."));
            prop_assert_eq!(MirrorPath::parse(&written), Ok(PathMeaning::File(found)));
        }
    }
}
