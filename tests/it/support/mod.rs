//! What the tests stand on: a fake upstream that signs real archives, a larder on port 0, the real client.

pub(crate) mod http;
pub(crate) mod larder;
pub(crate) mod process;
pub(crate) mod scene;
pub(crate) mod terraform;
pub(crate) mod tls;
pub(crate) mod upstream;
