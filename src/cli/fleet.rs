//! `larder fleet`: prepares what the replicas of a fleet share. `serve` makes nothing of it.

use std::path::PathBuf;
#[cfg(feature = "fleet")]
use std::sync::Arc;

use clap::{Args, Subcommand};

use super::CommonOptions;
#[cfg(feature = "fleet")]
use super::{print_json, print_line};

#[derive(Debug, Subcommand)]
pub(super) enum FleetCommand {
    /// Make a fleet: the schema of its database, the rights of the role that serves, and the mark in its bucket
    ///
    /// The URL in `[fleet] database` is that of the role that owns the schema, for this command. What is there stays.
    Create(ServingRole),
    /// Bring the schema of the database up to date, and give the role that serves its rights
    ///
    /// The URL in `[fleet] database` is that of the role that owns the schema, for this command.
    Migrate(ServingRole),
    /// Take over the store of a larder that ran alone: its history, its records, its archives
    ///
    /// Needs the configuration of a replica that does not run: its folder must be free, and so must FOLDER. What the fleet has seen first
    /// counts: what differs is listed, raises an alarm, and replaces nothing. It may be repeated.
    Adopt {
        /// The folder of the other larder, its `[store] path`
        folder: PathBuf,
    },
    /// List the replicas, and count the archives, as the database knows them
    ///
    /// It asks the database, and needs no running larder.
    Status,
}

#[derive(Debug, Args)]
pub(super) struct ServingRole {
    /// The role of the replicas: it may add to the history, and delete nothing of it
    #[arg(long, value_name = "ROLE")]
    serve_as: String,
}

impl FleetCommand {
    /// Runs the command. Returns false if a person must look at its result.
    #[cfg(feature = "fleet")]
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let (creates, serve_as) = match self {
            Self::Create(ServingRole { serve_as }) => (true, serve_as),
            Self::Migrate(ServingRole { serve_as }) => (false, serve_as),
            Self::Adopt { folder } => return super::block_on(adopt(common, folder)),
            Self::Status => return status(common).map(|()| true),
        };
        prepare(common, creates, &serve_as).map(|()| true)
    }

    #[cfg(not(feature = "fleet"))]
    pub(super) fn run(self, _: &CommonOptions) -> anyhow::Result<bool> {
        let (Self::Create(ServingRole { serve_as: _ })
        | Self::Migrate(ServingRole { serve_as: _ })
        | Self::Adopt { folder: _ }
        | Self::Status) = self;
        anyhow::bail!("this larder was built without the feature fleet: build it with cargo build --features fleet")
    }
}

/// Makes or updates what all replicas share.
#[cfg(feature = "fleet")]
fn prepare(common: &CommonOptions, creates: bool, serve_as: &str) -> anyhow::Result<()> {
    use anyhow::Context as _;
    use secrecy::ExposeSecret as _;

    use crate::app::StartError;
    use crate::fleet::bucket::Bucket;
    use crate::fleet::database::Database;
    use crate::fleet::identity::{self, IdentityError};
    use crate::fleet::schema;

    anyhow::ensure!(
        !["public", ""].contains(&serve_as),
        "--serve-as names no role of its own: every role of the database would get the rights"
    );
    let (config, _) = common.load()?;
    let fleet = config.fleet.context("the configuration has no [fleet]: name the database there")?;
    let database = Database::new(fleet.database.expose_secret(), fleet.database_ca.as_deref())?;
    // Its settings are checked before anything is made.
    let bucket = creates.then(|| Bucket::new(&fleet, &config.network)).transpose()?;
    let made = schema::migrate(&database, serve_as)?;
    let marked = bucket.map(|bucket| identity::mark(&database, &bucket).map(|id| (id, bucket.place()))).transpose();
    let marked = marked.map_err(|error| match error {
        error @ (IdentityError::Two { .. } | IdentityError::Unreadable { .. }) => {
            anyhow::Error::new(StartError::Refused(error.to_string()))
        }
        error => error.into(),
    })?;
    let last = schema::MIGRATIONS.len();
    if common.json {
        let id = marked.as_ref().map(|(id, _)| id);
        print_json(&serde_json::json!({ "made": made, "migration": last, "serve_as": serve_as, "fleet": id }));
        return Ok(());
    }
    if made.is_empty() {
        print_line(&format!("the database was up to date (migration {last}); {serve_as:?} may serve"));
    } else {
        let made: Vec<String> = made.iter().map(ToString::to_string).collect();
        print_line(&format!("made migration {}; {serve_as:?} may serve", made.join(", ")));
    }
    if let Some((id, place)) = marked {
        print_line(&format!("{place} and the database are those of the fleet {id}"));
    }
    Ok(())
}

/// Takes over the store of a larder that ran alone. Returns false if something was left, or the fleet has seen other firsts.
#[cfg(feature = "fleet")]
async fn adopt(common: &CommonOptions, folder: PathBuf) -> anyhow::Result<bool> {
    use anyhow::Context as _;
    use bytesize::ByteSize;

    use super::terminal::{escape_for_terminal, plural};
    use crate::app;
    use crate::clock::Clock;

    let (config, _) = common.load()?;
    config.fleet.as_ref().context("the configuration has no [fleet]: name it there")?;
    let [from, into] = app::stores_to_adopt(&config, &folder)?;
    let libraries = [&from, &into].map(|mirror| Arc::clone(&mirror.library));
    let is_json = common.json;
    let adopting = tokio::task::spawn_blocking(move || {
        let [from, into] = libraries;
        into.take_over(&from, Clock::system().now(), |group| {
            if !is_json {
                print_line(&escape_for_terminal(group));
            }
        })
    });
    let adopted = adopting.await.context("it ended early")?;
    for mirror in [&into, &from] {
        mirror.library.close().await?;
    }
    let adopted = adopted.context("it is not whole: mend the cause, and run the command again")?;
    if is_json {
        print_json(&adopted);
    } else {
        for left in &adopted.left {
            print_line(&format!("left: {}", escape_for_terminal(left)));
        }
        for differing in &adopted.differing {
            print_line(&format!("differs, and the fleet keeps its own: {}", escape_for_terminal(differing)));
        }
        print_line(&format!(
            "took over {} and {} ({}), of {}",
            plural(adopted.records, "record"),
            plural(adopted.archives, "archive"),
            ByteSize(adopted.archive_bytes),
            plural(adopted.groups, "group"),
        ));
    }
    if !adopted.differing.is_empty() && !is_json {
        print_line("the fleet has seen other firsts: `larder status` has an alarm for each");
    }
    Ok(adopted.differing.is_empty() && adopted.left.is_empty())
}

/// Prints the state of a fleet, as its database has it.
#[cfg(feature = "fleet")]
fn status(common: &CommonOptions) -> anyhow::Result<()> {
    use std::time::Duration;

    use anyhow::Context as _;
    use bytesize::ByteSize;
    use secrecy::ExposeSecret as _;

    use super::terminal::{Column, TextPage, plural, width_of_stdout};
    use crate::fleet::database::Database;
    use crate::fleet::examine::{FleetFacts, ReplicaFacts, ReplicaState, fleet_facts};
    use crate::store::ReplicaAmounts;

    let (config, _) = common.load()?;
    let fleet = config.fleet.context("the configuration has no [fleet]")?;
    let database = Database::new(fleet.database.expose_secret(), fleet.database_ca.as_deref())?;
    let facts = fleet_facts(&database).context("the database of the fleet does not say")?;
    if common.json {
        print_json(&facts);
        return Ok(());
    }
    let FleetFacts {
        id,
        database,
        server_version,
        database_bytes,
        sealed,
        settles,
        archives,
        archive_bytes,
        doomed_objects,
        replicas,
    } = facts;
    let mut page = TextPage::of_width(width_of_stdout());
    page.group("fleet", &id);
    if sealed {
        page.row("", "sealed: it takes no writes any more");
    }
    if settles {
        page.row("", "the database was restored or changed a moment ago: nothing is recorded as first for a minute");
    }
    page.group("database", &format!("{database}, PostgreSQL {server_version}"));
    page.row("size", &ByteSize(database_bytes).to_string());
    page.group("bucket", &fleet.bucket.to_string());
    page.row("archives", &format!("{archives} ({})", ByteSize(archive_bytes)));
    page.row("to go", &format!("{}, uploads that have not ended among them", plural(doomed_objects, "object")));
    let heard = replicas.iter().filter(|replica| replica.state == ReplicaState::Heard).count();
    page.group("replicas", &format!("{heard} heard in the last ten seconds"));
    let row = |ReplicaFacts { url, version, silent_seconds, state, amounts }: &ReplicaFacts| {
        let silence = humantime::format_duration(Duration::from_secs(*silent_seconds));
        let heard = match state {
            ReplicaState::Heard => "heard".to_owned(),
            ReplicaState::Silent => format!("silent for {silence}"),
            ReplicaState::Ended => format!("ended {silence} ago"),
        };
        let stored = amounts.map(|amounts| ByteSize(amounts.stored_bytes).to_string()).unwrap_or_default();
        let owed = match amounts {
            Some(ReplicaAmounts { owed_archives: archives @ 1.., owed_bytes, .. }) => {
                format!("OWES {} ({}) to the bucket", plural(*archives, "archive"), ByteSize(*owed_bytes))
            }
            Some(_) | None => String::new(),
        };
        ([url.clone(), version.clone(), heard, stored], owed)
    };
    let rows: Vec<_> = replicas.iter().map(row).collect();
    page.columns([Column::Left(""), Column::Left(""), Column::Left(""), Column::Right("stored here")], &rows);
    print_line(&page.text());
    Ok(())
}
