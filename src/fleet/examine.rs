//! The facts about the database and the bucket of a fleet that a replica depends on. What tries the bucket removes what it put there;
//! nothing else changes.

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::bucket::{Bucket, BucketError, ObjectName, PART_BYTES};
use super::database::{Database, DatabaseError};
use crate::digest::Digest;
use crate::store::ReplicaAmounts;
use crate::upstream::buckets::{BucketFault, BucketTrouble};
use crate::verify::Verified;

/// The tables and views of the schema, with what the role that serves must be allowed, and what it must not be.
const RIGHTS: [(&str, &[&str], &[&str]); 13] = [
    ("grp", &["select", "insert", "update"], &["delete", "truncate"]),
    ("record", &["select", "insert", "update", "delete"], &["truncate"]),
    ("history", &["select", "insert", "update"], &["delete", "truncate"]),
    ("past", &["select", "insert"], &["update", "delete", "truncate"]),
    ("blob", &["select", "insert", "update", "delete"], &["truncate"]),
    ("doomed", &["select", "insert", "update", "delete"], &["truncate"]),
    ("name_archive", &["select", "insert", "delete"], &["truncate"]),
    ("replica", &["select", "insert", "update", "delete"], &["truncate"]),
    ("claim", &["select", "insert", "update", "delete"], &["truncate"]),
    ("action", &["select", "insert"], &["update", "delete", "truncate"]),
    ("fleet", &["select", "update"], &["insert", "delete", "truncate"]),
    ("here", &["select"], &[]),
    ("migration", &["select"], &["insert", "update", "delete", "truncate"]),
];

/// The time for which a replica counts as heard, in seconds.
const HEARD_SECONDS: u64 = 10;

/// The facts about a server, and about the role that serves.
#[derive(Debug)]
pub struct ServerFacts {
    /// The version as a number: 150018 for 15.18.
    pub version_number: i32,
    /// The version as text.
    pub version: String,
    /// The role of the connection.
    pub role: String,
    /// True if it may do anything.
    pub is_superuser: bool,
    /// The most connections of all roles, without those that are kept for superusers.
    pub connections: i32,
    /// The most connections of this role; negative for no limit.
    pub connections_of_role: i32,
    /// Where a commit waits: `synchronous_standby_names`. Empty for the server alone.
    pub synchronous_standbys: String,
    /// True if what is acknowledged is on its disk: `fsync` is on, and `synchronous_commit` is not off.
    pub is_durable: bool,
    /// Seconds since 1970, by the clock of the server.
    pub time: f64,
}

/// The facts about the schema.
#[derive(Debug)]
pub struct SchemaFacts {
    /// Rights that the role needs and lacks, such as `insert on larder.past`.
    pub lacking: Vec<String>,
    /// Rights that it has and must not have.
    pub excessive: Vec<String>,
    /// The replicas that were heard in the last 10 seconds.
    pub replicas: i64,
}

/// Asks the server about itself and about the role.
///
/// # Errors
/// It does not answer.
pub fn server_facts(database: &Database) -> Result<ServerFacts, DatabaseError> {
    let ask =
        "select current_setting('server_version_num')::int4, current_setting('server_version'), current_user::text,
        r.rolsuper,
        current_setting('max_connections')::int4 - current_setting('superuser_reserved_connections')::int4,
        r.rolconnlimit, current_setting('synchronous_standby_names'),
        current_setting('fsync')::bool and current_setting('synchronous_commit') <> 'off',
        extract(epoch from clock_timestamp())::float8
        from pg_roles r where r.rolname = current_user";
    let facts = database.run(move |client| {
        Box::pin(async move {
            let rows = client.query_typed(ask, &[]).await?;
            Ok(rows.first().map(|row| ServerFacts {
                version_number: row.get(0),
                version: row.get(1),
                role: row.get(2),
                is_superuser: row.get(3),
                connections: row.get(4),
                connections_of_role: row.get(5),
                synchronous_standbys: row.get(6),
                is_durable: row.get(7),
                time: row.get(8),
            }))
        })
    });
    facts?.ok_or_else(|| DatabaseError::Unreachable("the server does not know the role of the connection".to_owned()))
}

/// The facts about a fleet, as its database has them.
#[derive(Debug, Serialize)]
pub struct FleetFacts {
    /// The id of the fleet.
    pub id: String,
    /// The name of the database.
    pub database: String,
    /// The version of its server.
    pub server_version: String,
    /// The bytes of the database on the disk of the server.
    pub database_bytes: u64,
    /// True if it takes no writes any more.
    pub sealed: bool,
    /// True if nothing is recorded as first, because the database was restored or changed a moment ago.
    pub settles: bool,
    /// The number of archives in the bucket.
    pub archives: u64,
    /// Their bytes.
    pub archive_bytes: u64,
    /// Objects that must go, and uploads that have not ended.
    pub doomed_objects: u64,
    /// The replicas that run, or ended within a day with no other at their URL since, by URL.
    pub replicas: Vec<ReplicaFacts>,
}

/// A replica, as it announced itself.
#[derive(Debug, Serialize)]
pub struct ReplicaFacts {
    /// The URL at which the others reach it.
    pub url: String,
    /// Its version.
    pub version: String,
    /// The seconds since it reached the database last.
    pub silent_seconds: u64,
    /// Its state.
    pub state: ReplicaState,
    /// The amounts of its folder; `None` until it says so.
    pub amounts: Option<ReplicaAmounts>,
}

/// The state of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaState {
    /// It was heard in the last ten seconds.
    Heard,
    /// It was not.
    Silent,
    /// It has said that it ends, or another one has taken its URL.
    Ended,
}

/// Asks about a fleet and its replicas.
///
/// # Errors
/// The database does not answer, or has no fleet.
pub fn fleet_facts(database: &Database) -> Result<FleetFacts, DatabaseError> {
    let ask = "select f.id::text, f.sealed, f.settle_until > now(), b.n, b.bytes, (select count(*) from larder.doomed),
        current_database()::text, current_setting('server_version'), pg_database_size(current_database())
        from larder.fleet f, (select count(*) as n, coalesce(sum(size), 0)::int8 as bytes from larder.blob) b";
    let ask_replicas = "select url, version, extract(epoch from now() - seen)::int8, left_at is not null,
        stored_bytes, owed_archives, owed_bytes from larder.replica r
        where left_at is null or not exists (select from larder.replica n where n.url = r.url and n.seen > r.seen)
        order by url, seen desc";
    let facts = database.run(move |client| {
        Box::pin(async move {
            let (rows, replicas) = (client.query_typed(ask, &[]).await?, client.query_typed(ask_replicas, &[]).await?);
            let replica = |row: &Row| {
                let silent_seconds = row.get::<_, i64>(2).unsigned_abs();
                let state = match row.get(3) {
                    true => ReplicaState::Ended,
                    false if silent_seconds <= HEARD_SECONDS => ReplicaState::Heard,
                    false => ReplicaState::Silent,
                };
                let amount = |column| row.get::<_, Option<i64>>(column).map(i64::unsigned_abs);
                let amounts = amount(4).zip(amount(5)).zip(amount(6));
                let amounts = amounts.map(|((stored_bytes, owed_archives), owed_bytes)| ReplicaAmounts {
                    stored_bytes,
                    owed_archives,
                    owed_bytes,
                });
                ReplicaFacts { url: row.get(0), version: row.get(1), silent_seconds, state, amounts }
            };
            let number = |row: &Row, column| row.get::<_, i64>(column).unsigned_abs();
            Ok(rows.first().map(|row| FleetFacts {
                id: row.get(0),
                database: row.get(6),
                server_version: row.get(7),
                database_bytes: number(row, 8),
                sealed: row.get(1),
                settles: row.get(2),
                archives: number(row, 3),
                archive_bytes: number(row, 4),
                doomed_objects: number(row, 5),
                replicas: replicas.iter().map(replica).collect(),
            }))
        })
    });
    facts?.ok_or_else(|| DatabaseError::Unreachable("the database has no fleet".to_owned()))
}

/// Asks for what every statement of a replica asks first: where the database is in its log, and whose log it is.
///
/// # Errors
/// The database does not tell it: some hosted ones refuse these functions.
pub fn check_log(database: &Database) -> Result<(), DatabaseError> {
    let ask = "select place, data, inserted, flushed from larder.here";
    database.run(move |client| Box::pin(async move { client.query_typed(ask, &[]).await.map(drop) }))
}

/// The size of the object that tries a bucket, in bytes: one part, and a byte.
const PROBE_BYTES: usize = PART_BYTES as usize + 1;

/// The facts about a bucket.
#[derive(Debug)]
pub struct BucketFacts {
    /// True if it refuses bytes that change on the way.
    pub checks_bytes: bool,
}

/// Tries what a replica asks of a bucket: an object whole and in parts, a range of it, its removal, an upload that is given up.
///
/// # Errors
/// The first request that it does not fulfil.
pub async fn try_bucket(bucket: &Bucket) -> Result<BucketFacts, BucketError> {
    let bytes = Bytes::from(vec![b'?'; PROBE_BYTES]);
    let (digest, wrong) = (Digest::of(&bytes), "answer with the bytes that it was sent");
    let broken = |said: &str| {
        let fault = BucketFault { trouble: BucketTrouble::WrongBytes, said: said.to_owned() };
        bucket.failed(wrong, fault)
    };
    let name = || ObjectName::new(&digest).map_err(|_| broken("this system returns no random bytes"));
    let proof = Verified::by_digest((), digest, digest).map_err(|_| broken("a digest is not itself"))?;
    let (small, whole) = (bytes.slice(..100), name()?);
    bucket.put(&whole, small.clone(), &proof).await?;
    let read = async {
        let arriving = bucket.get(&whole, 40).await?;
        let pieces: Vec<Bytes> = arriving.bytes.try_collect().await?;
        let is_right = arriving.length == 100 && pieces.concat() == small[40..];
        if is_right { Ok(()) } else { Err(broken("a range has other bytes")) }
    };
    let read = read.await;
    // The object goes in any case.
    let removed = bucket.delete(&whole).await;
    read.and(removed)?;
    let (in_parts, given_up) = (name()?, name()?);
    let partial = bucket.begin(&in_parts).await?;
    let completed = async {
        let first = bucket.put_part(&partial, 0, bytes.slice(..PART_BYTES as usize)).await?;
        let last = bucket.put_part(&partial, 1, bytes.slice(PART_BYTES as usize..)).await?;
        bucket.complete(&partial, &[first, last], &proof).await
    };
    if let Err(error) = completed.await {
        bucket.abort(&partial).await?;
        return Err(error);
    }
    let length = bucket.length(&in_parts).await;
    bucket.delete(&in_parts).await?;
    if length? != bytes.len() as u64 {
        return Err(broken("an object in parts has another length"));
    }
    bucket.abort(&bucket.begin(&given_up).await?).await?;
    let spoilt = name()?;
    let checks_bytes = bucket.put_spoilt(&spoilt, small).await.is_err();
    bucket.delete(&spoilt).await?;
    Ok(BucketFacts { checks_bytes })
}

/// Asks which rights the role has in the schema.
///
/// # Errors
/// The database does not answer, or has no such schema.
pub fn schema_facts(database: &Database) -> Result<SchemaFacts, DatabaseError> {
    let (mut tables, mut rights, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for (table, needed, forbidden) in RIGHTS {
        for (list, is_wanted) in [(needed, true), (forbidden, false)] {
            for right in list {
                tables.push(table);
                rights.push(*right);
                wanted.push(is_wanted);
            }
        }
    }
    let ask = "select right_ || ' on larder.' || table_, wanted from unnest($1, $2, $3) u(table_, right_, wanted)
        where has_table_privilege(current_user, 'larder.' || table_, right_) <> wanted
        union all select 'usage on sequence larder.gen', true
        where not has_sequence_privilege(current_user, 'larder.gen', 'usage')
        union all select 'execute on function larder.' || p.proname, true from pg_proc p
        where p.pronamespace = 'larder'::regnamespace and not has_function_privilege(p.oid, 'execute')";
    let count = "select count(*) from larder.replica where seen > now() - interval '10 seconds' and left_at is null";
    let (differing, replicas) = database.run(move |client| {
        Box::pin(async move {
            let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
                [(&tables, Type::TEXT_ARRAY), (&rights, Type::TEXT_ARRAY), (&wanted, Type::BOOL_ARRAY)];
            let differing = client.query_typed(ask, &parameters).await?;
            let differing: Vec<(String, bool)> = differing.iter().map(|row| (row.get(0), row.get(1))).collect();
            if differing.iter().any(|(right, _)| right == "select on larder.replica") {
                return Ok((differing, 0));
            }
            let replicas = client.query_typed(count, &[]).await?;
            Ok((differing, replicas.first().map_or(0, |row| row.get(0))))
        })
    })?;
    let (lacking, excessive): (Vec<_>, Vec<_>) = differing.into_iter().partition(|(_, is_wanted)| *is_wanted);
    let texts = |rights: Vec<(String, bool)>| rights.into_iter().map(|(text, _)| text).collect();
    Ok(SchemaFacts { lacking: texts(lacking), excessive: texts(excessive), replicas })
}
