//! Renderings in progress. Requests for the same list of the same document share one: parsing a large list takes many
//! times its size in memory, and all clients that wait for its fetch would do it at once.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};
use parking_lot::Mutex;

use super::render;
use super::rendered::RenderedDocument;
use super::route::Route;
use crate::digest::FastHash;
use crate::error::Error;

type Rendering = BoxFuture<'static, Result<Arc<RenderedDocument>, Error>>;

/// Renderings by route and by hash of the source document.
#[derive(Debug, Default)]
pub(super) struct Renderings(Mutex<HashMap<(Route, FastHash), WeakShared<Rendering>>>);

impl Renderings {
    /// Joins the rendering of a route's answer from a document, or starts it with `write`. It is dropped when no client
    /// waits for it.
    ///
    /// # Errors
    /// Those of `write`.
    pub(super) async fn share(
        &self,
        route: &Route,
        says: FastHash,
        write: impl Future<Output = Result<Vec<u8>, Error>> + Send + 'static,
    ) -> Result<Arc<RenderedDocument>, Error> {
        let rendering = {
            let mut under_way = self.0.lock();
            under_way.retain(|_, rendering| rendering.upgrade().is_some());
            let key = (route.clone(), says);
            match under_way.get(&key).and_then(WeakShared::upgrade) {
                Some(rendering) => rendering,
                None => {
                    let rendering = async move { Ok(Arc::new(render(write.await?).await)) }.boxed().shared();
                    under_way.extend(rendering.downgrade().map(|weak| (key, weak)));
                    rendering
                }
            }
        };
        rendering.await
    }
}
