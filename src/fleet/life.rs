//! The life of a database. One that was restored, or that a standby took over, may have forgotten what it acknowledged, so it begins
//! another life: copies are compared whole, and for a minute nothing is recorded as first.

use parking_lot::Mutex;
use tokio_postgres::types::Type;

use super::database::{Database, DatabaseError};
use crate::store::CopiedRecord;

/// The rounds in which replicas may be faster to notice another life.
const MAX_ROUNDS: usize = 4;

/// The life of a database, as a replica knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Life {
    /// The epoch of the fleet.
    pub epoch: i64,
    /// The life as the database has it; empty before the database was asked.
    pub text: String,
    /// The beginning of its hash.
    pub hash: u64,
    /// The beginning of the hash of its place and data: positions are those of one log while these are the same.
    pub log: u64,
    /// The last position in the log that was seen: what came before it is on the disk of the database.
    pub position: i64,
}

/// The state of the fleet in the database.
#[derive(Debug)]
pub struct Here {
    /// The life.
    pub life: Life,
    /// True if the fleet takes no writes any more.
    pub is_sealed: bool,
    /// True if nothing is recorded as first, because another life began a moment ago.
    pub settles: bool,
}

/// The life that this process knows.
#[derive(Debug, Default)]
pub struct KnownLife(Mutex<Life>);

impl KnownLife {
    /// The life that another process of this replica has seen, by its hash, and a position in its log.
    pub fn remember(&self, hash: u64, log: u64, position: i64) {
        let mut known = self.0.lock();
        if known.text.is_empty() {
            (known.hash, known.log, known.position) = (hash, log, position);
        }
    }

    /// The hash of the life.
    pub fn hash(&self) -> u64 {
        self.0.lock().hash
    }

    /// The life, of which the database is asked once.
    pub fn get(&self, database: &Database) -> Result<Life, DatabaseError> {
        let known = self.0.lock().clone();
        if known.text.is_empty() { self.learn(database).map(|here| here.life) } else { Ok(known) }
    }

    /// Notes that a position of the log of this life is on the disk.
    pub fn reached(&self, life: u64, position: i64) {
        let mut known = self.0.lock();
        if known.hash == life {
            known.position = known.position.max(position);
        }
    }

    /// Asks for the present life. If the database may have forgotten something, this begins another one.
    pub fn learn(&self, database: &Database) -> Result<Here, DatabaseError> {
        for _ in 0..MAX_ROUNDS {
            // Before the question: others go on meanwhile.
            let before = self.0.lock().clone();
            let asked = database.run(|client| {
                Box::pin(async move {
                    let ask = "select epoch, life, sealed, settles, place || ' ' || data, flushed from larder.here";
                    client.query_typed(ask, &[]).await
                })
            })?;
            let Some(row) = asked.first() else {
                return Err(DatabaseError::Unreachable("the database has no fleet".to_owned()));
            };
            let (Some(identity), Some(flushed)) = (row.get::<_, Option<&str>>(4), row.get::<_, Option<i64>>(5)) else {
                return Err(DatabaseError::Unreachable("the database is a standby, which takes no writes".to_owned()));
            };
            let text: String = row.get(1);
            let hash = CopiedRecord::hash_of(text.as_bytes());
            let log = CopiedRecord::hash_of(identity.as_bytes());
            let is_same_data = text.strip_prefix(identity).is_some_and(|mark| mark.starts_with(' '));
            // Another replica may have noticed it, and have begun the life that follows.
            let is_next = before.hash != hash && text.ends_with(&format!(" {:016x}", before.hash));
            let was_set_back = before.log == log && flushed < before.position && !is_next;
            if is_same_data && !was_set_back {
                let mut known = self.0.lock();
                let position = if known.hash == hash { known.position.max(flushed) } else { flushed };
                *known = Life { epoch: row.get(0), text, hash, log, position };
                return Ok(Here { life: known.clone(), is_sealed: row.get(2), settles: row.get(3) });
            }
            Self::begin_another(database, text, before.hash)?;
        }
        Err(Self::changes_again())
    }

    /// The error of a caller that met too many lives.
    pub fn changes_again() -> DatabaseError {
        DatabaseError::Unreachable("the database changes again and again".to_owned())
    }

    /// Begins another life after that of the database, unless another replica has done so. `known` is the hash of the life that this
    /// replica knows; 0 for none.
    pub fn begin_another(database: &Database, after: String, known: u64) -> Result<(), DatabaseError> {
        // The first life of a fleet has nothing to forget.
        let is_first = after.is_empty() && known == 0;
        let mark = format!(" {known:016x}");
        let begun = database.run(move |client| {
            Box::pin(async move {
                let begin = "update larder.fleet f
                    set life = h.place || ' ' || h.data || ' ' || gen_random_uuid() || $2,
                    settle_until = case when $3 then f.settle_until
                        else greatest(f.settle_until, now() + interval '60 seconds') end
                    from larder.here h where f.life = $1 and h.place is not null returning 1";
                client.query_typed(begin, &[(&after, Type::TEXT), (&mark, Type::TEXT), (&is_first, Type::BOOL)]).await
            })
        })?;
        if !is_first && !begun.is_empty() {
            tracing::error!(
                "the database was restored, or a standby took over: it may have forgotten what it acknowledged, so nothing is \
                 recorded as first for a minute"
            );
        }
        Ok(())
    }
}
