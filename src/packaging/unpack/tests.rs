//! Unpacks archives of every format, well-formed and hostile.

use std::io::{Cursor, Write};

use ::tar::{EntryType, Header};
use ::zip::write::{SimpleFileOptions, ZipWriter};
use liblzma::stream::{Check, Stream};
use liblzma::write::XzEncoder;
use proptest::prelude::*;

use super::*;
use crate::packaging::{TreeEntry, TreeLimits, TreePath};

const LIMITS: TreeLimits = TreeLimits { entries: 100, bytes: 100_000, file_bytes: 200_000 };

fn path(text: &str) -> TreePath {
    TreePath::parse(text.as_bytes()).unwrap()
}

fn unpacked(format: ArchiveFormat, archive: &[u8]) -> Result<Tree, TreeError> {
    let mut tree = Tree::new(tempfile::tempfile().unwrap(), LIMITS);
    unpack(format, Cursor::new(archive), &mut tree).map(|()| tree)
}

fn read(tree: &Tree, name: &str) -> String {
    let Some(TreeEntry::File(file)) = tree.get(&path(name)) else { panic!("{name}: {:?}", tree.get(&path(name))) };
    let mut text = String::new();
    tree.contents(file).read_to_string(&mut text).unwrap();
    text
}

fn mode(tree: &Tree, name: &str) -> u32 {
    let Some(TreeEntry::File(file)) = tree.get(&path(name)) else { panic!("{name}") };
    file.mode
}

/// Builds a tar entry by entry, malformed ones included.
#[derive(Default)]
struct TarBuilder(Vec<u8>);

impl TarBuilder {
    /// Adds an entry; `change` alters its header.
    fn with(mut self, kind: EntryType, name: &[u8], content: &[u8], change: impl FnOnce(&mut Header)) -> Self {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.set_entry_type(kind);
        change(&mut header);
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.with(EntryType::Regular, name.as_bytes(), content.as_bytes(), |_| {})
    }

    /// Adds an entry of this type without contents.
    fn empty_entry(self, kind: EntryType, name: &str) -> Self {
        self.with(kind, name.as_bytes(), b"", |_| {})
    }

    fn link(self, kind: EntryType, name: &str, target: &str) -> Self {
        self.with(kind, name.as_bytes(), b"", |header| {
            header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes())
        })
    }

    fn pax(self, kind: EntryType, records: &[(&str, &str)]) -> Self {
        let record = |(key, value): &(&str, &str)| {
            let key_value = format!(" {key}={value}\n");
            // The length counts its own digits too.
            let length = (1..)
                .map(|digits| key_value.len() + digits)
                .find(|length| length.to_string().len() + key_value.len() == *length);
            format!("{}{key_value}", length.unwrap())
        };
        let text: String = records.iter().map(record).collect();
        self.with(kind, b"pax_header", text.as_bytes(), |_| {})
    }

    fn tar(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }

    fn gz(self) -> Vec<u8> {
        gz(&self.tar())
    }
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bz2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8], check: Check) -> Vec<u8> {
    xz_of_blocks(bytes, check, bytes.len())
}

/// The same in blocks of so many bytes.
fn xz_of_blocks(bytes: &[u8], check: Check, block_bytes: usize) -> Vec<u8> {
    let stream = Stream::new_easy_encoder(1, check).unwrap();
    let mut encoder = XzEncoder::new_stream(Vec::new(), stream);
    for block in bytes.chunks(block_bytes) {
        encoder.write_all(block).unwrap();
        encoder.flush().unwrap();
    }
    encoder.finish().unwrap()
}

fn sample() -> TarBuilder {
    TarBuilder::default()
        .pax(EntryType::XGlobalHeader, &[("comment", "0123abc")])
        .empty_entry(EntryType::Directory, "./")
        .empty_entry(EntryType::Directory, "./repo/")
        .with(EntryType::Regular, b"./repo/run.sh", b"#!/bin/sh\n", |header| header.set_mode(0o106_755))
        .file("repo/modules/x/main.tf", "# x\n")
        .link(EntryType::Symlink, "repo/link", "../outside")
        .link(EntryType::Link, "repo/hard", "repo/run.sh")
}

/// Asserts that a tree has the entries of `sample`.
fn assert_is_sample(tree: &Tree) {
    let names: Vec<_> = tree.entries().map(|(path, _)| path.to_string()).collect();
    let expected =
        ["repo", "repo/hard", "repo/link", "repo/modules", "repo/modules/x", "repo/modules/x/main.tf", "repo/run.sh"];
    assert_eq!(names, expected);
    assert_eq!(mode(tree, "repo/run.sh"), 0o755);
    assert_eq!((read(tree, "repo/hard").as_str(), read(tree, "repo/link").as_str()), ("", ""));
}

#[test]
fn a_tar_is_unpacked_from_every_compression() {
    let tar = sample().tar();
    assert_is_sample(&unpacked(ArchiveFormat::TarGz, &gz(&tar)).unwrap());
    assert_is_sample(&unpacked(ArchiveFormat::TarBz2, &bz2(&tar)).unwrap());
    for check in [Check::None, Check::Crc32, Check::Crc64, Check::Sha256] {
        assert_is_sample(&unpacked(ArchiveFormat::TarXz, &xz(&tar, check)).unwrap());
        assert_is_sample(&unpacked(ArchiveFormat::TarXz, &xz_of_blocks(&tar, check, 1000)).unwrap());
    }
}

#[test]
fn concatenated_streams_are_read_as_one() {
    let tar = sample().tar();
    let (first, second) = tar.split_at(700);
    assert_is_sample(&unpacked(ArchiveFormat::TarGz, &[gz(first), gz(b""), gz(second)].concat()).unwrap());
    assert_is_sample(&unpacked(ArchiveFormat::TarBz2, &[bz2(first), bz2(b""), bz2(second)].concat()).unwrap());
    let streams = [xz(first, Check::Crc64), vec![0; 8], xz(second, Check::Crc64), vec![0; 4]].concat();
    assert_is_sample(&unpacked(ArchiveFormat::TarXz, &streams).unwrap());
}

#[test]
fn a_truncated_archive_is_refused_at_every_length() {
    let tar = sample().tar();
    for (format, bytes) in [
        (ArchiveFormat::TarGz, gz(&tar)),
        (ArchiveFormat::TarBz2, bz2(&tar)),
        (ArchiveFormat::TarXz, xz_of_blocks(&tar, Check::Crc32, 1000)),
        (ArchiveFormat::Zip, zip(&[("a/b", b"content")])),
    ] {
        assert!(unpacked(format, &bytes).is_ok());
        for length in 0..bytes.len() {
            assert!(unpacked(format, &bytes[..length]).is_err(), "{format:?} {length}");
        }
    }
}

#[test]
fn damage_is_detected_by_the_checksums() {
    let tar = sample().tar();
    for (format, bytes) in [
        (ArchiveFormat::TarGz, gz(&tar)),
        (ArchiveFormat::TarBz2, bz2(&tar)),
        (ArchiveFormat::TarXz, xz(&tar, Check::Crc64)),
    ] {
        let mut refused = 0;
        for index in 12..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x10;
            // A few bits carry no information, for example the length of an unused code.
            match unpacked(format, &damaged) {
                Ok(tree) => assert_is_sample(&tree),
                Err(_) => refused += 1,
            }
        }
        assert!(refused * 10 > (bytes.len() - 12) * 9, "{format:?} {refused}");
    }
}

#[test]
fn a_wrong_xz_checksum_is_detected() {
    let tar = sample().tar();
    let mut crc = flate2::Crc::new();
    crc.update(&tar);
    for (check, sum) in [
        (Check::Crc32, crc.sum().to_le_bytes().to_vec()),
        (Check::Sha256, crate::digest::Digest::of(&tar).as_bytes().to_vec()),
    ] {
        let mut stream = xz(&tar, check);
        let offset = stream.windows(sum.len()).position(|window| window == sum).unwrap();
        stream[offset] ^= 1;
        let refused = unpacked(ArchiveFormat::TarXz, &stream).unwrap_err().to_string();
        assert!(refused.contains("its xz is damaged"), "{refused}");
    }
}

#[test]
fn a_tar_may_lack_its_end_marker_but_not_the_end_of_a_file() {
    let tar = TarBuilder::default().file("a", "one").0;
    assert!(unpacked(ArchiveFormat::TarGz, &gz(&tar)).is_ok());
    let long = "x".repeat(600);
    let tar = TarBuilder::default().file("a", &long).0;
    for length in [512, 513, 1111] {
        assert!(unpacked(ArchiveFormat::TarGz, &gz(&tar[..length])).is_err(), "{length}");
    }
}

#[test]
fn a_tar_can_be_cut_between_entries_only() {
    let (first, second) = (TarBuilder::default().file("a", "one").0, TarBuilder::default().file("b", "two").0);
    let tar = [&first[..], &second].concat();
    let accepted: Vec<usize> =
        (0..=tar.len()).filter(|length| unpacked(ArchiveFormat::TarGz, &gz(&tar[..*length])).is_ok()).collect();
    assert_eq!(accepted, [first.len(), tar.len()]);
}

/// Some tar programs write the size of the target into the header of a link. Go reads no contents for these kinds. A
/// reader that skipped that many bytes would hide the entries in them.
#[test]
fn a_link_or_a_folder_has_no_contents_whatever_size_its_header_claims() {
    for kind in [EntryType::Symlink, EntryType::Link, EntryType::Directory] {
        let tar = TarBuilder::default()
            .file("target", "x")
            .with(kind, b"other", b"", |header| {
                header.as_old_mut().linkname[..6].copy_from_slice(b"target");
                header.set_size(1024);
            })
            .file("next", "y");
        assert_eq!(read(&unpacked(ArchiveFormat::TarGz, &tar.gz()).unwrap(), "next"), "y", "{kind:?}");
    }
}

/// Tar programs read other sizes from these fields, or refuse them as Go does.
#[test]
fn a_size_that_is_negative_too_large_or_not_octal_is_refused() {
    let with_size = |field: &[u8; 12]| {
        let tar = TarBuilder::default().with(EntryType::Regular, b"a", b"one", |h| h.as_old_mut().size = *field);
        unpacked(ArchiveFormat::TarGz, &tar.gz())
    };
    assert!(with_size(b"\x80\0\0\0\0\0\0\0\0\0\0\x03").is_ok());
    assert!(with_size(b"  3\0\0\0\0\0\0\0\0\0").is_ok());
    for field in [
        b"\x80\0\0\x01\0\0\0\0\0\0\0\x03",
        b"\x81\0\0\0\0\0\0\0\0\0\0\x03",
        b"\xff\xff\xff\xff\0\0\0\0\0\0\0\x03",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"+0000000003\0",
        b"-0000000003\0",
        b"\t000000003\0\0",
        b"00000000003x",
        b"00000000008\0",
        b"777777777777",
    ] {
        assert!(with_size(field).is_err(), "{field:?}");
    }
}

/// Go, in which the clients are written, accepts after a first zero block only a second one, and anything after that.
#[test]
fn data_after_the_end_of_a_tar_is_handled_as_in_go() {
    let file_a = || TarBuilder::default().file("a", "one").0;
    let unpacked_with_suffix =
        |suffix: &[&[u8]]| unpacked(ArchiveFormat::TarGz, &gz(&[file_a(), suffix.concat()].concat()));
    let (zeros, file_b) = (&[0; 512][..], &TarBuilder::default().file("b", "two").0[..]);
    for accepted in [&[][..], &[zeros], &[zeros, zeros], &[zeros, zeros, file_b], &[zeros, zeros, b"rest"]] {
        let tree = unpacked_with_suffix(accepted).unwrap();
        assert_eq!(tree.entries().count(), 1);
    }
    for refused in [&[zeros, file_b][..], &[zeros, b"rest"], &[zeros, &zeros[1..]]] {
        assert!(
            matches!(unpacked_with_suffix(refused), Err(TreeError::Unreadable(why)) if why.contains("data after its end"))
        );
    }
}

#[test]
fn extension_headers_have_the_same_precedence_as_in_go() {
    let gnu =
        |builder: TarBuilder, kind, name: &[u8]| builder.with(kind, b"././@LongLink", &[name, b"\0"].concat(), |_| {});
    let with_gnu_path = |builder| gnu(builder, EntryType::GNULongName, b"gnu");
    let with_pax_path = |builder: TarBuilder| builder.pax(EntryType::XHeader, &[("path", "pax")]);
    let nothing = [("path", ""), ("linkpath", ""), ("size", "")];
    for (builder, name) in [
        (with_gnu_path(with_pax_path(TarBuilder::default())), "gnu"),
        (with_pax_path(with_gnu_path(TarBuilder::default())), "gnu"),
        (with_pax_path(gnu(TarBuilder::default(), EntryType::GNULongName, b"")), "pax"),
        (TarBuilder::default().pax(EntryType::XHeader, &nothing), "short"),
        (TarBuilder::default().pax(EntryType::XHeader, &[("path", "pax"), ("path", "")]), "short"),
        (with_pax_path(TarBuilder::default()).pax(EntryType::XHeader, &[("mtime", "1")]), "short"),
    ] {
        let tree = unpacked(ArchiveFormat::TarGz, &builder.file("short", "1").gz()).unwrap();
        assert_eq!(read(&tree, name), "1");
    }
}

#[test]
fn long_names_are_read_from_gnu_and_pax_headers() {
    let long = format!("{}/{}", "d".repeat(150), "f".repeat(150));
    let gnu = TarBuilder::default()
        .with(EntryType::GNULongName, b"././@LongLink", format!("{long}\0").as_bytes(), |_| {})
        .file("short", "1");
    assert_eq!(read(&unpacked(ArchiveFormat::TarGz, &gnu.gz()).unwrap(), &long), "1");
    let pax = TarBuilder::default()
        .pax(EntryType::XHeader, &[("path", &long), ("mtime", "1.5"), ("size", "1")])
        .file("short", "1")
        .file("other", "2");
    let tree = unpacked(ArchiveFormat::TarGz, &pax.gz()).unwrap();
    assert_eq!((read(&tree, &long).as_str(), read(&tree, "other").as_str()), ("1", "2"));
    let target = "t/".repeat(100);
    for builder in [
        TarBuilder::default().with(EntryType::GNULongLink, b"././@LongLink", format!("{target}\0").as_bytes(), |_| {}),
        TarBuilder::default().pax(EntryType::XHeader, &[("linkpath", &target)]),
    ] {
        let tree = unpacked(ArchiveFormat::TarGz, &builder.link(EntryType::Symlink, "l", "short").gz()).unwrap();
        assert_eq!(read(&tree, "l"), "");
    }
}

/// Observed with Terraform 1.11.4, and compared with the real client in `tests/it/modules_archives.rs`.
#[test]
fn whatever_is_no_folder_is_a_file_and_the_last_of_a_name_counts() {
    let odd = [
        (EntryType::Char, "char"),
        (EntryType::Block, "block"),
        (EntryType::Fifo, "fifo"),
        (EntryType::Symlink, "symlink"),
        (EntryType::Link, "hard"),
    ];
    let builder = odd.into_iter().fold(TarBuilder::default(), |builder, (kind, name)| builder.link(kind, name, "/etc"));
    let builder = builder.with(EntryType::new(b'V'), b"label", b"its own", |_| {});
    let builder = builder.file("a", "1").file("A", "2").file("./a", "3").file("e\u{301}", "4").file("\u{e9}", "5");
    let tree = unpacked(ArchiveFormat::TarGz, &builder.gz()).unwrap();
    for (_, name) in odd {
        assert_eq!(read(&tree, name), "", "{name}");
    }
    let folder = TarBuilder::default().with(EntryType::Regular, b"sub", b"", |header| header.set_mode(0o040_755));
    let tree_with_folder = unpacked(ArchiveFormat::TarGz, &folder.file("sub/main.tf", "1").gz()).unwrap();
    assert_eq!(read(&tree_with_folder, "sub/main.tf"), "1");
    let others = ["label", "a", "A", "e\u{301}", "\u{e9}"].map(|name| read(&tree, name));
    assert_eq!(others, ["its own", "3", "2", "4", "5"]);
}

#[test]
fn hostile_tars_are_refused_with_the_name_of_the_entry() {
    let wide = "y".repeat(300);
    for (builder, name, expected) in [
        (TarBuilder::default().file("../escape", "x"), "../escape", "contains .."),
        (TarBuilder::default().file("a/../../escape", "x"), "a/../../escape", "contains .."),
        (TarBuilder::default().file("/etc/cron.d/x", "x"), "/etc/cron.d/x", "absolute"),
        (TarBuilder::default().pax(EntryType::XHeader, &[("path", "../pax")]).file("x", "x"), "../pax", "contains .."),
        (TarBuilder::default().pax(EntryType::XHeader, &[("path", &wide)]).file("x", "x"), "yyy", "255 bytes"),
        (TarBuilder::default().empty_entry(EntryType::GNUSparse, "holes"), "holes", "sparse"),
        (
            TarBuilder::default().pax(EntryType::XHeader, &[("GNU.sparse.major", "1")]).file("holes", "x"),
            "holes",
            "sparse",
        ),
        (TarBuilder::default().pax(EntryType::XHeader, &[("size", "2")]).file("a", "x"), "a", "two different sizes"),
        (TarBuilder::default().file("a", "1").file("a/b", "2"), "a/b", "is not a folder"),
        (TarBuilder::default().empty_entry(EntryType::Directory, "a/").file("a", "2"), "a", "same name"),
        (TarBuilder::default().file("a\\..\\..\\escape", "x"), "a\\..", "contains .. on Windows"),
        (TarBuilder::default().file("a/..\\escape", "x"), "a/..", "contains .. on Windows"),
        (TarBuilder::default().file("C:escape", "x"), "C:escape", "absolute on Windows"),
        (TarBuilder::default().file("./c:/escape", "x"), "./c:/", "absolute on Windows"),
        (TarBuilder::default().file("\\escape", "x"), "\\escape", "absolute on Windows"),
        (TarBuilder::default().file("\\\\host\\share", "x"), "\\\\host", "absolute on Windows"),
        // A file unpacked through a link would land outside the tree.
        (TarBuilder::default().link(EntryType::Symlink, "l", "/etc").file("l/x", "x"), "l/x", "is not a folder"),
        (TarBuilder::default().file("d/", "content"), "d/", "is a folder, but has content"),
    ] {
        let refused = unpacked(ArchiveFormat::TarGz, &builder.gz()).unwrap_err();
        let TreeError::Refused { entry, reason } = &refused else { panic!("{name}: {refused:?}") };
        assert!(entry.starts_with(name) && reason.contains(expected), "{name}: {refused}");
    }
}

#[test]
fn a_tar_without_a_file_is_an_error() {
    for builder in [TarBuilder::default(), TarBuilder::default().empty_entry(EntryType::Directory, "d/")] {
        assert!(matches!(unpacked(ArchiveFormat::TarGz, &builder.gz()), Err(TreeError::Unreadable(_))));
    }
}

#[test]
fn decompression_bombs_are_limited_by_output_size() {
    let zeros = "\0".repeat(100_001);
    let refused = |builder: TarBuilder| unpacked(ArchiveFormat::TarGz, &builder.gz()).unwrap_err();
    assert!(matches!(refused(TarBuilder::default().file("zeros", &zeros)), TreeError::TooLarge(_)));
    let many = (0..101).fold(TarBuilder::default(), |builder, n| builder.file(&format!("f{n}"), ""));
    assert!(matches!(refused(many), TreeError::TooLarge(_)));
    let same = (0..101).fold(TarBuilder::default(), |builder, _| builder.empty_entry(EntryType::Directory, "d/"));
    assert!(matches!(refused(same), TreeError::TooLarge(_)));
    let deep = TarBuilder::default().pax(EntryType::XHeader, &[("path", &"d/".repeat(1000))]).file("x", "");
    assert!(matches!(refused(deep), TreeError::TooLarge(_)));
    // Bytes that belong to no file count too: an extension header, a skipped header, padding after the end.
    let extension =
        TarBuilder::default().with(EntryType::GNULongName, b"L", &[b'x'; (1 << 20) + 1], |_| {}).file("x", "");
    assert!(matches!(refused(extension), TreeError::TooLarge(_)));
    let skipped =
        TarBuilder::default().with(EntryType::XGlobalHeader, b"g", &vec![b'x'; 3 << 20], |_| {}).file("x", "");
    assert!(matches!(refused(skipped), TreeError::Unreadable(_)));
    let mut after = TarBuilder::default().file("x", "").tar();
    after.resize(3 << 20, 0);
    assert!(matches!(unpacked(ArchiveFormat::TarGz, &gz(&after)), Err(TreeError::Unreadable(_))));
    assert!(matches!(
        unpacked(ArchiveFormat::TarBz2, &bz2(&after)).and(unpacked(ArchiveFormat::TarBz2, &gz(&after))),
        Err(TreeError::Unreadable(_))
    ));
    let false_size = TarBuilder::default().with(EntryType::Regular, b"x", b"x", |header| header.set_size(u64::MAX / 2));
    assert!(unpacked(ArchiveFormat::TarGz, &false_size.gz()).is_err());
}

/// Sets the size of the dictionary in the header of the first block; 28 is 64 MiB.
fn with_dictionary(mut stream: Vec<u8>, encoded: u8) -> Vec<u8> {
    // The header: size, flags, filter id, size of the filter's properties, properties, and its CRC-32.
    let header = &mut stream[12..];
    let header_size = (usize::from(header[0]) + 1) * 4;
    let (header, sum) = header[..header_size].split_at_mut(header_size - 4);
    let offset = header.windows(2).position(|two| two == [0x21, 1]).unwrap() + 2;
    header[offset] = encoded;
    let mut crc = flate2::Crc::new();
    crc.update(header);
    sum.copy_from_slice(&crc.sum().to_le_bytes());
    stream
}

#[test]
fn an_xz_that_needs_too_much_memory_is_refused() {
    let stream = xz(&sample().tar(), Check::Crc32);
    let with_dictionary = |encoded| unpacked(ArchiveFormat::TarXz, &with_dictionary(stream.clone(), encoded));
    assert_is_sample(&with_dictionary(28).unwrap());
    for encoded in [29, 30, 40] {
        assert!(with_dictionary(encoded).unwrap_err().to_string().contains("more memory"), "{encoded}");
    }
    assert!(with_dictionary(41).is_err());
}

#[test]
fn xz_streams_share_the_memory_of_one_dictionary() {
    // 60 streams of a few bytes, each with a dictionary of 64 MiB.
    let stream = |bytes: &[u8]| with_dictionary(xz(bytes, Check::Crc64), 28);
    let streams: Vec<u8> = sample().tar().chunks(100).flat_map(stream).collect();
    assert_is_sample(&unpacked(ArchiveFormat::TarXz, &streams).unwrap());
}

#[test]
fn a_single_compressed_file_is_refused() {
    for format in [ArchiveFormat::Gz, ArchiveFormat::Bz2, ArchiveFormat::Xz] {
        assert!(matches!(unpacked(format, &gz(b"x")), Err(TreeError::Unreadable(_))));
    }
}

fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in files {
        writer.start_file(*name, SimpleFileOptions::default()).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Sets the creating system and the external attributes of every entry in the central directory.
fn with_system_and_attributes(mut zip: Vec<u8>, system: u8, attributes: u32) -> Vec<u8> {
    for offset in (0..zip.len()).filter(|offset| zip[*offset..].starts_with(b"PK\x01\x02")).collect::<Vec<_>>() {
        zip[offset + 5] = system;
        zip[offset + 38..offset + 42].copy_from_slice(&attributes.to_le_bytes());
    }
    zip
}

#[test]
fn a_zip_is_unpacked_with_its_modes_if_its_system_has_modes() {
    let options = SimpleFileOptions::default();
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    writer.add_directory("repo/empty/", options).unwrap();
    writer.start_file("repo/run.sh", options.unix_permissions(0o4755)).unwrap();
    writer.write_all(b"#!/bin/sh\n").unwrap();
    writer
        .start_file("./repo/large", options.large_file(true).compression_method(::zip::CompressionMethod::Stored))
        .unwrap();
    writer.write_all(b"large").unwrap();
    writer.add_symlink("repo/link", "run.sh", options).unwrap();
    let tree = unpacked(ArchiveFormat::Zip, &writer.finish().unwrap().into_inner()).unwrap();
    assert_eq!(tree.get(&path("repo/empty")), Some(&TreeEntry::Folder));
    assert_eq!((mode(&tree, "repo/run.sh"), mode(&tree, "repo/large")), (0o755, 0o644));
    assert_eq!(read(&tree, "repo/large"), "large");
    assert_eq!((read(&tree, "repo/link").as_str(), mode(&tree, "repo/link")), ("run.sh", 0o777));

    for (system, attributes, expected) in
        [(0, 0x20, 0o644), (0, 0o100_755 << 16, 0o644), (3, 0, 0o644), (3, 0o100_600 << 16, 0o600)]
    {
        let tree =
            unpacked(ArchiveFormat::Zip, &with_system_and_attributes(zip(&[("a", b"x")]), system, attributes)).unwrap();
        assert_eq!(mode(&tree, "a"), expected, "{system} {attributes:o}");
    }
}

#[test]
fn hostile_zips_are_refused_with_the_name_of_the_entry() {
    let mut encrypted = zip(&[("secret", b"content")]);
    let directory = encrypted.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
    encrypted[directory + 8] |= 1;
    for (bytes, name, expected) in [
        (zip(&[("../escape", b"x")]), "../escape", "contains .."),
        (zip(&[("/absolute", b"x")]), "/absolute", "absolute"),
        (zip(&[("a", b"1"), ("a/b", b"2")]), "a/b", "is not a folder"),
        (encrypted, "secret", "cannot be unpacked"),
    ] {
        let refused = unpacked(ArchiveFormat::Zip, &bytes).unwrap_err();
        let TreeError::Refused { entry, reason } = &refused else { panic!("{name}: {refused:?}") };
        assert!(entry == name && reason.contains(expected), "{name}: {refused}");
    }
}

#[test]
fn the_last_of_the_zips_entries_with_one_name_counts() {
    let renamed = |mut zip: Vec<u8>| {
        for offset in (0..zip.len() - 4).filter(|offset| zip[*offset..].starts_with(b"bbbb")).collect::<Vec<_>>() {
            zip[offset..offset + 4].copy_from_slice(b"aaaa");
        }
        zip
    };
    let tree = unpacked(ArchiveFormat::Zip, &renamed(zip(&[("aaaa", b"1"), ("bbbb", b"2"), ("Aaaa", b"3")]))).unwrap();
    assert_eq!((read(&tree, "aaaa").as_str(), read(&tree, "Aaaa").as_str()), ("2", "3"));
    let tree = unpacked(ArchiveFormat::Zip, &zip(&[("a/b", b"1"), ("a//b", b"2")])).unwrap();
    assert_eq!(read(&tree, "a/b"), "2");
    // The reader has the third entry at the place of the first.
    let spelled = renamed(zip(&[("aaaa", b"1"), ("./aaaa", b"2"), ("bbbb", b"3")]));
    let refused = unpacked(ArchiveFormat::Zip, &spelled).unwrap_err().to_string();
    assert!(refused.contains("in several spellings"), "{refused}");
}

/// The zip crate takes the name from this field (APPNOTE, section 4.6.9), Go from the header. So the crate sees one file here,
/// and Go two.
#[test]
fn a_duplicate_by_a_second_name_is_refused() {
    let unicode_path = |header_name: &[u8], name: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(header_name);
        let length = u16::try_from(name.len() + 5).unwrap().to_le_bytes();
        [b"\x75\x70", &length[..], b"\x01", &crc.sum().to_le_bytes(), name].concat()
    };
    let (mut local, mut directory) = (Vec::new(), Vec::new());
    for (name, extra) in [(b"a.tf", unicode_path(b"a.tf", b"b.tf")), (b"b.tf", Vec::new())] {
        let (offset, extra_length) = (local.len() as u32, extra.len() as u16);
        let common =
            [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &[0; 12], &4_u16.to_le_bytes(), &extra_length.to_le_bytes()]
                .concat();
        local.extend([b"PK\x03\x04", &common[..], name, &extra].concat());
        let end = [&[0; 10][..], &offset.to_le_bytes(), name, &extra].concat();
        directory.extend([b"PK\x01\x02\x14\x03", &common[..], &end].concat());
    }
    let sizes = [(directory.len() as u32).to_le_bytes(), (local.len() as u32).to_le_bytes()].concat();
    let zip = [&local[..], &directory, b"PK\x05\x06\0\0\0\0\x02\0\x02\0", &sizes, b"\0\0"].concat();
    let refused = unpacked(ArchiveFormat::Zip, &zip).unwrap_err().to_string();
    assert!(refused.contains("two of its entries have this name"), "{refused}");
}

#[test]
fn a_zip_with_false_sizes_is_refused() {
    let mut false_size = zip(&[("a", b"content content content")]);
    let directory = false_size.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
    false_size[directory + 24] = 6;
    assert!(unpacked(ArchiveFormat::Zip, &false_size).is_err());

    assert!(matches!(unpacked(ArchiveFormat::Zip, &zip(&[])), Err(TreeError::Unreadable(_))));
    assert!(matches!(unpacked(ArchiveFormat::Zip, &zip(&[("bomb", &[0; 100_001])])), Err(TreeError::TooLarge(_))));
    let names: Vec<String> = (0..101).map(|n| n.to_string()).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    assert!(matches!(unpacked(ArchiveFormat::Zip, &zip(&many)), Err(TreeError::TooLarge(_))));
}

#[test]
fn entries_of_a_zip_that_share_their_bytes_are_refused() {
    let noise: Vec<u8> = (0_u32..1000).flat_map(|n| *crate::digest::Digest::of(&n.to_le_bytes()).as_bytes()).collect();
    let mut zip = zip(&[("aaaa", &noise), ("bbbb", b"")]);
    let header_offsets: Vec<_> = (0..zip.len()).filter(|offset| zip[*offset..].starts_with(b"PK\x01\x02")).collect();
    for field in [10..12, 16..28, 42..46] {
        let copied = zip[header_offsets[0] + field.start..header_offsets[0] + field.end].to_vec();
        zip[header_offsets[1] + field.start..header_offsets[1] + field.end].copy_from_slice(&copied);
    }
    let refused = unpacked(ArchiveFormat::Zip, &zip).unwrap_err().to_string();
    assert!(refused.contains("shares its bytes"), "{refused}");
}

#[test]
fn an_archive_file_is_read_from_its_beginning() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&sample().gz()).unwrap();
    let mut tree = Tree::new(tempfile::tempfile().unwrap(), LIMITS);
    unpack(ArchiveFormat::TarGz, &mut file, &mut tree).unwrap();
    assert_is_sample(&tree);
}

#[test]
fn the_longest_suffix_of_a_path_determines_the_format() {
    for (path, format) in [
        ("/m.zip", Some(ArchiveFormat::Zip)),
        ("/m.tar.gz", Some(ArchiveFormat::TarGz)),
        ("/m.tgz", Some(ArchiveFormat::TarGz)),
        ("/m.gz", Some(ArchiveFormat::Gz)),
        ("/m.tar.bz2", Some(ArchiveFormat::TarBz2)),
        ("/m.tar.tbz2", Some(ArchiveFormat::TarBz2)),
        ("/m.tbz2", Some(ArchiveFormat::TarBz2)),
        ("/m.bz2", Some(ArchiveFormat::Bz2)),
        ("/m.tar.xz", Some(ArchiveFormat::TarXz)),
        ("/m.txz", Some(ArchiveFormat::TarXz)),
        ("/m.xz", Some(ArchiveFormat::Xz)),
        ("/m.tar", None),
        ("/m.tar.zst", None),
        ("/mzip", None),
        ("/m.ZIP", None),
        ("/m.zip/", None),
    ] {
        assert_eq!(ArchiveFormat::of_path(path.as_bytes()), format, "{path}");
    }
    assert_eq!(ArchiveFormat::named("tgz"), Some(ArchiveFormat::TarGz));
    assert_eq!(ArchiveFormat::named("tar"), None);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        for format in [ArchiveFormat::Zip, ArchiveFormat::TarGz, ArchiveFormat::TarBz2, ArchiveFormat::TarXz] {
            prop_assert!(unpacked(format, &bytes).is_err());
        }
        let _ = unpacked(ArchiveFormat::TarGz, &gz(&bytes));
    }

    #[test]
    fn an_archive_with_changed_bytes_never_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let tar = sample().tar();
        let change = |bytes: &[u8]| {
            let mut changed = bytes.to_vec();
            for (offset, to) in &changes {
                changed[offset.index(bytes.len())] = *to;
            }
            changed
        };
        let _ = unpacked(ArchiveFormat::TarGz, &gz(&change(&tar)));
        let _ = unpacked(ArchiveFormat::TarXz, &change(&xz_of_blocks(&tar, Check::None, 1000)));
        let _ = unpacked(ArchiveFormat::TarBz2, &change(&bz2(&tar)));
        let _ = unpacked(ArchiveFormat::Zip, &change(&zip(&[("a/b", b"content"), ("c", &[7; 500])])));
    }
}
