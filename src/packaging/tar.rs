//! The reader of untrusted tars, within limits, and the writer of tars. Which names and kinds of entries are accepted is
//! left to the reader's callers. Bundles are written here and read by a stricter reader (`bundle/stream.rs`).

use std::io::{self, Read, Write};

use ::tar::{EntryType, Header};

use super::chunks::FixedChunkWriter;

/// The size of a tar's blocks, in bytes.
pub const BLOCK: usize = 512;
/// The most extension headers for each entry that the limit allows: a local and a global pax header, a GNU long name
/// and a GNU long link.
const MAX_EXTENSIONS_PER_ENTRY: usize = 4;

/// The size of the write buffer, in bytes.
const COPY_BUFFER_BYTES: usize = 256 * 1024;

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
    DifferentSizes(Vec<u8>),
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
    /// The header, of which callers read the mode.
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
            let size_bytes = claimed_size(&header)?;
            self.remaining_bytes = if has_contents(header.entry_type()) { size_bytes } else { 0 };
            self.padding_bytes = padding_bytes(self.remaining_bytes);
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
                    return Ok(Some(self.member(header, size_bytes, headers)?));
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

    /// The input, positioned after the bytes read so far.
    pub fn input(&self) -> &R {
        &self.input
    }

    /// The input, positioned after the bytes read so far.
    pub fn into_input(self) -> R {
        self.input
    }

    fn check_limit(&self, count: usize, per_entry: usize) -> Result<(), BadTar> {
        match count > self.limits.entries.saturating_mul(per_entry) {
            true => Err(BadTar::TooManyEntries(self.limits.entries)),
            false => Ok(()),
        }
    }

    fn member(&mut self, header: Header, size: u64, headers: ExtensionHeaders) -> Result<TarMember, BadTar> {
        let ExtensionHeaders { pax, gnu_path, gnu_link } = headers;
        let is_sparse = header.entry_type().is_gnu_sparse();
        let mut has_more_blocks = is_sparse && header.as_gnu().is_some_and(::tar::GnuHeader::is_extended);
        while has_more_blocks {
            let block = self.read_block()?.ok_or(io::ErrorKind::UnexpectedEof).map_err(io::Error::from)?;
            has_more_blocks = block.get(504) == Some(&1);
        }
        let name = gnu_path.or(pax.path).unwrap_or_else(|| header.path_bytes().into_owned());
        let link = gnu_link.or(pax.link).or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
        if pax.size.is_some_and(|pax_size| pax_size != size) {
            return Err(BadTar::DifferentSizes(name));
        }
        let size_bytes = self.remaining_bytes;
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
            false => Err(io::Error::other("the checksum of a header in the tar is wrong").into()),
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

/// A writer of tars: ustar, no owners, no times. Equal entries give equal bytes. If the writer is dropped before
/// [`TarWriter::end`], the tar has no end marker, so that a reader notices the truncation.
pub struct TarWriter<W> {
    out: FixedChunkWriter<W>,
}

impl<W: Write> TarWriter<W> {
    /// Creates a writer.
    pub fn new(out: W) -> Self {
        Self { out: FixedChunkWriter::new(out, COPY_BUFFER_BYTES) }
    }

    /// Adds a folder.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn folder(&mut self, path: &[u8]) -> io::Result<()> {
        self.write_header(&[path, b"/"].concat(), EntryType::Directory, 0o755, 0)
    }

    /// Adds a file of `size_bytes` bytes.
    ///
    /// # Errors
    /// `contents` have fewer bytes; also errors of `contents` and of the output.
    pub fn file(&mut self, path: &[u8], mode: u32, size_bytes: u64, contents: impl Read) -> io::Result<()> {
        self.write_header(path, EntryType::Regular, mode, size_bytes)?;
        self.write_contents(path, size_bytes, contents)
    }

    /// Adds a file with a header of the caller.
    ///
    /// # Errors
    /// As for [`file`](Self::file).
    pub fn file_with_header(&mut self, header: &Header, contents: impl Read) -> io::Result<()> {
        self.out.write_all(header.as_bytes())?;
        self.write_contents(&header.path_bytes(), header.entry_size()?, contents)
    }

    fn write_contents(&mut self, path: &[u8], size_bytes: u64, contents: impl Read) -> io::Result<()> {
        if io::copy(&mut contents.take(size_bytes), &mut self.out)? < size_bytes {
            let reason = format!("{} became shorter while it was read", String::from_utf8_lossy(path));
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        self.pad_to_block(size_bytes)
    }

    /// Writes the end marker, flushes and returns the output.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn end(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        self.out.inner.flush()?;
        Ok(self.out.inner)
    }

    /// Writes the header of an entry. If the name is too long for ustar, a GNU long-name entry with the name precedes
    /// the header. Unlike a pax header, that entry may contain any bytes.
    fn write_header(&mut self, name: &[u8], kind: EntryType, mode: u32, size: u64) -> io::Result<()> {
        if let Some((prefix, name)) = split_name(name) {
            let mut header = Header::new_ustar();
            if let Some(ustar) = header.as_ustar_mut() {
                fill(&mut ustar.prefix, prefix);
                fill(&mut ustar.name, name);
            }
            return self.finish_header(header, kind, mode, size);
        }
        let name_bytes_with_nul = name.len() as u64 + 1;
        let mut long_name_header = Header::new_gnu();
        fill(&mut long_name_header.as_old_mut().name, b"././@LongLink");
        self.finish_header(long_name_header, EntryType::GNULongName, 0o644, name_bytes_with_nul)?;
        self.out.write_all(name)?;
        self.out.write_all(&[0])?;
        self.pad_to_block(name_bytes_with_nul)?;
        let mut header = Header::new_gnu();
        fill(&mut header.as_old_mut().name, name);
        self.finish_header(header, kind, mode, size)
    }

    fn finish_header(&mut self, mut header: Header, kind: EntryType, mode: u32, size: u64) -> io::Result<()> {
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        header.set_cksum();
        self.out.write_all(header.as_bytes())
    }

    /// Writes zeros up to the end of the block.
    fn pad_to_block(&mut self, size: u64) -> io::Result<()> {
        let length = usize::try_from(padding_bytes(size)).unwrap_or(0);
        self.out.write_all([0; BLOCK].get(..length).unwrap_or_default())
    }
}

/// True if contents follow the header of an entry of this kind, as in Go. For other kinds, the size is that of something
/// else, such as the target of a link. If that many bytes were skipped as contents, entries could hide in them.
fn has_contents(kind: EntryType) -> bool {
    !matches!(
        kind,
        EntryType::Link
            | EntryType::Symlink
            | EntryType::Char
            | EntryType::Block
            | EntryType::Directory
            | EntryType::Fifo
    )
}

/// The size in a header: octal, or 64 bits of a binary number. The tar crate also reads a sign and drops the high bits of
/// a larger number, so that it reads another size than other programs do.
fn claimed_size(header: &Header) -> io::Result<u64> {
    let is_readable = match &header.as_old().size {
        [0x80, 0, 0, 0, high, ..] => *high < 0x80,
        octal => octal.iter().all(|byte| matches!(byte, b'0'..=b'7' | b' ' | 0)),
    };
    if !is_readable {
        return Err(io::Error::other("the size of an entry is not a number, or too large"));
    }
    header.entry_size()
}

/// The number of zero bytes that follow contents of this size in a tar.
pub fn padding_bytes(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

/// Splits a name into ustar's prefix and name, at the first slash where both fit their fields.
fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= 100 {
        return Some((b"", name));
    }
    let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
    // The second half begins with the slash, which ustar does not store.
    let (prefix, slash_and_name) = slashes.map(|index| name.split_at(index)).find(|(prefix, slash_and_name)| {
        (1..=155).contains(&prefix.len()) && (2..=101).contains(&slash_and_name.len())
    })?;
    Some((prefix, slash_and_name.get(1..)?))
}

/// Copies as much of the bytes as fits the field.
fn fill(field: &mut [u8], bytes: &[u8]) {
    for (target, byte) in field.iter_mut().zip(bytes) {
        *target = *byte;
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
