//! The objects of the bucket, as the database knows them: of each archive the one that counts, and those that must go.

use tokio_postgres::types::Type;

use super::bucket::ObjectName;
use super::database::{DatabaseError, Line};
use super::records::{DatabaseRecords, number8, text};
use crate::digest::Digest;
use crate::store::StoreError;

/// The time for which an upload may last, in hours: an object that belongs to no archive by then goes.
const UPLOAD_HOURS: i32 = 24;
/// The most objects that are due at a time.
const MAX_DUE: i64 = 100;

// The questions that requests wait for: functions of the schema (`schema/4.sql`).
const DOOM: &str = "select * from larder.doom($1, $2, $3, $4)";
const KEEP: &str = "select * from larder.keep($1, $2, $3, $4, $5, $6, $7)";

/// `$1`: the most at a time. An archive that is secured meanwhile is touched, and stays.
const DOOM_UNNAMED: &str = "
with unnamed as (
    delete from larder.blob where sha256 in (
        select b.sha256 from larder.blob b where b.touched < now() - interval '1 day'
        and not exists (select from larder.name_archive n where n.sha256 = b.sha256) limit $1
    ) and touched < now() - interval '1 day' returning object
)
insert into larder.doomed (object, due) select object, now() + interval '1 day' from unnamed on conflict do nothing";

/// The end of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// The archive has this object: ours, or that of a replica that was first.
    As(ObjectName),
    /// The upload took longer than it may: its object goes.
    TooLate,
    /// The fleet takes no writes.
    Sealed,
}

impl DatabaseRecords {
    /// The object of an archive, whose use is noted; `None` if the bucket has none.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn object_of(&self, digest: &Digest) -> Result<Option<ObjectName>, StoreError> {
        let ask = "update larder.blob set touched = now() where sha256 = $1 returning object";
        let rows = self.rows_on(Line::Shared, ask, [bytes(digest)])?;
        // The schema of another larder may have other names.
        Ok(rows.first().and_then(|row| row.get::<_, &str>(0).parse().ok()))
    }

    /// Notes an object before its first byte is sent: what is left of an upload that nobody ends goes after a day. If the archive has an
    /// object already, other than `wrong`, nothing is noted, and that one is returned.
    ///
    /// # Errors
    /// The database does not take it.
    pub fn doom(
        &self,
        object: &ObjectName,
        digest: &Digest,
        wrong: Option<&ObjectName>,
    ) -> Result<Option<ObjectName>, StoreError> {
        let hours = (Box::new(UPLOAD_HOURS) as _, Type::INT4);
        let wrong = (Box::new(wrong.map(ToString::to_string)) as _, Type::TEXT);
        let rows = self.rows_on(Line::Shared, DOOM, [text(object.to_string()), hours, bytes(digest), wrong])?;
        // The schema of another larder may have other names.
        Ok(rows.first().and_then(|row| row.get::<_, &str>(0).parse().ok()))
    }

    /// Forgets an object of which no byte was sent.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn is_unsent(&self, object: &ObjectName) -> Result<(), StoreError> {
        self.rows_on(Line::Shared, "delete from larder.doomed where object = $1", [text(object.to_string())])?;
        Ok(())
    }

    /// Notes an object that came too late, whatever the archive has.
    ///
    /// # Errors
    /// The database does not take it.
    pub fn doom_late(&self, object: &ObjectName) -> Result<(), StoreError> {
        let note = "insert into larder.doomed (object, due) values ($1, now()) on conflict do nothing";
        self.rows_on(Line::Shared, note, [text(object.to_string())])?;
        Ok(())
    }

    /// Gives an archive its object, whose upload is complete. `replaced` is an object whose bytes were wrong.
    ///
    /// # Errors
    /// The database does not answer. The object may be kept all the same.
    pub fn keep(
        &self,
        object: &ObjectName,
        digest: &Digest,
        size_bytes: u64,
        replaced: Option<&ObjectName>,
    ) -> Result<Kept, StoreError> {
        let (rows, _) = self.rows_in_life(Line::Shared, KEEP, |_| {
            let replaced = (Box::new(replaced.map(ToString::to_string)) as _, Type::TEXT);
            [text(object.to_string()), bytes(digest), number8(size_bytes.cast_signed()), replaced]
        })?;
        let Some(row) = rows.first() else { return Ok(Kept::TooLate) };
        let unknown = || DatabaseError::Unreachable("the database names an object that this larder cannot".to_owned());
        Ok(match row.get::<_, Option<&str>>(1) {
            Some(kept) => Kept::As(kept.parse().map_err(|_| unknown())?),
            None if row.get(0) => Kept::Sealed,
            None => Kept::TooLate,
        })
    }

    /// Dooms the objects of archives that no name has had for a day: others may still read them, for another day.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn doom_unnamed(&self) -> Result<(), StoreError> {
        self.rows_on(Line::Shared, DOOM_UNNAMED, [number8(MAX_DUE)])?;
        Ok(())
    }

    /// Objects that must go: no upload of them can be completed any more.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn due_objects(&self) -> Result<Vec<ObjectName>, StoreError> {
        let ask = "select object from larder.doomed where due <= now() order by due limit $1";
        let rows = self.rows_on(Line::Shared, ask, [number8(MAX_DUE)])?;
        Ok(rows.iter().filter_map(|row| row.get::<_, &str>(0).parse().ok()).collect())
    }

    /// Puts off the removal of an object that stays: others go before it.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn postpone(&self, object: &ObjectName) -> Result<(), StoreError> {
        let later = "update larder.doomed set due = now() + interval '1 hour' where object = $1 and due <= now()";
        self.rows_on(Line::Shared, later, [text(object.to_string())])?;
        Ok(())
    }

    /// Notes that an object is gone from the bucket.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn is_gone(&self, object: &ObjectName) -> Result<(), StoreError> {
        let gone = "delete from larder.doomed where object = $1 and due <= now()";
        self.rows_on(Line::Shared, gone, [text(object.to_string())])?;
        Ok(())
    }
}

fn bytes(digest: &Digest) -> super::records::Parameter {
    (Box::new(digest.as_bytes().to_vec()), Type::BYTEA)
}
