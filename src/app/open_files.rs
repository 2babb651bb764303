//! The file descriptors of this process: raised to what the system allows, and shared out, so that clients never take those of
//! the admin listener, of upstream connections or of the store.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::StartSettings;
use crate::http::connection_threads::ConnectionThreads;
use crate::http::listener::Limits;
use crate::upstream::limits::UpstreamLimits;

/// The limit that is worth asking for: with it nothing else is limited.
pub const WANTED_OPEN_FILES: u64 = 16_384;

/// Descriptors of the process itself: standard streams, the event queue, listeners, the index, the lock, and the records and
/// temporary files that the threads of the blocking pool have open.
const OWN: u64 = 160;
/// Connections to the admin listener.
const ADMIN_CONNECTIONS: usize = 128;
/// These, and those to the Unix socket.
const ADMIN: u64 = ADMIN_CONNECTIONS as u64 + 64;
/// Descriptors of a download from upstream: the connection, and the staged file.
const EACH_DOWNLOAD: u64 = 2;
/// Descriptors of a git fetch: connections, packs, the temporary file of its tree.
const EACH_GIT_FETCH: u64 = 8;
/// Descriptors of a client: the connection, and the archive that it reads. Clients that read the same archive share its file.
const EACH_CLIENT: u64 = 2;
/// The least that any share is, however low the limit is.
const MIN_SHARE: usize = 64;

/// Raises the limit to the highest that the system allows this process.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
    }
}

/// The limit of this process; `None` for none.
pub(super) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Shares out `limit` descriptors: lowers the limits of clients and upstream connections where they would need more.
pub(super) fn share_out(settings: &mut StartSettings, limit: u64) {
    let (clients, upstream) = (&mut settings.connections, &mut settings.upstream_limits);
    let spare = clients.spare as u64 * 2;
    let for_all = limit.saturating_sub(OWN + ConnectionThreads::open_files() + ADMIN + spare);
    // Clients wait for upstream, and not the other way around: upstream gets a quarter.
    let for_upstream = upstream_needs(upstream).min(for_all / 4);
    limit_upstream(upstream, for_upstream);
    limit_clients(clients, (for_all - for_upstream) / EACH_CLIENT);
}

/// The limit of a running process; `None` where the system does not tell, or there is none.
pub fn limit_of(process: u32) -> Option<u64> {
    let limits = read_limits(process)?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[expect(clippy::disallowed_methods, reason = "the kernel's own file, which is not one of the store")]
fn read_limits(process: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{process}/limits")).ok()
}

/// Text for people if a larder with this limit serves fewer connections than by default: the effect, and the line to write.
pub fn shortage_at(limit: u64) -> Option<String> {
    let mut settings = StartSettings::default();
    let wanted = settings.connections.connections;
    share_out(&mut settings, limit);
    let given = settings.connections.connections;
    let text = format!(
        "the limit of open files is {limit}, so {given} of {wanted} connections are served at a time; raise it to \
         {WANTED_OPEN_FILES}: LimitNOFILE={WANTED_OPEN_FILES} in the [Service] section of the unit, --ulimit \
         nofile={WANTED_OPEN_FILES}:{WANTED_OPEN_FILES} for a container"
    );
    (given < wanted).then_some(text)
}

/// The limits of the admin listener, which has its own share.
pub(super) fn of_admin(limits: &Limits) -> Limits {
    let connections = limits.connections.min(ADMIN_CONNECTIONS);
    Limits { connections, each_address: limits.each_address.min(connections), ..limits.clone() }
}

fn upstream_needs(limits: &UpstreamLimits) -> u64 {
    limits.documents.all + limits.archives.all * EACH_DOWNLOAD + git_needs(limits)
}

fn git_needs(limits: &UpstreamLimits) -> u64 {
    (limits.git_fetches.all + limits.git_resolves.all) * EACH_GIT_FETCH
}

fn limit_upstream(limits: &mut UpstreamLimits, descriptors: u64) {
    // A git fetch needs what it needs; there are few.
    let git = git_needs(limits);
    let (needs, descriptors) = (upstream_needs(limits) - git, descriptors.saturating_sub(git));
    if descriptors >= needs {
        return;
    }
    for limit in [&mut limits.documents, &mut limits.archives] {
        let share = |wanted: u64| (wanted * descriptors / needs).clamp(1, wanted);
        (limit.all, limit.per_upstream) = (share(limit.all), share(limit.per_upstream));
    }
}

fn limit_clients(limits: &mut Limits, connections: u64) {
    let given = usize::try_from(connections).unwrap_or(usize::MAX).max(MIN_SHARE);
    if given >= limits.connections {
        return;
    }
    let share = |wanted: usize| (wanted * given / limits.connections).clamp(1, wanted.max(1));
    // Many runners behind one address are one address.
    limits.each_address = share(limits.each_address).max(MIN_SHARE.min(limits.each_address)).min(given);
    limits.outsiders = share(limits.outsiders);
    limits.connections = given;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shared(limit: u64) -> StartSettings {
        let mut settings = StartSettings::default();
        share_out(&mut settings, limit);
        settings
    }

    #[test]
    fn the_wanted_limit_limits_nothing_else() {
        let (settings, default) = (shared(WANTED_OPEN_FILES), StartSettings::default());
        assert_eq!(settings.connections, default.connections);
        assert_eq!(upstream_needs(&settings.upstream_limits), upstream_needs(&default.upstream_limits));
        assert_eq!(shortage_at(WANTED_OPEN_FILES), None);
        let given = shared(1024).connections.connections;
        assert!(given > 150);
        assert!(shortage_at(1024).is_some_and(|text| text.contains(&format!("so {given} of 4096 connections"))));
    }

    proptest! {
        /// The shares never need more descriptors than there are.
        #[test]
        fn the_shares_fit_into_the_limit(limit in 900u64..100_000) {
            let settings = shared(limit);
            let clients = &settings.connections;
            let needs = OWN + ConnectionThreads::open_files() + ADMIN + clients.spare as u64 * 2 + upstream_needs(&settings.upstream_limits)
                + clients.connections as u64 * EACH_CLIENT;
            prop_assert!(needs <= limit, "{needs} of {limit}");
            prop_assert!(clients.each_address >= 64 && clients.each_address <= clients.connections);
        }
    }
}
