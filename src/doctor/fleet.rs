//! Checks the database and the bucket of a fleet, as a replica would use them. Nothing changes but an object of the doctor's own, which goes
//! again.

use std::time::Duration;

use super::{Check, in_time};
use crate::clock::Timestamp;
use crate::config::{Fleet, Network};
use crate::fleet::bucket::Bucket;
use crate::fleet::database::{Database, DatabaseError, MAX_CONNECTIONS, SettingsError};
use crate::fleet::examine::{BucketFacts, SchemaFacts, ServerFacts, check_log, schema_facts, server_facts, try_bucket};
use crate::fleet::schema::{self, SchemaError};
use secrecy::ExposeSecret as _;

const DATABASE: &str = "fleet.database";
const SCHEMA: &str = "fleet.schema";
const RIGHTS: &str = "fleet.rights";
const BUCKET: &str = "fleet.bucket";
/// The time for all that tries the bucket.
const BUCKET_TIMEOUT: Duration = Duration::from_secs(30);
/// The SQLSTATE of a right that is missing.
const INSUFFICIENT_PRIVILEGE: &str = "42501";
/// The oldest version of PostgreSQL that has what larder asks for.
const MIN_VERSION: i32 = 140_000;
/// The difference of two clocks that shows in times on record, in seconds.
const MAX_SKEW: f64 = 5.0;
const UNREACHABLE_ADVICE: &str = "check the host, the port and the password in [fleet] database, and the authority in database_ca: psql \
     with the same URL and sslmode=verify-full must connect";
const LOG_ADVICE: &str = "the role must be allowed to call pg_control_system, pg_walfile_name, pg_current_wal_insert_lsn and \
     pg_current_wal_flush_lsn, and the server must offer them: Amazon Aurora does with rds.logical_replication = 1 only";
const MIGRATE_ADVICE: &str = "run larder fleet migrate --serve-as ROLE, with the URL of the role that owns the schema and the ROLE of the \
     replicas";

/// Connects to the database and the bucket as a replica does.
pub(super) async fn check(fleet: &Fleet, network: &Network, now: Timestamp) -> Vec<Check> {
    let (mut checks, of_bucket) = tokio::join!(check_database(fleet, now), check_bucket(fleet, network));
    checks.extend(of_bucket);
    checks
}

async fn check_bucket(fleet: &Fleet, network: &Network) -> Vec<Check> {
    let bucket = match Bucket::new(fleet, network) {
        Ok(bucket) => bucket,
        Err(error) => {
            return vec![
                Check::fail(BUCKET, error.to_string()).advise("mend bucket, endpoint or bucket_key in [fleet]"),
            ];
        }
    };
    match tokio::time::timeout(BUCKET_TIMEOUT, try_bucket(&bucket)).await {
        Ok(Ok(BucketFacts { checks_bytes: true })) => {
            let finding = format!("{} takes, sends and removes objects, and checks their bytes", bucket.place());
            vec![Check::passed(BUCKET, finding)]
        }
        Ok(Ok(BucketFacts { checks_bytes: false })) => {
            let finding = format!("{} takes bytes that changed on the way", bucket.place());
            let advice = "larder verifies what comes from it, and fetches such an archive again; an object store that checks the \
                 x-amz-checksum-sha256 of a request saves that";
            vec![Check::warn(BUCKET, finding).advise(advice)]
        }
        Ok(Err(error)) => vec![Check::fail(BUCKET, error.to_string()).advise(error.remedy())],
        Err(_) => vec![
            Check::fail(BUCKET, format!("{} does not respond in time", bucket.place()))
                .advise("check endpoint in [fleet] and the network"),
        ],
    }
}

/// Connects to the database as a replica does, and checks its server, its schema and the rights of the role.
async fn check_database(fleet: &Fleet, now: Timestamp) -> Vec<Check> {
    let fleet = fleet.clone();
    let checks = in_time(move || match checks_of(&fleet, now) {
        Ok(checks) => checks,
        Err(error) => vec![Check::fail(DATABASE, error.to_string()).advise(UNREACHABLE_ADVICE)],
    });
    checks.await.unwrap_or_else(|| {
        vec![Check::fail(DATABASE, "the database does not respond in time").advise(UNREACHABLE_ADVICE)]
    })
}

fn checks_of(fleet: &Fleet, now: Timestamp) -> Result<Vec<Check>, SettingsError> {
    let database = Database::new(fleet.database.expose_secret(), fleet.database_ca.as_deref())?;
    let server = match server_facts(&database) {
        Ok(server) => server,
        Err(error) => return Ok(vec![Check::fail(DATABASE, error.to_string()).advise(UNREACHABLE_ADVICE)]),
    };
    let mut checks = of_server(&server, now);
    match schema::check(&database) {
        Ok(()) => checks.push(Check::passed(SCHEMA, "every migration of this larder")),
        Err(error @ SchemaError::Missing(_)) => {
            checks.push(Check::fail(SCHEMA, error.to_string()).advise(MIGRATE_ADVICE));
            return Ok(checks);
        }
        Err(SchemaError::Database(error)) => {
            checks.push(match &error {
                DatabaseError::Refused { state, .. } if state.code() == INSUFFICIENT_PRIVILEGE => {
                    let finding = format!("{} may not read the schema: {error}", server.role);
                    Check::fail(RIGHTS, finding).advise(MIGRATE_ADVICE)
                }
                _ => Check::fail(SCHEMA, error.to_string()).advise(UNREACHABLE_ADVICE),
            });
            return Ok(checks);
        }
        Err(error @ (SchemaError::Other(_) | SchemaError::Newer { .. })) => {
            let advice = "use a database that larder made, and a larder that is new enough for it";
            checks.push(Check::fail(SCHEMA, error.to_string()).advise(advice));
            return Ok(checks);
        }
    }
    if let Err(error) = check_log(&database) {
        let finding = format!(
            "the database does not say where it is in its log, so a restored one would not be noticed: {error}"
        );
        checks.push(Check::fail(DATABASE, finding).advise(LOG_ADVICE));
    }
    match schema_facts(&database) {
        Ok(schema) => checks.extend(of_schema(&server, &schema)),
        Err(error) => checks.push(Check::fail(RIGHTS, error.to_string()).advise(MIGRATE_ADVICE)),
    }
    Ok(checks)
}

fn of_server(server: &ServerFacts, now: Timestamp) -> Vec<Check> {
    let ServerFacts { version, role, synchronous_standbys, .. } = server;
    let mut checks = Vec::new();
    if server.version_number < MIN_VERSION {
        let finding = format!("PostgreSQL {version} is too old");
        checks.push(Check::fail(DATABASE, finding).advise("use PostgreSQL 14 or newer"));
    } else {
        checks.push(Check::passed(DATABASE, format!("PostgreSQL {version}, as {role}")));
    }
    let skew = server.time - now.0 as f64;
    if skew.abs() > MAX_SKEW {
        let finding = format!(
            "the clock of the database is {:.0} s {} that of this machine",
            skew.abs(),
            if skew > 0.0 { "ahead of" } else { "behind" }
        );
        checks.push(
            Check::warn(DATABASE, finding).advise("synchronise both clocks (NTP): times on record come from either"),
        );
    }
    if !server.is_durable {
        let finding = "the database acknowledges what it may lose: fsync or synchronous_commit is off";
        checks.push(Check::fail(DATABASE, finding).advise("set fsync = on and synchronous_commit = on"));
    }
    if synchronous_standbys.is_empty() {
        let finding =
            "a commit waits for no standby: after a failover the database may have forgotten the newest records";
        checks.push(Check::warn(DATABASE, finding).advise(
            "name a synchronous standby (synchronous_standby_names), unless the storage of the server is replicated itself",
        ));
    }
    checks
}

fn of_schema(server: &ServerFacts, schema: &SchemaFacts) -> Vec<Check> {
    let ServerFacts { role, .. } = server;
    let mut checks = Vec::new();
    if server.is_superuser {
        let finding = format!("{role} is a superuser: it may delete what must never be forgotten");
        checks.push(
            Check::warn(RIGHTS, finding)
                .advise("serve with a role of its own, which larder fleet migrate --serve-as ROLE gives its rights"),
        );
    } else if !schema.excessive.is_empty() {
        let finding = format!("{role} may do more than it should: {}", schema.excessive.join(", "));
        checks.push(
            Check::warn(RIGHTS, finding)
                .advise("serve with a role that does not own the schema, and revoke these rights from it"),
        );
    }
    if schema.lacking.is_empty() {
        if checks.is_empty() {
            checks.push(Check::passed(RIGHTS, format!("{role} may add to the history and delete nothing of it")));
        }
    } else {
        let finding = format!("{role} lacks rights: {}", schema.lacking.join(", "));
        checks.push(Check::fail(RIGHTS, finding).advise(MIGRATE_ADVICE));
    }
    let replicas = i32::try_from(schema.replicas).unwrap_or(i32::MAX).max(1);
    let needed = replicas.saturating_mul(i32::try_from(MAX_CONNECTIONS).unwrap_or(i32::MAX));
    let of_role = (server.connections_of_role >= 0).then_some(server.connections_of_role);
    let most = of_role.map_or(server.connections, |of_role| of_role.min(server.connections));
    if most < needed {
        let finding = format!(
            "{role} gets {most} connections, and {replicas} replica{} may take {needed}",
            if replicas == 1 { "" } else { "s" }
        );
        checks.push(Check::warn(DATABASE, finding).advise(
            "raise max_connections or the role's CONNECTION LIMIT, or put PgBouncer in transaction mode between them",
        ));
    }
    checks
}
