//! Resolves an order to the archives that an `init` needs, as the clients do. Unavailable items are listed; everything
//! else is still resolved.

mod local;
mod module_calls;
mod registry_queries;
mod resolution_result;
#[cfg(test)]
mod tests;
mod tree;
mod versions;

use futures_util::future::join_all;

use self::local::LocalModules;
pub(super) use self::local::uncalled_folders;
use self::registry_queries::RegistryQueries;
use self::resolution_result::ResolutionResult;
use super::{Order, OrderEntry, Registries, ResolvedRequirements};

/// Resolves an order. Each list and module is queried once, a few at a time.
///
/// The chosen versions are those of an `init` in folders without installed providers, from the registries' current
/// lists. A provider is required for every platform; a module once.
pub async fn resolve(order: &Order, registries: &impl Registries) -> ResolvedRequirements {
    let queries = RegistryQueries::new(registries);
    let results = order.given.iter().map(|entry| {
        let queries = &queries;
        async move {
            let mut result = ResolutionResult::default();
            match entry {
                OrderEntry::Address { what: selector, platforms } => {
                    let platforms = if platforms.is_empty() { &order.platforms } else { platforms };
                    versions::resolve_address(queries, selector, platforms, &mut result).await;
                }
                OrderEntry::LockFile { name, locked } => {
                    versions::resolve_lock_file(queries, name, locked, &order.platforms, &mut result).await;
                }
                OrderEntry::Configurations(configurations) => {
                    let local = LocalModules::new(configurations);
                    for root in local.roots(&mut result).await {
                        // Roots are resolved one after the other, so that a query of several roots is sent once.
                        tree::resolve_root(queries, &local, &root, &order.platforms, &mut result).await;
                    }
                }
            }
            result
        }
    });
    let results = join_all(results.collect::<Vec<_>>()).await;
    results.into_iter().fold(ResolutionResult::default(), ResolutionResult::merge).into_requirements()
}
