//! Hostile gzip bodies: gzip that unpacks to far more bytes than it has, and gzip that never ends.

use std::io::Write;
use std::sync::OnceLock;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};

const BOMB_BYTES: usize = 256 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// 256 MiB of JSON in about 256 KiB of gzip; made once per test process.
pub(super) fn bomb() -> Bytes {
    static BOMB: OnceLock<Bytes> = OnceLock::new();
    let make = || {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let mut write = |bytes: &[u8]| gzip.write_all(bytes).expect("a write to memory succeeds");
        write(b"{\"padding\":\"");
        (0..BOMB_BYTES / PIECE_BYTES).for_each(|_| write(&[b'a'; PIECE_BYTES]));
        write(b"\"}");
        Bytes::from(gzip.finish().expect("a write to memory succeeds"))
    };
    BOMB.get_or_init(make).clone()
}

/// The header of every gzip stream.
pub(super) fn gzip_header() -> Bytes {
    Bytes::from_static(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255])
}

/// Whole deflate blocks, none of them the last, that can repeat without end.
pub(super) fn nonfinal_blocks() -> Bytes {
    let mut blocks = DeflateEncoder::new(Vec::new(), Compression::fast());
    blocks.write_all(&vec![b'a'; PIECE_BYTES]).expect("a write to memory succeeds");
    // The flush ends the blocks on a byte boundary; they refer to no earlier data.
    blocks.flush().expect("a write to memory succeeds");
    Bytes::from(blocks.get_ref().clone())
}

/// Empty deflate blocks, none of them the last, that can repeat without end.
pub(super) fn empty_blocks() -> Bytes {
    Bytes::from([0, 0, 0, 0xff, 0xff].repeat(12 * 1024))
}
