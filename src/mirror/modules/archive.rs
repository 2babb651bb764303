//! Archives of modules.

use std::sync::Arc;

use super::super::{Answer, Archive, Call, Mirror};
use super::ModuleArchiveRef;
use crate::address::ModulePackage;
use crate::error::Error;

impl Mirror {
    /// The archive that one of our URLs names.
    pub async fn module_archive(
        self: &Arc<Self>,
        wanted: &ModuleArchiveRef,
        call: &Call,
    ) -> Result<Answer<Archive>, Error> {
        let _ = (wanted, call);
        Err(Error::Interrupted("not yet".into()))
    }

    pub(in crate::mirror) async fn bring_module(
        self: &Arc<Self>,
        package: &ModulePackage,
        call: &Call,
    ) -> Result<(), Error> {
        let _ = (package, call);
        Err(Error::Interrupted("not yet".into()))
    }
}
