//! Frames of HTTP/2 as bytes, for clients that no library would let be so rude.

use bytes::{BufMut, Bytes, BytesMut};

/// The preface of a connection and our empty SETTINGS.
pub(crate) fn preface() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat()
}

/// Lets everything come: SETTINGS_INITIAL_WINDOW_SIZE as large as may be, and as much for the connection.
pub(crate) fn open_windows() -> Vec<u8> {
    [frame(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]), frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes())].concat()
}

/// A frame of HTTP/2 (RFC 9113 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_uint(payload.len() as u64, 3);
    frame.put_slice(&[kind, flags]);
    frame.put_u32(stream);
    frame.put_slice(payload);
    frame.freeze()
}

/// HEADERS of a GET (RFC 7541, indexed by the static table only).
pub(crate) fn get_frame(stream: u32, path: &str) -> Bytes {
    assert!(path.len() >= 127, "the path has fewer than 127 bytes: {path}");
    let mut block = vec![0x82, 0x86, 0x04, 0x7f];
    // A length of seven bits, and the rest of it in the bytes after.
    let mut rest = path.len() - 127;
    while rest >= 128 {
        block.push((rest % 128) as u8 | 0x80);
        rest /= 128;
    }
    block.push(rest as u8);
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(&[0x01, 1, b'x']);
    frame(1, 0x5, stream, &block)
}
