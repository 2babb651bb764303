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
    /// Joins the rendering of a route's answer from a document, or starts one with `body`. The rendering is dropped when
    /// no client waits for it.
    ///
    /// # Errors
    /// Those of `body`.
    pub(super) async fn share(
        &self,
        route: &Route,
        content_hash: FastHash,
        body: impl Future<Output = Result<Vec<u8>, Error>> + Send + 'static,
    ) -> Result<Arc<RenderedDocument>, Error> {
        let rendering = {
            let mut running = self.0.lock();
            running.retain(|_, rendering| rendering.upgrade().is_some());
            let key = (route.clone(), content_hash);
            match running.get(&key).and_then(WeakShared::upgrade) {
                Some(rendering) => rendering,
                None => {
                    let rendering = async move { Ok(Arc::new(render(body.await?).await)) }.boxed().shared();
                    running.extend(rendering.downgrade().map(|weak| (key, weak)));
                    rendering
                }
            }
        };
        rendering.await
    }
}
