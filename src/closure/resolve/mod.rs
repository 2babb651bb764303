//! What an order comes to: every archive that an `init` will ask for, found out as the clients find it out. Whatever
//! cannot be had is named, and hides nothing else.

mod addresses;
mod asking;
mod calls;
mod choosing;
mod found;
mod local;
mod providers;
mod roots;
#[cfg(test)]
mod tests;
mod tree;

use futures_util::future::join_all;

use self::asking::Asking;
use self::found::ResolutionResult;
use self::local::Local;
pub(super) use self::roots::uncalled;
use super::{Closure, Given, Order, Registries};

/// Finds out what an order comes to. Registries are asked for each list and each module once, and only a few at a time.
///
/// What is chosen is what `init` would choose in folders where nothing is installed yet, of the versions that the
/// registries tell now. A provider is wanted for every platform; a module once.
pub async fn resolve(order: &Order, registries: &impl Registries) -> Closure {
    let asking = Asking::new(registries);
    let each = order.given.iter().map(|given| {
        let asking = &asking;
        async move {
            let mut found = ResolutionResult::default();
            match given {
                Given::Address { what, platforms } => {
                    let platforms = if platforms.is_empty() { &order.platforms } else { platforms };
                    addresses::of_address(asking, what, platforms, &mut found).await;
                }
                Given::LockFile { name, locked } => {
                    addresses::of_lock_file(asking, name, locked, &order.platforms, &mut found).await;
                }
                Given::Configurations(configurations) => {
                    let local = Local::new(configurations);
                    for root in local.roots(&mut found).await {
                        // One after the other: what they have in common is asked for once.
                        tree::of_root(asking, &local, &root, &order.platforms, &mut found).await;
                    }
                }
            }
            found
        }
    });
    let found = join_all(each.collect::<Vec<_>>()).await;
    found.into_iter().fold(ResolutionResult::default(), ResolutionResult::and).closure()
}
