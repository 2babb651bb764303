//! The records of a fleet in PostgreSQL. Each function asks the database; nothing is kept.
//!
//! A step reads the generation of its group, then records, and writes all changes in one statement that names this generation. If
//! another replica was faster, the statement changes nothing.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::database::{Database, DatabaseError, Line};
use super::life::{Here, KnownLife, Life};
use crate::address::Artifact;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::store::{
    Change, CopiedRecord, Generation, GroupRef, IndexEntry, IndexedName, Key, Moment, NameCursor, ReadOutcome,
    RecordAction, RecordGroup, RecordScope, Records, SeenLife, StoreError, Striped, Turns, WriteOutcome, sort_text,
};

/// The lives that one step asks for, where the database changes meanwhile.
const MAX_LIVES: usize = 4;
/// The rows that are read at a time.
const PAGE_ROWS: usize = 1000;

// The questions that requests wait for: their statements are functions of the schema (`schema/4.sql`), which PostgreSQL plans once for a
// connection.
const WRITE: &str =
    "select * from larder.write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)";
const DELTA: &str = "select * from larder.delta($1, $2, $3, $4, $5, $6)";
const MOMENT: &str = "select * from larder.moment($1, $2, $3, $4)";
const BODY_OF: &str = "select * from larder.body_of($1, $2, $3, $4, $5)";
const CHANGED_SINCE: &str = "select * from larder.changed_since($1, $2, $3, $4)";

/// The most changed groups that are named.
const MAX_CHANGED: usize = 10_000;

/// Records in the database of a fleet.
#[derive(Debug)]
pub struct DatabaseRecords {
    database: Arc<Database>,
    life: KnownLife,
    /// Counters that grow with each write of this process.
    writes: Striped<AtomicU64>,
    turns: Turns,
}

/// The changes of a group.
#[derive(Debug)]
pub struct Delta {
    /// The group now; generation 0 for one without records.
    pub at: Moment,
    /// Which records it has.
    pub extent: Extent,
    /// The records.
    pub records: Vec<SharedRecord>,
}

/// The records in a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All that the group has.
    Whole,
    /// Those that changed, and those that were removed.
    Changes,
}

/// A record in the database.
#[derive(Debug)]
pub struct SharedRecord {
    /// Its key.
    pub key: Key,
    /// The generation at which it was written.
    pub at: Moment,
    /// Its size in bytes; `None` for one that was removed.
    pub size_bytes: Option<u64>,
    /// The time at which it was written.
    pub written: Timestamp,
    /// Its bytes, if they came along.
    pub body: Option<Vec<u8>>,
    /// The beginning of the hash of its bytes.
    pub hash: Option<u64>,
    /// Of a name: what it lists.
    pub name: Option<IndexedName>,
    /// Of a name: the objects of its archives in the bucket.
    pub objects: Vec<(Digest, String)>,
}

/// The transactions that are visible at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The hash of its life.
    pub life: u64,
    /// The snapshot as PostgreSQL writes it.
    pub text: String,
}

/// The groups that changed since a snapshot.
#[derive(Debug)]
pub struct News {
    /// The snapshot of this answer: the next question begins here.
    pub snapshot: Snapshot,
    /// The log of the database, by its hash.
    pub log: u64,
    /// The position in it.
    pub position: u64,
    /// The groups that have changed, and the moment of each; `None` where any may have.
    pub changed: Option<Vec<(RecordGroup, Moment)>>,
}

/// The answer to a write.
#[derive(Debug, Clone, Copy)]
pub enum SharedWrite {
    /// It is in the database.
    Written(Written),
    /// It changes no record, and its group is still at the generation that was read.
    Unchanged,
    /// The group was at another generation, so nothing was written.
    Conflict,
}

/// A write that the database has taken.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// The generation that it made.
    pub at: Moment,
    /// Its time.
    pub time: Timestamp,
}

/// The changes of one step as the parameters of [`WRITE`].
#[derive(Debug, Default)]
struct Parameters {
    history: Vec<(String, Option<Vec<u8>>)>,
    records: Vec<RecordRow>,
    damaged: Vec<String>,
    names: Vec<String>,
    archives: Vec<(String, Vec<u8>)>,
}

#[derive(Debug)]
struct RecordRow {
    path: String,
    body: Option<Vec<u8>>,
    entry: Option<Vec<u8>>,
    pinned: bool,
    imported: bool,
}

impl Parameters {
    /// The last change to each record counts.
    fn of(changes: &[Change]) -> Self {
        let mut parameters = Self::default();
        let mut last = BTreeMap::new();
        for change in changes.iter().filter(|change| change.action != RecordAction::Keep) {
            let path = text_of(&change.key.path());
            if change.action == RecordAction::Quarantine {
                parameters.damaged.push(path.clone());
            }
            last.insert(path, change);
        }
        for (path, Change { key, action, entry }) in last {
            let body = if let RecordAction::Put(record, _) = action { Some(record.clone()) } else { None };
            if key.is_history() {
                parameters.damaged.retain(|damaged| *damaged != path);
                parameters.history.push((path, body));
                continue;
            }
            let name = match (entry, &body) {
                (IndexEntry::Name(name), Some(_)) if !name.is_empty() => Some(name),
                _ => None,
            };
            if matches!(key, Key::Name(_)) {
                let listed = name.into_iter().flat_map(|name| &name.archives);
                parameters.archives.extend(listed.map(|listed| (path.clone(), listed.digest.as_bytes().to_vec())));
                parameters.names.push(path.clone());
            }
            let (pinned, imported) = name.map_or((false, false), |name| (name.pinned, name.imported));
            let entry = name.map(IndexedName::encode);
            parameters.records.push(RecordRow { path, body, entry, pinned, imported });
        }
        parameters
    }
}

impl DatabaseRecords {
    /// The records in a database.
    pub fn of(database: Arc<Database>) -> Self {
        Self { database, life: KnownLife::default(), writes: Striped::default(), turns: Turns::default() }
    }

    /// The life that another process of this replica has seen.
    pub fn remember_life(&self, SeenLife { life, log, position, .. }: SeenLife) {
        self.life.remember(life, log, position.cast_signed());
    }

    /// Lets a request through, unless the database did not answer a moment ago.
    ///
    /// # Errors
    /// The reason why it did not.
    pub fn admit(&self) -> Result<(), StoreError> {
        Ok(self.database.admit()?)
    }

    /// True for a moment of the life that this process knows.
    pub fn is_of_known_life(&self, at: Moment) -> bool {
        self.life.hash() == at.life
    }

    /// Runs a query whose first three parameters are the life, and those given follow. Returns its rows and the life; asks for the life again where they are
    /// none, which is the answer of another life.
    pub(super) fn rows_in_life<const N: usize>(
        &self,
        line: Line,
        sql: &'static str,
        parameters: impl Fn(&Life) -> [Parameter; N],
    ) -> Result<(Vec<Row>, Life), DatabaseError> {
        let mut life = self.life.get(&self.database)?;
        for _ in 0..MAX_LIVES {
            let rows = self.rows_on(line, sql, in_life(&life, parameters(&life)))?;
            if !rows.is_empty() {
                return Ok((rows, life));
            }
            life = self.life.learn(&self.database)?.life;
        }
        Err(KnownLife::changes_again())
    }

    /// Runs one query. Its parameters have these types, in order.
    fn rows(&self, sql: impl Into<String>, parameters: impl Into<Vec<Parameter>>) -> Result<Vec<Row>, DatabaseError> {
        self.rows_on(Line::Shared, sql, parameters)
    }

    /// Runs one query on one of the lines to the database.
    pub(super) fn rows_on(
        &self,
        line: Line,
        sql: impl Into<String>,
        parameters: impl Into<Vec<Parameter>>,
    ) -> Result<Vec<Row>, DatabaseError> {
        let (sql, parameters) = (sql.into(), parameters.into());
        self.database.run_on(line, move |client| {
            Box::pin(async move {
                let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                    parameters.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect();
                client.query_typed(&sql, &typed).await
            })
        })
    }

    /// The questions to the database since the start, without those by which this replica hears of others.
    pub fn questions(&self) -> u64 {
        self.database.questions()
    }

    /// The moment of a group in the database; generation 0 for one without records.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn moment(&self, group: &RecordGroup) -> Result<Moment, DatabaseError> {
        let (rows, life) = self.rows_in_life(Line::Shared, MOMENT, |_| [text(group.name())])?;
        let generation = rows.first().and_then(|row| row.get::<_, Option<i64>>(0)).unwrap_or_default();
        Ok(Moment { life: life.hash, generation: Generation(generation.cast_unsigned()) })
    }

    /// The records of a group that changed after a moment. Before any, and after one of another life, these are all records, without
    /// their bytes.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn delta(&self, group: &RecordGroup, after: Option<Moment>) -> Result<Delta, StoreError> {
        for _ in 0..MAX_LIVES {
            let since = |life: &Life| after.filter(|after| after.life == life.hash).map(|after| after.generation);
            let (rows, life) = self.rows_in_life(Line::Shared, DELTA, |life| {
                let since = since(life);
                let number = since.map_or(0, |since| since.0.cast_signed());
                [text(group.name()), number8(number), boolean(since.is_some())]
            })?;
            let number = |row: &Row, column| row.get::<_, Option<i64>>(column).map(i64::cast_unsigned);
            let moment = |generation| Moment { life: life.hash, generation: Generation(generation) };
            let at = moment(rows.first().and_then(|row| number(row, 0)).unwrap_or_default());
            let since = since(&life);
            if since.is_some_and(|since| since.0 > at.generation.0) {
                // It has forgotten what is here.
                KnownLife::begin_another(&self.database, life.text, life.hash)?;
                continue;
            }
            let record = |row: &Row| {
                Some(SharedRecord {
                    // A newer larder may have records of other kinds.
                    key: Key::from_path(Path::new(row.get::<_, Option<&str>>(1)?))?,
                    at: moment(number(row, 2)?),
                    size_bytes: number(row, 3),
                    written: Timestamp(number(row, 4)?),
                    body: row.get(5),
                    hash: number(row, 7),
                    name: row.get::<_, Option<&[u8]>>(6).and_then(IndexedName::decode),
                    objects: row.get::<_, Option<&str>>(8).map(objects_in).unwrap_or_default(),
                })
            };
            let extent = if since.is_some() { Extent::Changes } else { Extent::Whole };
            return Ok(Delta { at, extent, records: rows.iter().filter_map(record).collect() });
        }
        Err(StoreError::Busy(group.to_string()))
    }

    /// The bytes of a record, and the moment at which it was written; `None` if it is absent.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn body(&self, key: &Key) -> Result<Option<(Moment, Vec<u8>)>, StoreError> {
        let (rows, life) =
            self.rows_in_life(Line::Shared, BODY_OF, |_| [text(text_of(&key.path())), boolean(key.is_history())])?;
        let found = |row: &Row| {
            let generation = Generation(row.get::<_, Option<i64>>(0)?.cast_unsigned());
            Some((Moment { life: life.hash, generation }, row.get(1)))
        };
        Ok(rows.first().and_then(found))
    }

    /// The groups that have changed since a snapshot.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn changes_since(&self, last: Option<&Snapshot>) -> Result<News, StoreError> {
        // One of another life says nothing.
        let last_in = |life: &Life| last.filter(|last| last.life == life.hash).map(|last| last.text.clone());
        let (rows, life) =
            self.rows_in_life(Line::Apart, CHANGED_SINCE, |life| [(Box::new(last_in(life)), Type::TEXT)])?;
        let (text, position): (String, i64) = rows.first().map(|row| (row.get(0), row.get(1))).unwrap_or_default();
        self.life.reached(life.hash, position);
        let group = |row: &Row| {
            let generation = Generation(row.get::<_, Option<i64>>(3)?.cast_unsigned());
            // A group that this larder does not know has no copy.
            Some((RecordGroup::of_name(row.get::<_, Option<&str>>(2)?)?, Moment { life: life.hash, generation }))
        };
        let is_complete = last_in(&life).is_some() && rows.len() <= MAX_CHANGED;
        let changed = is_complete.then(|| rows.iter().filter_map(group).collect());
        Ok(News {
            snapshot: Snapshot { life: life.hash, text },
            log: life.log,
            position: position.cast_unsigned(),
            changed,
        })
    }

    /// Makes changes to records of one group, if it is still at the moment `read_at`.
    ///
    /// # Errors
    /// The database does not answer, or takes no writes.
    pub fn write_at(
        &self,
        group: &RecordGroup,
        read_at: Moment,
        changes: &[Change],
    ) -> Result<SharedWrite, StoreError> {
        debug_assert!(changes.iter().all(|change| change.key.group() == *group), "{group:?}: {changes:?}");
        let parameters = Parameters::of(changes);
        if parameters.history.is_empty() && parameters.records.is_empty() {
            // A decision that changes nothing must hold as well.
            let is_current = self.moment(group)? == read_at;
            return Ok(if is_current { SharedWrite::Unchanged } else { SharedWrite::Conflict });
        }
        let life = self.life.get(&self.database)?;
        if life.hash != read_at.life {
            return Ok(SharedWrite::Conflict);
        }
        let changes_history = !parameters.history.is_empty();
        match self.write_rows(&life, group, read_at, parameters) {
            Ok(Some(written)) => Ok(SharedWrite::Written(written)),
            Ok(None) if self.moment(group)? != read_at => Ok(SharedWrite::Conflict),
            Ok(None) => match self.refusal(changes_history)? {
                Some(reason) => Err(StoreError::Unreachable(reason.to_owned())),
                None => Ok(SharedWrite::Conflict),
            },
            // The write may have happened: the step reads again.
            Err(error) if error.may_be_repeated() => Ok(SharedWrite::Conflict),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes; `None` if the group was at another moment, or the database takes no writes.
    fn write_rows(
        &self,
        life: &Life,
        group: &RecordGroup,
        read_at: Moment,
        Parameters { history, records, damaged, names, archives }: Parameters,
    ) -> Result<Option<Written>, DatabaseError> {
        let hash_of = |body: &Option<Vec<u8>>| body.as_deref().map(|body| CopiedRecord::hash_of(body).cast_signed());
        let history_hashes: Vec<_> = history.iter().map(|(_, body)| hash_of(body)).collect();
        let hashes: Vec<_> = records.iter().map(|row| hash_of(&row.body)).collect();
        let (history_paths, history_bodies): (Vec<_>, Vec<_>) = history.into_iter().unzip();
        let changes_history = !history_paths.is_empty();
        let (archive_paths, digests): (Vec<_>, Vec<_>) = archives.into_iter().unzip();
        let column = |choose: fn(&RecordRow) -> bool| records.iter().map(choose).collect::<Vec<bool>>();
        let (pinned, imported) = (column(|row| row.pinned), column(|row| row.imported));
        let (mut paths, mut bodies, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for row in records {
            paths.push(row.path);
            bodies.push(row.body);
            entries.push(row.entry);
        }
        let rows = self.rows(
            WRITE,
            in_life(
                life,
                [
                    boolean(changes_history),
                    text(group.name()),
                    number8(read_at.generation.0.cast_signed()),
                    (Box::new(history_paths), Type::TEXT_ARRAY),
                    (Box::new(history_bodies), Type::BYTEA_ARRAY),
                    (Box::new(paths), Type::TEXT_ARRAY),
                    (Box::new(bodies), Type::BYTEA_ARRAY),
                    (Box::new(entries), Type::BYTEA_ARRAY),
                    (Box::new(pinned), Type::BOOL_ARRAY),
                    (Box::new(imported), Type::BOOL_ARRAY),
                    (Box::new(damaged), Type::TEXT_ARRAY),
                    (Box::new(names), Type::TEXT_ARRAY),
                    (Box::new(archive_paths), Type::TEXT_ARRAY),
                    (Box::new(digests), Type::BYTEA_ARRAY),
                    (Box::new(history_hashes), Type::INT8_ARRAY),
                    (Box::new(hashes), Type::INT8_ARRAY),
                ],
            ),
        )?;
        let written = |row: &Row| {
            let [generation, time] = [0, 1].map(|column| row.get::<_, i64>(column).cast_unsigned());
            Written { at: Moment { life: life.hash, generation: Generation(generation) }, time: Timestamp(time) }
        };
        Ok(rows.first().map(written))
    }

    /// The reason why the database takes no such writes; `None` if it takes them.
    fn refusal(&self, changes_history: bool) -> Result<Option<&'static str>, DatabaseError> {
        let Here { is_sealed, settles, .. } = self.life.learn(&self.database)?;
        let reasons = [
            (is_sealed, "the fleet is sealed"),
            (
                changes_history && settles,
                "the database was restored or changed a moment ago: nothing is recorded as first for a minute",
            ),
        ];
        Ok(reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason))
    }

    /// The names that a query returns, by their paths.
    fn names_by<const N: usize>(&self, sql: &str, parameters: [Parameter; N]) -> Result<Vec<Artifact>, StoreError> {
        Ok(self.rows(sql, parameters)?.iter().filter_map(|row| artifact_at(row.get(0))).collect())
    }
}

impl Records for DatabaseRecords {
    fn read(&self, key: &Key) -> Result<ReadOutcome, StoreError> {
        let sql = format!("select body from larder.{} where path = $1 and body is not null", table_of(key));
        let rows = self.rows(sql, [text(text_of(&key.path()))])?;
        Ok(rows.first().map_or(ReadOutcome::Absent, |row| ReadOutcome::Intact(row.get(0))))
    }

    fn stat(&self, key: &Key) -> Result<Option<(u64, Timestamp)>, StoreError> {
        let sql = format!(
            "select octet_length(body)::int8, extract(epoch from written)::int8 from larder.{}
             where path = $1 and body is not null",
            table_of(key)
        );
        let rows = self.rows(sql, [text(text_of(&key.path()))])?;
        let [size, written] = [0, 1].map(|column| rows.first().map(|row| row.get::<_, i64>(column).unsigned_abs()));
        Ok(size.zip(written.map(Timestamp)))
    }

    fn refresh(&self, _: RecordScope<'_>) -> Result<(), StoreError> {
        // Each read asks the database.
        Ok(())
    }

    fn generation(&self, group: &RecordGroup) -> Result<Generation, StoreError> {
        Ok(self.moment(group)?.as_generation())
    }

    fn generation_now(&self, group: GroupRef<'_>) -> Generation {
        Generation(self.writes.of(&group).load(Ordering::Acquire))
    }

    fn write(&self, group: &RecordGroup, read_at: Generation, changes: &[Change]) -> Result<WriteOutcome, StoreError> {
        let read_at = Moment::in_life(self.life.get(&self.database)?.hash, read_at);
        let outcome = self.write_at(group, read_at, changes)?;
        self.writes.of(&group.as_ref()).fetch_add(1, Ordering::AcqRel);
        Ok(match outcome {
            SharedWrite::Written(_) | SharedWrite::Unchanged => WriteOutcome::Written,
            SharedWrite::Conflict => WriteOutcome::Conflict,
        })
    }

    fn of_machine(&self) -> &dyn Records {
        self
    }

    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn sync(&self, key: &Key) -> Result<bool, StoreError> {
        // A statement that has ended is durable.
        Ok(self.stat(key)?.is_some())
    }

    fn page(&self, folder: &Path, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, u64)>, StoreError> {
        // In the order of paths, component by component, which is that of their texts with the smallest character between them.
        let of_table = |table: &str| {
            format!(
                "select path, translate(path, '/', E'\\x01') as place, octet_length(body)::int8 as size
                 from larder.{table} where body is not null
                 and translate(path, '/', E'\\x01') > $1 and translate(path, '/', E'\\x01') < $2"
            )
        };
        let sql = format!(
            "select path, size from ({} union all {}) r order by place limit $3",
            of_table("record"),
            of_table("history")
        );
        let (from, to) = (format!("{}\u{1}", sort_text(folder)), format!("{}\u{2}", sort_text(folder)));
        let mut after = after.map(|key| sort_text(&key.path())).filter(|after| *after > from).unwrap_or(from);
        let mut keys = Vec::new();
        while keys.len() < limit {
            let wanted = limit - keys.len();
            let most: (Box<dyn ToSql + Sync + Send>, Type) =
                (Box::new(i64::try_from(wanted).unwrap_or(i64::MAX)), Type::INT8);
            let rows = self.rows(sql.clone(), [text(after.clone()), text(to.clone()), most])?;
            let is_last = rows.len() < wanted;
            for row in &rows {
                let path: &str = row.get(0);
                after = sort_text(Path::new(path));
                // A newer larder may have records of other kinds.
                keys.extend(Key::from_path(Path::new(path)).map(|key| (key, row.get::<_, i64>(1).unsigned_abs())));
            }
            if is_last {
                break;
            }
        }
        Ok(keys)
    }

    fn names_in(&self, folder: &Path) -> Result<Vec<String>, StoreError> {
        let of_table = |table: &str| {
            format!(
                "select split_part(substr(path, $3), '/', 1) from larder.{table} where body is not null
                 and path > $1 and path < $2"
            )
        };
        let sql = format!("select n from ({} union {}) r(n) order by n", of_table("record"), of_table("history"));
        let (from, to) = range_below(folder);
        let first = i32::try_from(from.chars().count() + 1).unwrap_or(i32::MAX);
        let rows = self.rows(sql, [text(from), text(to), (Box::new(first), Type::INT4)])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn name(&self, artifact: &Artifact) -> Result<Option<IndexedName>, StoreError> {
        let path = text_of(&Key::Name(artifact.clone()).path());
        let rows = self.rows("select entry from larder.record where path = $1 and entry is not null", [text(path)])?;
        Ok(rows.first().and_then(|row| IndexedName::decode(row.get(0))))
    }

    fn name_records(&self, artifacts: &[Artifact]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let paths: Vec<String> = artifacts.iter().map(|name| text_of(&Key::Name(name.clone()).path())).collect();
        let mut records = BTreeMap::new();
        for page in paths.chunks(PAGE_ROWS) {
            let ask = "select path, body from larder.record where path = any($1) and body is not null";
            let rows = self.rows(ask, [(Box::new(page.to_vec()) as _, Type::TEXT_ARRAY)])?;
            records.extend(rows.iter().map(|row| (row.get::<_, String>(0), row.get::<_, Vec<u8>>(1))));
        }
        Ok(paths.iter().map(|path| records.remove(path)).collect())
    }

    fn each_name(
        &self,
        folder: &Path,
        after: Option<&NameCursor>,
        visit: &mut dyn FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (from, to) = range_below(folder);
        let mut after = after.map(NameCursor::path).filter(|after| *after > from).unwrap_or(from);
        let sql = format!(
            "select path, entry from larder.record where entry is not null and path > $1 and path < $2
             order by path limit {PAGE_ROWS}"
        );
        loop {
            let rows = self.rows(sql.clone(), [text(after.clone()), text(to.clone())])?;
            for row in &rows {
                let path: &str = row.get(0);
                if let Some((artifact, name)) = artifact_at(path).zip(IndexedName::decode(row.get(1)))
                    && visit(artifact, name).is_break()
                {
                    return Ok(());
                }
            }
            match rows.last() {
                Some(last) if rows.len() == PAGE_ROWS => after = last.get(0),
                _ => return Ok(()),
            }
        }
    }

    fn names_of(&self, digest: &Digest) -> Result<Vec<Artifact>, StoreError> {
        let digest: (Box<dyn ToSql + Sync + Send>, Type) = (Box::new(digest.as_bytes().to_vec()), Type::BYTEA);
        self.names_by("select path from larder.name_archive where sha256 = $1 order by path", [digest])
    }

    fn pinned_names(&self) -> Result<Vec<Artifact>, StoreError> {
        self.names_by("select path from larder.record where pinned order by path", [])
    }

    fn imported_names(&self, limit: usize) -> Result<Vec<Artifact>, StoreError> {
        let limit: (Box<dyn ToSql + Sync + Send>, Type) =
            (Box::new(i64::try_from(limit).unwrap_or(i64::MAX)), Type::INT8);
        self.names_by("select path from larder.record where imported order by path limit $1", [limit])
    }
}

/// A parameter, and its type.
pub(super) type Parameter = (Box<dyn ToSql + Sync + Send>, Type);

pub(super) fn text(value: String) -> Parameter {
    (Box::new(value), Type::TEXT)
}

pub(super) fn number8(value: i64) -> Parameter {
    (Box::new(value), Type::INT8)
}

fn boolean(value: bool) -> Parameter {
    (Box::new(value), Type::BOOL)
}

/// The parameters of a statement that begin with a life.
fn in_life(life: &Life, others: impl IntoIterator<Item = Parameter>) -> Vec<Parameter> {
    let life = [number8(life.epoch), text(life.text.clone()), number8(life.position)];
    life.into_iter().chain(others).collect()
}

/// The table of a record.
fn table_of(key: &Key) -> &'static str {
    if key.is_history() { "history" } else { "record" }
}

/// The path of a record as text. Paths are made of names, which are valid Unicode.
fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The bounds of the paths below a folder, as texts.
fn range_below(folder: &Path) -> (String, String) {
    let folder = text_of(folder);
    // The character after a slash.
    (format!("{folder}/"), format!("{folder}0"))
}

/// The archives and their objects in a text that alternates between both.
fn objects_in(text: &str) -> Vec<(Digest, String)> {
    let words: Vec<&str> = text.split(' ').collect();
    let pair = |pair: &[&str]| Some((Digest::parse(pair.first()?).ok()?, (*pair.get(1)?).to_owned()));
    words.chunks(2).filter_map(pair).collect()
}

fn artifact_at(path: &str) -> Option<Artifact> {
    match Key::from_path(Path::new(path))? {
        Key::Name(artifact) => Some(artifact),
        _ => None,
    }
}
