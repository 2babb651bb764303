//! The renderings under way: who asks for the same list of the same document shares one. A large list takes many times its
//! size while it is read and written, and all who wait for its fetch would do that at once.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};
use parking_lot::Mutex;

use super::render;
use super::rendered::Rendered;
use super::route::Route;
use crate::digest::FastHash;
use crate::error::Error;

type Rendering = BoxFuture<'static, Result<Arc<Rendered>, Error>>;

/// Renderings by what is asked for, and what the document says that it is made of.
#[derive(Debug, Default)]
pub(super) struct Renderings(Mutex<HashMap<(Route, FastHash), WeakShared<Rendering>>>);

impl Renderings {
    /// Joins the rendering of a route's answer from what a document says, or begins it with `write`. It goes on for as
    /// long as anybody waits.
    ///
    /// # Errors
    /// Those of `write`.
    pub(super) async fn share(
        &self,
        route: &Route,
        says: FastHash,
        write: impl Future<Output = Result<Vec<u8>, Error>> + Send + 'static,
    ) -> Result<Arc<Rendered>, Error> {
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
