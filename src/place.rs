//! The machine and the network that a process runs in: where its Unix sockets and its loopback addresses lead to. A store on
//! a shared disk, or in a folder that two containers share, may belong to a process at another place.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Where a process runs. Two containers of one machine share the machine and have networks of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The name of the machine, for people.
    pub host: String,
    /// The running kernel, which is the same for all containers of a machine; empty where the system does not tell.
    pub kernel: String,
    /// The network namespace; empty where the system has none.
    pub network: String,
}

impl Place {
    /// The place of this process.
    pub fn here() -> Self {
        Self {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            kernel: read_boot_id(),
            network: std::fs::read_link("/proc/self/ns/net")
                .map(|namespace| namespace.to_string_lossy().into_owned())
                .unwrap_or_default(),
        }
    }

    /// True if a Unix socket made there can be reached from here.
    pub fn is_same_machine(&self, other: &Self) -> bool {
        // The name of a container is its own.
        if self.kernel.is_empty() { self.host == other.host } else { self.kernel == other.kernel }
    }

    /// True if the loopback addresses of both are the same.
    pub fn is_same_network(&self, other: &Self) -> bool {
        self.is_same_machine(other) && self.network == other.network
    }

    /// The machine and the network as one text without spaces, for a request.
    pub fn network_id(&self) -> String {
        let machine = if self.kernel.is_empty() { &self.host } else { &self.kernel };
        Digest::of(format!("{machine} {}", self.network).as_bytes()).prefix().to_string()
    }
}

#[expect(clippy::disallowed_methods, reason = "the kernel's own file, which is not one of the store")]
fn read_boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}
