//! Behaviours of larder, against its public surface: real sockets, real files, real signatures, the real client.
#![expect(clippy::disallowed_methods, reason = "the tests stand outside the walls between the rooms")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bounds;
mod caching;
mod commands;
mod commands_accept;
mod commands_access;
mod commands_memory;
mod crash;
mod damage;
mod discovery;
mod eviction;
mod faults_archives;
mod faults_documents;
mod faults_kills;
mod faults_requests;
mod full_disk;
mod guard;
mod http_answers;
mod keeping;
mod lifecycle;
mod many_clients;
mod metrics;
mod network_mirror;
mod no_place;
mod operator;
mod outbound;
mod providers;
mod real_client;
mod resume;
mod seams;
mod secrets;
mod small_disk;
mod sparing;
mod stored_again;
mod support;
mod upstream_trouble;
mod variety;
mod verification;
mod verification_sets;
mod verification_tail;
mod verification_transfer;
mod warm_command;
