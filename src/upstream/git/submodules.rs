//! Parses `.gitmodules`.

use gix_object::bstr::{BStr, ByteSlice as _};

use super::repository::Repository;
use crate::pack::TreeError;

/// The entries of one repository's `.gitmodules`.
pub(super) struct Submodules(Option<gix_submodule::File>);

/// Handling of one submodule.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Submodule {
    /// Fetched from this repository.
    From(Repository),
    /// Left as an empty folder, because of `update = none` or because `.gitmodules` has no entry.
    Empty,
}

impl Submodules {
    /// Parses the file, if there is one.
    ///
    /// # Errors
    /// [`TreeError::Refused`] for invalid syntax.
    pub(super) fn parse(file: Option<&[u8]>) -> Result<Self, TreeError> {
        let Some(file) = file else { return Ok(Self(None)) };
        let no_overrides = gix_config::File::default();
        let parsed = gix_submodule::File::from_bytes(file, None, &no_overrides);
        let parsed = parsed.map_err(|_| TreeError::refused(".gitmodules", "it is not a configuration file of git"))?;
        Ok(Self(Some(parsed)))
    }

    /// The handling of the submodule at `path` in `repository`.
    ///
    /// # Errors
    /// [`TreeError::Refused`], with the reason.
    pub(super) fn find(&self, path: &BStr, repository: &Repository) -> Result<Submodule, TreeError> {
        let refused = |reason: String| TreeError::refused(path.to_str_lossy(), reason);
        let Some(file) = &self.0 else { return Ok(Submodule::Empty) };
        let Some(name) = file.name_by_path(path) else { return Ok(Submodule::Empty) };
        match file.update(name) {
            Ok(Some(gix_submodule::config::Update::None)) => return Ok(Submodule::Empty),
            Ok(Some(gix_submodule::config::Update::Command(_))) | Err(_) => {
                return Err(refused("it is a submodule with an `update` that runs a command or is unknown".to_owned()));
            }
            Ok(_) => {}
        }
        let url = file.config().string_by("submodule", Some(name), "url");
        let url = url.ok_or_else(|| refused("it is a submodule without a URL".to_owned()))?;
        let url = url.to_str().map_err(|_| refused("it is a submodule, and its URL is not UTF-8".to_owned()))?;
        let inner = repository.submodule(url).map_err(|error| refused(format!("it is a submodule, and {error}")))?;
        Ok(Submodule::From(inner))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base() -> Repository {
        Repository::parse("https://h.example/a/b").unwrap()
    }

    #[test]
    fn a_submodule_is_found_by_its_path_and_not_by_its_name() {
        let file = b"[submodule \"one\"]\n\tpath = modules/two\n\turl = ../c\n[submodule \"off\"]\n\tpath = off\n\turl = ../d\n\tupdate = none\n\
            [submodule \"run\"]\n\tpath = run\n\turl = ../d\n\tupdate = !id\n[submodule \"opt\"]\n\tpath = opt\n\turl = -u\n[submodule \"no\"]\n\tpath = no\n";
        let submodules = Submodules::parse(Some(file)).unwrap();
        let find = |path: &str| submodules.find(path.into(), &base());
        assert_eq!(find("modules/two").unwrap(), Submodule::From(Repository::parse("https://h.example/a/c").unwrap()));
        assert_eq!(find("off").unwrap(), Submodule::Empty);
        assert_eq!(find("one").unwrap(), Submodule::Empty);
        for refused in ["run", "opt", "no"] {
            assert!(matches!(find(refused), Err(TreeError::Refused { .. })), "{refused}");
        }
        assert_eq!(Submodules::parse(None).unwrap().find("x".into(), &base()).unwrap(), Submodule::Empty);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(
            file in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..80),
                "(\\[submodule \"[a-z./]{0,5}\"\\]\n)?(\tpath = [a-z./-]{0,5}\n)?(\turl = [a-z./:@-]{0,20}\n)?(update = !?[a-z]{0,6})?".prop_map(String::into_bytes),
            ],
            path in "[a-z./]{1,5}",
        ) {
            if let Ok(submodules) = Submodules::parse(Some(&file)) {
                let _ = submodules.find(path.as_bytes().as_bstr(), &base());
            }
        }
    }
}
