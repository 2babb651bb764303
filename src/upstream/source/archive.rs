//! Parses http and https sources, which are archives or pages that name the source.

use percent_encoding::percent_decode_str;
use url::Url;

use super::checksum::ExpectedChecksum;
use super::{BadSource, PackageSource, query};
use crate::pack::ArchiveFormat;

/// An archive to download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSource {
    /// The URL, without go-getter's parameters.
    pub url: Url,
    /// The archive format.
    pub format: ArchiveFormat,
    /// Expected checksum, if the address has one.
    pub checksum: Option<ExpectedChecksum>,
}

/// The values that Go's `strconv.ParseBool` parses as false.
const FALSE: [&str; 6] = ["0", "f", "F", "false", "FALSE", "False"];

/// Parses an http or https source. `?archive=` or the suffix of the path makes it an archive; the content is never
/// inspected (PROTOCOL, section 4.4).
pub(super) fn parse(mut url: Url) -> Result<PackageSource, BadSource> {
    if !url.username().is_empty() || url.password().is_some() {
        return Err(BadSource::for_url(&url, "holds a user or a password"));
    }
    url.set_fragment(None);
    let parameters = query::take(&mut url, &["archive", "checksum"]);
    let format = match parameters.first("archive").filter(|value| !value.is_empty()) {
        Some(value) if FALSE.contains(&value.as_str()) => None,
        Some(value) => ArchiveFormat::named(&value),
        None => ArchiveFormat::of_path(&percent_decode_str(url.path()).collect::<Vec<u8>>()),
    };
    let checksum = parameters.first("checksum").filter(|value| !value.is_empty());
    match (format, checksum) {
        (Some(format), None) => Ok(PackageSource::Archive(ArchiveSource { url, format, checksum: None })),
        (Some(format), Some(checksum)) => {
            let expected = ExpectedChecksum::parse(&checksum).map_err(|error| BadSource::for_url(&url, error.0))?;
            Ok(PackageSource::Archive(ArchiveSource { url, format, checksum: Some(expected) }))
        }
        (None, Some(_)) => Err(BadSource::for_url(&url, "has a checksum, but is not an archive")),
        (None, None) => {
            url.query_pairs_mut().append_pair("terraform-get", "1");
            Ok(PackageSource::Indirect(url))
        }
    }
}
