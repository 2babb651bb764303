//! Packs trees, unpacks them again and compares them. Also tests how links are resolved.

use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;

use super::*;
use crate::packaging::unpack::unpack;
use crate::packaging::{ArchiveFormat, TreeEntry, TreeLimits};

#[derive(Clone, Copy)]
enum Item<'a> {
    File(&'a str, u32, &'a str),
    Folder(&'a str),
    Link(&'a str, &'a str),
}
use Item::{File, Folder, Link};

const LIMITS: TreeLimits = TreeLimits { entries: 1000, bytes: 1 << 20, file_bytes: 1 << 20 };

fn path(text: &str) -> TreePath {
    TreePath::parse(text.as_bytes()).unwrap()
}

fn empty() -> Tree {
    Tree::new(tempfile::tempfile().unwrap(), LIMITS)
}

fn tree_of(items: &[Item<'_>]) -> Tree {
    let mut tree = empty();
    for item in items {
        match item {
            File(name, mode, content) => drop(tree.add_file(&path(name), *mode, &mut content.as_bytes()).unwrap()),
            Folder(name) => tree.add_folder(&path(name)).unwrap(),
            Link(name, target) => tree.add_symlink(&path(name), target.as_bytes()).unwrap(),
        }
    }
    tree
}

/// Packs a tree in memory.
fn packed(tree: &Tree, root: &str) -> Result<(Vec<u8>, PackResult), TreeError> {
    let mut bytes = Vec::new();
    pack(tree, &path(root), &mut bytes).map(|packed| (bytes, packed))
}

fn unpacked(archive: &[u8]) -> Tree {
    let mut tree = empty();
    unpack(ArchiveFormat::TarGz, io::Cursor::new(archive), &mut tree).unwrap();
    tree
}

fn content(tree: &Tree, entry: &TreeEntry) -> Option<(u32, Vec<u8>)> {
    let TreeEntry::File(file) = entry else { return None };
    let mut bytes = Vec::new();
    tree.contents(file).read_to_end(&mut bytes).unwrap();
    Some((file.mode, bytes))
}

/// Lists a tree, one line per entry.
fn listing(tree: &Tree) -> Vec<String> {
    let line = |(path, entry): (&TreePath, &TreeEntry)| match entry {
        TreeEntry::Folder => format!("{path}/"),
        TreeEntry::Link(target) => format!("{path} -> {}", String::from_utf8_lossy(target)),
        file => {
            let (mode, bytes) = content(tree, file).unwrap();
            format!("{path} {mode:o} {}", String::from_utf8_lossy(&bytes))
        }
    };
    tree.entries().map(line).collect()
}

/// Packs and unpacks a tree, and lists the result.
fn repacked_listing(items: &[Item<'_>], root: &str) -> Vec<String> {
    listing(&unpacked(&packed(&tree_of(items), root).unwrap().0))
}

fn sample() -> Tree {
    // Long and repetitive enough for two encoders to compress it differently.
    let text: String =
        (0_u32..4000).map(|n| format!("{n} = {}\n", &Digest::of(&(n % 700).to_le_bytes()).to_string()[..20])).collect();
    tree_of(&[
        File("large.tf", 0o644, &text),
        File("main.tf", 0o644, "module \"a\" { source = \"./modules/a\" }\n"),
        File("modules/a/main.tf", 0o644, &"# a\n".repeat(1000)),
        File("scripts/run.sh", 0o755, "#!/bin/sh\n"),
        Folder("empty"),
        Link("LICENSE", "scripts/../main.tf"),
        Link("copy", "modules"),
        File(&format!("{}/{}/x", "d".repeat(90), "e".repeat(90)), 0o600, "long"),
        File(&format!("{}/{}", "f".repeat(200), "g".repeat(200)), 0o644, "longer"),
    ])
}

/// Archives with one `PACKER` version must never change. A change needs a new `PACKER` first, then new digests here.
#[test]
fn a_fixed_tree_has_a_fixed_archive_and_a_fixed_digest() {
    let (bytes, packed) = packed(&sample(), "").unwrap();
    assert_eq!(PACKER, 1);
    assert_eq!(packed.tree_digest.to_string(), "6be995a793ccedf29601f0a39177c94f833e64ae0ea50e2756854a8f890e08d0");
    assert_eq!(Digest::of(&bytes).to_string(), "05d91e594ed492e2c273bef3841056d371130b91c18862e1445b3fbf40112c0c");
}

/// Notes the length of each write.
#[derive(Default)]
struct WriteLengths(Vec<usize>);

impl io::Write for WriteLengths {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_encoder_gets_equal_chunks_whatever_the_size_of_the_writes() {
    for size in [1, 7, 511, 100_000] {
        let mut chunks = FixedChunkWriter::new(WriteLengths::default(), CHUNK_BYTES);
        vec![0; 150_000].chunks(size).for_each(|bytes| io::Write::write_all(&mut chunks, bytes).unwrap());
        io::Write::flush(&mut chunks).unwrap();
        assert_eq!(chunks.inner.0, [CHUNK_BYTES, CHUNK_BYTES, 150_000 - 2 * CHUNK_BYTES], "{size}");
    }
}

#[test]
fn the_archive_size_has_an_upper_bound_before_it_is_written() {
    // Random names and contents do not compress.
    let random = |n: u32, length: usize| -> Vec<u8> {
        (0_u32..)
            .flat_map(|i| Digest::of(&[n.to_le_bytes(), i.to_le_bytes()].concat()).as_bytes().to_vec())
            .take(length)
            .collect()
    };
    for (name, size) in [(4, 0), (4, 1), (99, 1), (200, 1), (200, 3000)] {
        let mut tree = empty();
        for n in 0..100 {
            let name: Vec<u8> = random(n, name)
                .iter()
                .map(|byte| if matches!(byte, b'/' | b'.') || byte.is_ascii_control() { b'x' } else { *byte })
                .collect();
            tree.add_file(&TreePath::parse(&name).unwrap(), 0o644, &mut random(n + 1000, size).as_slice()).unwrap();
        }
        let resolved = resolve(&tree, &TreePath::root()).unwrap();
        let mut bytes = Vec::new();
        resolved.write(&mut bytes).unwrap();
        let minimum_bound = 100 * (size as u64 + 1024);
        assert!(
            resolved.max_archive_bytes() >= bytes.len() as u64 && resolved.max_archive_bytes() >= minimum_bound,
            "{} for {}",
            resolved.max_archive_bytes(),
            bytes.len()
        );
    }
}

#[test]
fn headers_contain_nothing_about_this_machine_and_entries_are_sorted() {
    let (bytes, _) = packed(&sample(), "").unwrap();
    // Flags, time and extra flags are zero, and the system is "unknown".
    assert_eq!(bytes[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
    let mut archive = ::tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
    let mut names = Vec::new();
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 0));
        assert_eq!((header.username_bytes(), header.groupname_bytes()), (Some(&b""[..]), Some(&b""[..])));
        names.push(entry.path().unwrap().as_os_str().as_bytes().to_vec());
    }
    assert!(names.contains(&[&[b'f'; 200][..], b"/", &[b'g'; 200]].concat()));
    let mut sorted: Vec<_> = names.iter().map(|name| name.strip_suffix(b"/").unwrap_or(name)).collect();
    sorted.sort_unstable();
    assert!(names.iter().map(|name| name.strip_suffix(b"/").unwrap_or(name)).eq(sorted));
}

#[test]
fn permission_bits_are_preserved_and_owners_can_always_read() {
    let items = [File("a", 0o755, ""), File("b", 0o4640, ""), File("c", 0o000, ""), Folder("d")];
    assert_eq!(repacked_listing(&items, ""), ["a 755 ", "b 640 ", "c 400 ", "d/"]);
}

#[test]
fn the_tree_digest_matches_its_definition() {
    let tree = tree_of(&[File("b", 0o755, "two"), File("a/x", 0o600, "one")]);
    let mut hashed = b"larder tree 1\nda\0fa/x\0".to_vec();
    hashed.extend(Digest::of(b"one").as_bytes());
    hashed.extend(b"xb\0");
    hashed.extend(Digest::of(b"two").as_bytes());
    assert_eq!(packed(&tree, "").unwrap().1.tree_digest, Digest::of(&hashed));
}

#[test]
fn the_tree_digest_changes_only_with_names_contents_and_executable_bits() {
    let digest = |items: &[Item<'_>]| packed(&tree_of(items), "").unwrap().1.tree_digest;
    let original = digest(&[File("a", 0o644, "x"), Folder("d")]);
    for same in [
        &[Folder("d"), File("a", 0o644, "x")][..],
        &[File("a", 0o600, "x"), Folder("d")],
        &[File("a", 0o644, "x"), Folder("d"), Link("gone", "nowhere")],
    ] {
        assert_eq!(digest(same), original);
    }
    for changed in [
        &[File("a", 0o755, "x"), Folder("d")][..],
        &[File("a", 0o644, "y"), Folder("d")],
        &[File("b", 0o644, "x"), Folder("d")],
        &[File("a", 0o644, "x")],
        &[File("a", 0o644, "x"), File("d", 0o644, "")],
    ] {
        assert_ne!(digest(changed), original);
    }
    let linked = digest(&[File("m/x", 0o644, "1"), Link("n", "m")]);
    assert_eq!(linked, digest(&[File("m/x", 0o644, "1"), File("n/x", 0o644, "1")]));
}

#[test]
fn links_become_copies_of_their_targets() {
    let items = [
        File("top/real", 0o755, "1"),
        File("top/m/x", 0o644, "2"),
        Link("top/one", "real"),
        Link("top/m/up", "../one"),
        Link("top/folder", "./m/"),
        Link("top/through", "folder/../folder/x"),
        Link("top/outside", "../other/y"),
        File("other/y", 0o644, "3"),
    ];
    let expected = [
        "folder/",
        "folder/up 755 1",
        "folder/x 644 2",
        "m/",
        "m/up 755 1",
        "m/x 644 2",
        "one 755 1",
        "outside 644 3",
        "real 755 1",
        "through 644 2",
    ];
    assert_eq!(repacked_listing(&items, "top"), expected);
}

#[test]
fn a_link_in_a_copied_folder_keeps_its_target() {
    let items = [File("a/x", 0o644, "1"), Link("a/y", "x"), Link("b", "a"), Link("c", "b/y"), Link("d/e", "../b")];
    let expected = [
        "a/",
        "a/x 644 1",
        "a/y 644 1",
        "b/",
        "b/x 644 1",
        "b/y 644 1",
        "c 644 1",
        "d/",
        "d/e/",
        "d/e/x 644 1",
        "d/e/y 644 1",
    ];
    assert_eq!(repacked_listing(&items, ""), expected);
}

#[test]
fn a_link_out_of_the_package_is_dropped_and_noted() {
    let dropped = |items: &[Item<'_>]| {
        let (bytes, packed) = packed(&tree_of(items), "").unwrap();
        (listing(&unpacked(&bytes)), packed.notes)
    };
    for (link, target) in
        [("l", "/etc/passwd"), ("l", ".."), ("d/l", "../../x"), ("d/l", "nothing/../../../x"), ("l", "d/../../x")]
    {
        let (entries, notes) = dropped(&[File("d/x", 0o644, ""), Link(link, target)]);
        assert_eq!(entries, ["d/", "d/x 644 "], "{target}");
        assert_eq!(notes, [format!("the link {link} leads out of the package, and is left out")], "{target}");
    }
    // The path leads through another link, as in a file system.
    let (entries, notes) = dropped(&[File("a/b/x", 0o644, ""), Link("s", "a/b"), Link("l", "s/../../../x")]);
    assert_eq!(entries, ["a/", "a/b/", "a/b/x 644 ", "s/", "s/x 644 "]);
    assert_eq!(notes, ["the link l leads out of the package, and is left out"]);
}

#[test]
fn a_dangling_link_is_dropped_and_noted() {
    let tree = tree_of(&[File("a", 0o644, ""), Link("d/l", "../nothing"), Link("m", "a/below-a-file")]);
    let (bytes, packed) = packed(&tree, "").unwrap();
    assert_eq!(listing(&unpacked(&bytes)), ["a 644 ", "d/"]);
    let note = |link| format!("the link {link} has no target, and is left out");
    assert_eq!(packed.notes, [note("d/l"), note("m")]);

    let names: Vec<String> = (0..30).map(|n| format!("l{n:02}")).collect();
    let many: Vec<_> = names.iter().map(|name| Link(name, "nothing")).chain([File("a", 0o644, "")]).collect();
    let notes = super::pack(&tree_of(&many), &TreePath::root(), &mut io::sink()).unwrap().notes;
    assert_eq!((notes.len(), notes[20].as_str()), (21, "10 more links have no target, and are left out"));
}

#[test]
fn circular_links_are_dropped_and_noted() {
    for (links, names) in [(&[Link("a", "a")][..], &["a"][..]), (&[Link("a", "b"), Link("b", "a")], &["a", "b"])] {
        let items = [&[File("x", 0o644, "")][..], links].concat();
        let (bytes, packed) = packed(&tree_of(&items), "").unwrap();
        assert_eq!(listing(&unpacked(&bytes)), ["x 644 "]);
        let note = |name: &&str| format!("the link {name} leads in a circle, and is left out");
        assert_eq!(packed.notes, names.iter().map(note).collect::<Vec<_>>());
    }
}

#[test]
fn a_link_to_a_folder_that_contains_it_is_dropped_and_noted() {
    for (items, remaining, dropped) in [
        (&[File("a/x", 0o644, ""), Link("a/l", ".")][..], &["a/", "a/x 644 "][..], &["a/l"][..]),
        (&[File("a/x", 0o644, ""), Link("a/l", "../a")], &["a/", "a/x 644 "], &["a/l"]),
        (&[File("a/b/x", 0o644, ""), Link("a/b/l", "../..")], &["a/", "a/b/", "a/b/x 644 "], &["a/b/l"]),
        (
            &[File("a/x", 0o644, ""), File("b/y", 0o644, ""), Link("a/l", "../b"), Link("b/l", "../a")],
            &["a/", "a/l/", "a/l/y 644 ", "a/x 644 ", "b/", "b/l/", "b/l/x 644 ", "b/y 644 "],
            &["a/l", "b/l"],
        ),
    ] {
        let (bytes, packed) = packed(&tree_of(items), "").unwrap();
        assert_eq!(listing(&unpacked(&bytes)), remaining);
        let note = |link| format!("the link {link} points to a folder that contains it, and is left out");
        assert_eq!(packed.notes, dropped.iter().map(note).collect::<Vec<_>>());
    }
}

/// Dangling links add nothing to the archive, so only the work limit can stop this tree.
#[test]
fn many_links_to_a_folder_of_dangling_links_exceed_the_work_limit() {
    let mut tree = Tree::new(tempfile::tempfile().unwrap(), TreeLimits::default());
    let folder = vec!["f".repeat(240); 16].join("/");
    for n in 0..1000 {
        tree.add_symlink(&path(&format!("{folder}/{n}")), b"nothing").unwrap();
    }
    tree.add_symlink(&path("folder"), folder.as_bytes()).unwrap();
    for n in 0..19_000 {
        tree.add_symlink(&path(&format!("l{n}")), b"folder").unwrap();
    }
    assert!(matches!(resolve(&tree, &TreePath::root()), Err(TreeError::TooLarge(_))));
}

#[test]
fn copies_count_towards_the_limits_of_the_tree() {
    // Each folder contains two links to the next, which makes about 2^20 copies.
    let folders: Vec<String> = (0..20).map(|n| format!("f{n:02}")).collect();
    let names: Vec<(String, String, String)> = folders
        .windows(2)
        .map(|pair| (format!("{}/a", pair[0]), format!("{}/b", pair[0]), format!("../{}", pair[1])))
        .collect();
    let items: Vec<_> = names.iter().flat_map(|(a, b, to)| [Link(a, to), Link(b, to)]).chain([Folder("f19")]).collect();
    assert!(matches!(packed(&tree_of(&items), ""), Err(TreeError::TooLarge(_))));

    let large = "x".repeat(1000);
    let names: Vec<String> = (0..900).map(|n| format!("l{n}")).collect();
    let links = || names.iter().map(|name| Link(name, "large"));
    assert!(packed(&tree_of(&links().chain([File("large", 0o644, &large)]).collect::<Vec<_>>()), "").is_ok());
    let larger = "x".repeat(2000);
    let items: Vec<_> = links().chain([File("large", 0o644, &larger)]).collect();
    assert!(matches!(packed(&tree_of(&items), ""), Err(TreeError::TooLarge(_))));
}

#[test]
fn only_the_git_folder_of_the_root_is_left_out() {
    let items = [
        File("top/.git/HEAD", 0o644, ""),
        File("top/a/.git/HEAD", 0o644, ""),
        File(".git", 0o644, ""),
        Link("top/b", "a"),
    ];
    assert_eq!(
        repacked_listing(&items, "top"),
        ["a/", "a/.git/", "a/.git/HEAD 644 ", "b/", "b/.git/", "b/.git/HEAD 644 "]
    );
}

#[test]
fn the_root_must_be_an_existing_folder() {
    let tree = tree_of(&[File("a", 0o644, "")]);
    for root in ["a", "b"] {
        assert!(matches!(packed(&tree, root), Err(TreeError::Refused { .. })), "{root}");
    }
}

#[test]
fn names_that_are_not_utf8_are_preserved() {
    let mut tree = empty();
    let name = TreePath::parse(&[&b"caf\xe9/"[..], &[0xff; 120]].concat()).unwrap();
    tree.add_file(&name, 0o644, &mut &b"1"[..]).unwrap();
    assert!(unpacked(&packed(&tree, "").unwrap().0).get(&name).is_some());
}

#[derive(Debug, Clone)]
enum TreeStep {
    File(Vec<String>, bool, Vec<u8>),
    Folder(Vec<String>),
    Link(Vec<String>, String),
}

fn tree_steps() -> impl Strategy<Value = TreeStep> {
    let name = || prop_oneof![4 => "[a-c]{1,2}", 1 => "[a-z]{60,120}", 1 => "\\PC{1,8}".prop_map(|name| name.replace(['/', '.', '\0'], "_"))];
    let names = move || prop::collection::vec(name(), 1..4);
    prop_oneof![
        3 => (names(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..1200)).prop_map(|(n, x, c)| TreeStep::File(n, x, c)),
        1 => names().prop_map(TreeStep::Folder),
        1 => (names(), "(\\.\\./|[a-c]/){0,3}[a-c]{1,2}").prop_map(|(n, to)| TreeStep::Link(n, to)),
    ]
}

proptest! {
    #[test]
    fn a_packed_tree_unpacks_to_the_same_tree(items in prop::collection::vec(tree_steps(), 1..12)) {
        let mut tree = empty();
        let mut has_links = false;
        for item in &items {
            // The tree refuses names that clash, which is not an error here.
            let _ = match item {
                TreeStep::File(names, is_executable, bytes) => {
                    tree.add_file(&path(&names.join("/")), if *is_executable { 0o755 } else { 0o644 }, &mut bytes.as_slice()).map(drop)
                }
                TreeStep::Folder(names) => tree.add_folder(&path(&names.join("/"))),
                TreeStep::Link(names, to) => tree.add_symlink(&path(&names.join("/")), to.as_bytes()).map(|()| has_links = true),
            };
        }
        let (bytes, first) = packed(&tree, "").unwrap();
        let (again, second) = packed(&tree, "").unwrap();
        prop_assert_eq!((&bytes, &first), (&again, &second));

        let mut unpacked_tree = empty();
        match unpack(ArchiveFormat::TarGz, io::Cursor::new(&bytes), &mut unpacked_tree) {
            Ok(()) => {}
            Err(TreeError::Refused { reason, .. }) if reason.contains("on Windows") => return Ok(()),
            Err(TreeError::Unreadable(reason)) if reason.contains("no file") => return Ok(()),
            Err(e) => return Err(TestCaseError::fail(e.to_string())),
        }
        prop_assert!(unpacked_tree.entries().all(|(_, entry)| !matches!(entry, TreeEntry::Link(_))));
        for (path, entry) in tree.entries().filter(|(_, entry)| !matches!(entry, TreeEntry::Link(_))) {
            let unpacked_entry = unpacked_tree.get(path).expect("every entry is in the unpacked tree");
            prop_assert_eq!(content(&tree, entry), content(&unpacked_tree, unpacked_entry));
        }
        prop_assert!(has_links || tree.entries().count() == unpacked_tree.entries().count());
        let (repacked, third) = packed(&unpacked_tree, "").unwrap();
        prop_assert_eq!((repacked, third.tree_digest), (bytes, first.tree_digest));
    }
}
