//! HTTP/2 frames as bytes, for misbehaving clients that no client library can play.

use bytes::{BufMut, Bytes, BytesMut};

/// The connection preface of a client and an empty SETTINGS frame.
pub(crate) fn preface() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat()
}

/// Opens flow control: the largest SETTINGS_INITIAL_WINDOW_SIZE for streams, and a WINDOW_UPDATE for the connection.
pub(crate) fn open_windows() -> Vec<u8> {
    [frame(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]), frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes())].concat()
}

/// One frame (RFC 9113, section 4.1).
pub(crate) fn frame(frame_type: u8, flags: u8, stream: u32, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_uint(payload.len() as u64, 3);
    frame.put_slice(&[frame_type, flags]);
    frame.put_u32(stream);
    frame.put_slice(payload);
    frame.freeze()
}

/// The HEADERS frame of a GET request that ends its stream, in HPACK without the dynamic table (RFC 7541). The path
/// must have at least 127 bytes: its length is written as an integer that does not fit its seven-bit prefix.
pub(crate) fn get_request_frame(stream: u32, path: &str) -> Bytes {
    assert!(path.len() >= 127, "the path has fewer than 127 bytes: {path}");
    // `:method: GET`, `:scheme: http`, and `:path` as a literal whose length prefix is full.
    let mut header_block = vec![0x82, 0x86, 0x04, 0x7f];
    // What the prefix does not hold follows in groups of seven bits (RFC 7541, section 5.1).
    let mut remaining_length = path.len() - 127;
    while remaining_length >= 128 {
        header_block.push((remaining_length % 128) as u8 | 0x80);
        remaining_length /= 128;
    }
    header_block.push(remaining_length as u8);
    header_block.extend_from_slice(path.as_bytes());
    header_block.extend_from_slice(&[0x01, 1, b'x']);
    frame(1, 0x5, stream, &header_block)
}
