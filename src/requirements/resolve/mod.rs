//! Resolves an order to the archives that an `init` needs, as the clients do. An unavailable item is listed, and hides
//! nothing else.

mod addresses;
mod local;
mod module_calls;
mod providers;
mod registry_queries;
mod resolution_result;
mod root_modules;
#[cfg(test)]
mod tests;
mod tree;
mod version_selection;

use futures_util::future::join_all;

use self::local::LocalFolders;
use self::registry_queries::RegistryQueries;
use self::resolution_result::ResolutionResult;
pub(super) use self::root_modules::uncalled;
use super::{Order, OrderEntry, Registries, ResolvedRequirements};

/// Resolves an order. Each list and module is queried once, a few at a time.
///
/// The chosen versions are those of an `init` in folders without installed providers, from the registries' current
/// lists. A provider is required for every platform; a module once.
pub async fn resolve(order: &Order, registries: &impl Registries) -> ResolvedRequirements {
    let queries = RegistryQueries::new(registries);
    let each = order.given.iter().map(|given| {
        let queries = &queries;
        async move {
            let mut found = ResolutionResult::default();
            match given {
                OrderEntry::Address { what: selector, platforms } => {
                    let platforms = if platforms.is_empty() { &order.platforms } else { platforms };
                    addresses::of_address(queries, selector, platforms, &mut found).await;
                }
                OrderEntry::LockFile { name, locked } => {
                    addresses::of_lock_file(queries, name, locked, &order.platforms, &mut found).await;
                }
                OrderEntry::Configurations(configurations) => {
                    let local = LocalFolders::new(configurations);
                    for root in local.roots(&mut found).await {
                        // One after the other: shared queries are sent once.
                        tree::of_root(queries, &local, &root, &order.platforms, &mut found).await;
                    }
                }
            }
            found
        }
    });
    let found = join_all(each.collect::<Vec<_>>()).await;
    found.into_iter().fold(ResolutionResult::default(), ResolutionResult::and).into_requirements()
}
