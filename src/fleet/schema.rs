//! The schema of the database: the migrations that make it, and the rights of the role that serves.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::database::{Database, DatabaseError};
use crate::digest::Digest;

/// A change of the schema. A migration that has a number is never changed again.
#[derive(Debug)]
pub struct Migration {
    /// Its number, from 1.
    pub number: i32,
    /// Its statements.
    pub sql: &'static str,
    /// The oldest larder that may run after it.
    pub oldest_binary: &'static str,
}

/// All migrations, in order.
pub const MIGRATIONS: [Migration; 4] = [
    Migration { number: 1, sql: include_str!("schema/1.sql"), oldest_binary: "0.1.0" },
    Migration { number: 2, sql: include_str!("schema/2.sql"), oldest_binary: "0.1.0" },
    Migration { number: 3, sql: include_str!("schema/3.sql"), oldest_binary: "0.1.0" },
    Migration { number: 4, sql: include_str!("schema/4.sql"), oldest_binary: "0.1.0" },
];

/// The longest time that all migrations take.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(600);

/// The schema and its list of migrations, which exist before the first one.
const FIRST: &str = "
    create schema if not exists larder;
    create table if not exists larder.migration (
        n integer primary key, sha256 text not null, oldest_binary text not null, at timestamptz not null default now()
    );
    lock table larder.migration in share row exclusive mode;";

/// The rights of the role that serves: it adds to what must not be forgotten, and deletes nothing of it.
const RIGHTS: &str = "
    grant usage on schema larder to {role};
    grant usage on sequence larder.gen to {role};
    grant execute on all functions in schema larder to {role};
    grant select on all tables in schema larder to {role};
    grant insert, update on larder.grp, larder.record, larder.history, larder.blob, larder.doomed, larder.replica,
        larder.name_archive, larder.claim to {role};
    grant update on larder.fleet to {role};
    grant insert on larder.past, larder.action to {role};
    grant delete on larder.record, larder.name_archive, larder.blob, larder.doomed, larder.replica, larder.claim to {role};";

/// The schema is not one that this larder can use.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SchemaError {
    /// The database did not answer, or refused.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A migration of this larder is missing.
    #[error("the database lacks migration {0}")]
    Missing(i32),
    /// A migration was made of other statements.
    #[error("migration {0} of the database is not that of this larder: another program made it")]
    Other(i32),
    /// The database is newer, and this larder is too old for it.
    #[error("the database has migration {number}, which needs larder {oldest_binary} or newer")]
    Newer {
        /// The migration.
        number: i32,
        /// The oldest larder that may run with it.
        oldest_binary: String,
    },
}

/// Brings the schema up to date, and gives `role` the rights to serve. The role of the connection owns the schema. Returns the
/// numbers of the migrations that were made.
///
/// # Errors
/// Nothing was changed.
pub fn migrate(database: &Database, role: &str) -> Result<Vec<i32>, SchemaError> {
    let rights = RIGHTS.replace("{role}", &quoted(role));
    let migrate_once = || {
        let rights = rights.clone();
        database.run_within(MIGRATION_TIMEOUT, |client| Box::pin(async move { migrate_with(client, &rights).await }))
    };
    match migrate_once() {
        // Another one made the schema at the same moment: its list of migrations is there now.
        Err(DatabaseError::Refused { state, .. }) if ["23505", "42P06", "42P07"].contains(&state.code()) => {
            migrate_once()?
        }
        migrated => migrated?,
    }
}

async fn migrate_with(client: &Client, rights: &str) -> Result<Result<Vec<i32>, SchemaError>, Error> {
    let migrated = async {
        // All in one transaction: a connection that breaks rolls it back.
        client.batch_execute(&format!("begin; set local lock_timeout = '10s'; {FIRST}")).await?;
        let applied = applied(client).await?;
        match judge(&applied) {
            Ok(()) | Err(SchemaError::Missing(_)) => {}
            Err(unfit) => return Ok(Err(unfit)),
        }
        let is_missing = |migration: &&Migration| !applied.iter().any(|applied| applied.number == migration.number);
        let mut made = Vec::new();
        for Migration { number, sql, oldest_binary } in MIGRATIONS.iter().filter(is_missing) {
            client.batch_execute(sql).await?;
            let digest = Digest::of(sql.as_bytes()).to_string();
            let note = "insert into larder.migration (n, sha256, oldest_binary) values ($1, $2, $3)";
            client
                .query_typed(note, &[(number, Type::INT4), (&digest, Type::TEXT), (oldest_binary, Type::TEXT)])
                .await?;
            made.push(*number);
        }
        client.batch_execute(rights).await?;
        Ok(Ok(made))
    };
    match migrated.await {
        Ok(Ok(made)) => client.batch_execute("commit").await.map(|()| Ok(made)),
        unfit => {
            // The reason is the first failure.
            let _ = client.batch_execute("rollback").await;
            unfit
        }
    }
}

/// A migration in the database.
struct Applied {
    number: i32,
    sha256: String,
    oldest_binary: String,
}

async fn applied(client: &Client) -> Result<Vec<Applied>, Error> {
    let rows = client.query_typed("select n, sha256, oldest_binary from larder.migration order by n", &[]).await?;
    Ok(rows.iter().map(|row| Applied { number: row.get(0), sha256: row.get(1), oldest_binary: row.get(2) }).collect())
}

/// Checks that this larder can use the schema as it is. Changes nothing.
///
/// # Errors
/// It cannot.
pub fn check(database: &Database) -> Result<(), SchemaError> {
    match database.run(|client| Box::pin(applied(client))) {
        Err(DatabaseError::Refused { state, .. }) if ["3F000", "42P01"].contains(&state.code()) => {
            Err(SchemaError::Missing(1))
        }
        applied => judge(&applied?),
    }
}

/// Judges the migrations of a database.
fn judge(applied: &[Applied]) -> Result<(), SchemaError> {
    let ours = version_numbers(env!("CARGO_PKG_VERSION"));
    if let Some(Applied { number, oldest_binary, .. }) =
        applied.iter().find(|applied| version_numbers(&applied.oldest_binary) > ours)
    {
        return Err(SchemaError::Newer { number: *number, oldest_binary: oldest_binary.clone() });
    }
    for Migration { number, sql, .. } in &MIGRATIONS {
        match applied.iter().find(|applied| applied.number == *number) {
            None => return Err(SchemaError::Missing(*number)),
            Some(applied) if applied.sha256 != Digest::of(sql.as_bytes()).to_string() => {
                return Err(SchemaError::Other(*number));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The numbers of a version of larder; those of another text are larger than all others.
fn version_numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap_or(u32::MAX)).collect()
}

/// The name of a role in SQL.
fn quoted(role: &str) -> String {
    format!("\"{}\"", role.replace('"', "\"\""))
}
