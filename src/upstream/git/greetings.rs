//! The greetings of git servers. In protocol version 2 a greeting tells what the server can do, and nothing of its repository,
//! so the greeting of one repository saves the request for that of the next one at the same origin. A server that answers
//! otherwise than it greeted is asked for its greeting again.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use url::Url;

use crate::upstream::outbound::origin;

/// The longest greeting that is kept. Those of common servers have about 200 bytes.
const MAX_GREETING_BYTES: usize = 4096;
/// Beyond that many origins, all are forgotten.
const MAX_ORIGINS: usize = 256;

/// The last greeting of each origin.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Greetings(Mutex<HashMap<String, Bytes>>);

/// The bytes of a greeting, as they are read.
#[derive(Debug, Clone, Default)]
pub(super) struct Heard(Arc<Mutex<Vec<u8>>>);

impl Greetings {
    /// The greeting of a repository at the same origin.
    pub(super) fn get(&self, repository: &Url) -> Option<Bytes> {
        self.0.lock().get(&origin(repository)).cloned()
    }

    /// Keeps a greeting that was heard as a whole.
    pub(super) fn keep(&self, repository: &Url, heard: &Heard) {
        let greeting = std::mem::take(&mut *heard.0.lock());
        if greeting.is_empty() || greeting.len() > MAX_GREETING_BYTES {
            return;
        }
        let mut greetings = self.0.lock();
        if greetings.len() >= MAX_ORIGINS {
            greetings.clear();
        }
        greetings.insert(origin(repository), greeting.into());
    }

    /// Forgets the greeting of an origin.
    pub(super) fn forget(&self, repository: &Url) {
        self.0.lock().remove(&origin(repository));
    }
}

impl Heard {
    /// Adds the next bytes; of a long greeting, only as many as show that it is.
    pub(super) fn record(&self, bytes: &[u8]) {
        let mut heard = self.0.lock();
        let room = (MAX_GREETING_BYTES + 1).saturating_sub(heard.len());
        heard.extend(bytes.iter().take(room));
    }
}
