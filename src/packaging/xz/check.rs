//! The checksums that an xz stream may use for its blocks.

use aws_lc_rs::digest::{Context, SHA256};
use flate2::Crc;

/// The polynomial of ECMA-182, bit-reversed.
const ECMA_182: u64 = 0xc96c_5795_d787_0f42;

const CRC64_TABLE: [u64; 256] = crc64_table();

pub(super) enum Check {
    Nothing,
    Crc32(Crc),
    Crc64(u64),
    Sha256(Box<Context>),
}

impl Check {
    /// Creates the checksum with this id in the stream header. `None` for an unknown id.
    pub(super) fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::Nothing),
            1 => Some(Self::Crc32(Crc::new())),
            4 => Some(Self::Crc64(!0)),
            10 => Some(Self::Sha256(Box::new(Context::new(&SHA256)))),
            _ => None,
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Crc32(crc) => crc.update(bytes),
            Self::Crc64(crc) => {
                for byte in bytes {
                    let [low, ..] = crc.to_le_bytes();
                    *crc = CRC64_TABLE[usize::from(low ^ byte)] ^ (*crc >> 8);
                }
            }
            Self::Sha256(context) => context.update(bytes),
        }
    }

    /// The checksum in the byte order of the stream.
    pub(super) fn finish(self) -> Vec<u8> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Crc32(crc) => crc.sum().to_le_bytes().to_vec(),
            Self::Crc64(crc) => (!crc).to_le_bytes().to_vec(),
            Self::Sha256(context) => context.finish().as_ref().to_vec(),
        }
    }
}

const fn crc64_table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u64;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ ECMA_182 } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_inputs_have_their_known_checksums() {
        for (id, expected) in [(0, ""), (1, "2639f4cb"), (4, "fa3919dfbbc95d99")] {
            let mut check = Check::from_id(id).unwrap();
            check.update(b"12345");
            check.update(b"6789");
            assert_eq!(hex::encode(check.finish()), expected, "{id}");
        }
        assert!(Check::from_id(2).is_none());
    }
}
