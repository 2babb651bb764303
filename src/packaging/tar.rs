//! The reader of untrusted tars, within limits. Which names and kinds of entries are accepted is left to its users. Bundles
//! have a stricter form of their own (`bundle/tar.rs`).

use std::io::{self, Read};

use ::tar::{EntryType, Header};

/// The size of a tar's blocks, in bytes.
pub(super) const BLOCK: usize = 512;
/// The most extension headers for each entry that the limit allows: two of pax, and two of GNU.
const MAX_EXTENSIONS_PER_ENTRY: usize = 4;

/// Limits of a tar that is read.
#[derive(Debug, Clone, Copy)]
pub struct TarLimits {
    /// The most entries, without extension headers.
    pub entries: usize,
    /// The most bytes of one extension header, which is read into memory.
    pub extension_bytes: u64,
}

/// Why a tar cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadTar {
    /// Too many entries, or too many extension headers for that many entries.
    #[error("the tar has more than {0} entries")]
    TooManyEntries(usize),
    /// An extension header is too long.
    #[error("an extension header has more than {0} bytes")]
    LongExtension(u64),
    /// A pax header is malformed.
    #[error("one of its pax headers is malformed")]
    MalformedPax,
    /// A pax header gives the entry with this name another size. Tar programs differ in the one they take.
    #[error("a pax header gives a file another size")]
    TwoSizes(Vec<u8>),
    /// It is damaged or truncated, or reading failed.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
}

impl From<BadTar> for io::Error {
    fn from(bad: BadTar) -> Self {
        match bad {
            BadTar::Unreadable(error) => error,
            bad => Self::other(bad),
        }
    }
}

/// An entry of a tar. Names and targets from GNU headers take precedence over pax, and pax over the header, as in Go.
#[derive(Debug)]
pub struct TarMember {
    /// The header, of which users read the mode.
    pub header: Header,
    /// The name, as raw bytes.
    pub name: Vec<u8>,
    /// The target of a link, as raw bytes.
    pub link: Option<Vec<u8>>,
    /// The size of its contents in bytes.
    pub size_bytes: u64,
    /// True if its contents are those of a sparse file.
    pub is_sparse: bool,
}

impl TarMember {
    /// The kind of entry.
    pub fn kind(&self) -> EntryType {
        self.header.entry_type()
    }
}

/// A reader of untrusted tars. [`Read`] reads the contents of the current entry: exactly its size, or an error.
#[derive(Debug)]
pub struct TarReader<R> {
    input: R,
    limits: TarLimits,
    entries: usize,
    extensions: usize,
    /// The unread contents of the current entry.
    remaining_bytes: u64,
    /// The padding after them.
    padding_bytes: u64,
    has_end_marker: bool,
}

impl<R: Read> TarReader<R> {
    /// Creates a reader.
    pub fn new(input: R, limits: TarLimits) -> Self {
        let (remaining_bytes, padding_bytes) = (0, 0);
        Self { input, limits, entries: 0, extensions: 0, remaining_bytes, padding_bytes, has_end_marker: false }
    }

    /// Skips what is left of the current entry and reads the next one; `None` at the end of the tar. Global headers are
    /// skipped.
    ///
    /// # Errors
    /// [`BadTar`].
    pub fn next_member(&mut self) -> Result<Option<TarMember>, BadTar> {
        let mut headers = ExtensionHeaders::default();
        loop {
            self.skip_contents()?;
            let Some(header) = self.read_header()? else { return Ok(None) };
            self.remaining_bytes = header.entry_size()?;
            self.padding_bytes = self.remaining_bytes.wrapping_neg() % BLOCK as u64;
            match header.entry_type() {
                EntryType::XGlobalHeader => {}
                EntryType::XHeader => {
                    headers.pax = Pax::parse(&self.read_extension()?).ok_or(BadTar::MalformedPax)?;
                }
                EntryType::GNULongName => headers.gnu_path = until_nul(self.read_extension()?),
                EntryType::GNULongLink => headers.gnu_link = until_nul(self.read_extension()?),
                _ => {
                    self.entries += 1;
                    self.check_limit(self.entries, 1)?;
                    return Ok(Some(self.member(header, headers)?));
                }
            }
            self.extensions += 1;
            self.check_limit(self.extensions, MAX_EXTENSIONS_PER_ENTRY)?;
        }
    }

    /// True if the end was marked with a block of zeros, false if the input just ended.
    pub fn has_end_marker(&self) -> bool {
        self.has_end_marker
    }

    /// The input behind the bytes read so far.
    pub fn input(&self) -> &R {
        &self.input
    }

    /// The input behind the bytes read so far.
    pub fn into_input(self) -> R {
        self.input
    }

    fn check_limit(&self, count: usize, per_entry: usize) -> Result<(), BadTar> {
        match count > self.limits.entries.saturating_mul(per_entry) {
            true => Err(BadTar::TooManyEntries(self.limits.entries)),
            false => Ok(()),
        }
    }

    fn member(&mut self, header: Header, headers: ExtensionHeaders) -> Result<TarMember, BadTar> {
        let ExtensionHeaders { pax, gnu_path, gnu_link } = headers;
        let is_sparse = header.entry_type().is_gnu_sparse();
        let mut has_more_blocks = is_sparse && header.as_gnu().is_some_and(::tar::GnuHeader::is_extended);
        while has_more_blocks {
            let block = self.read_block()?.ok_or(io::ErrorKind::UnexpectedEof).map_err(io::Error::from)?;
            has_more_blocks = block.get(504) == Some(&1);
        }
        let name = gnu_path.or(pax.path).unwrap_or_else(|| header.path_bytes().into_owned());
        let link = gnu_link.or(pax.link).or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
        let size_bytes = self.remaining_bytes;
        if pax.size.is_some_and(|size| size != size_bytes) {
            return Err(BadTar::TwoSizes(name));
        }
        Ok(TarMember { header, name, link, size_bytes, is_sparse: is_sparse || pax.is_sparse })
    }

    /// Reads a header and checks its checksum; `None` at the end.
    fn read_header(&mut self) -> Result<Option<Header>, BadTar> {
        let Some(block) = self.read_block()? else { return Ok(None) };
        if block.iter().all(|byte| *byte == 0) {
            self.has_end_marker = true;
            return Ok(None);
        }
        let mut header = Header::new_old();
        *header.as_mut_bytes() = block;
        // The checksum is computed with spaces in its own field.
        let summands = block.iter().enumerate().map(|(offset, byte)| match offset {
            148..156 => u32::from(b' '),
            _ => u32::from(*byte),
        });
        match header.cksum()? == summands.sum::<u32>() {
            true => Ok(Some(header)),
            false => Err(io::Error::other("archive header checksum mismatch").into()),
        }
    }

    /// Reads a block; `None` at the end of the input.
    fn read_block(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let mut block = Vec::with_capacity(BLOCK);
        (&mut self.input).take(BLOCK as u64).read_to_end(&mut block)?;
        match block.try_into() {
            Ok(block) => Ok(Some(block)),
            Err(short) if short.is_empty() => Ok(None),
            Err(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tar ends within a header")),
        }
    }

    fn skip_contents(&mut self) -> io::Result<()> {
        let skipped_bytes = self.remaining_bytes.saturating_add(self.padding_bytes);
        (self.remaining_bytes, self.padding_bytes) = (0, 0);
        if io::copy(&mut (&mut self.input).take(skipped_bytes), &mut io::sink())? < skipped_bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tar ends within a file"));
        }
        Ok(())
    }

    /// Reads an extension header, up to its size limit.
    fn read_extension(&mut self) -> Result<Vec<u8>, BadTar> {
        if self.remaining_bytes > self.limits.extension_bytes {
            return Err(BadTar::LongExtension(self.limits.extension_bytes));
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.input.read(buffer.get_mut(..length).unwrap_or_default())?;
        if read == 0 && length > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tar ends within a file"));
        }
        self.remaining_bytes -= read as u64;
        Ok(read)
    }
}

/// The values of extension headers for the next entry.
#[derive(Default)]
struct ExtensionHeaders {
    pax: Pax,
    gnu_path: Option<Vec<u8>>,
    gnu_link: Option<Vec<u8>>,
}

/// The values of the latest pax header.
#[derive(Default)]
struct Pax {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

impl Pax {
    /// Parses the records of a pax header, each `LENGTH KEY=VALUE\n`. The last record of a key counts. An empty value
    /// unsets the key. `None` if a record is malformed.
    fn parse(records: &[u8]) -> Option<Self> {
        let mut pax = Self::default();
        let mut remaining = records;
        while !remaining.is_empty() {
            let length_digits = remaining.iter().position(|byte| *byte == b' ').filter(|index| *index < 10)?;
            let length: usize = std::str::from_utf8(remaining.get(..length_digits)?).ok()?.parse().ok()?;
            let record = remaining.get(length_digits + 1..length)?.strip_suffix(b"\n")?;
            remaining = remaining.get(length..)?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let (key, value) = (record.get(..equals)?, record.get(equals + 1..)?);
            match key {
                b"path" => pax.path = Some(value.to_vec()).filter(|path| !path.is_empty()),
                b"linkpath" => pax.link = Some(value.to_vec()).filter(|link| !link.is_empty()),
                b"size" if value.is_empty() => pax.size = None,
                b"size" => pax.size = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                key => pax.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        Some(pax)
    }
}

/// A name up to its zero byte; `None` if it is empty.
fn until_nul(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    Some(bytes).filter(|bytes| !bytes.is_empty())
}
