-- The records of a fleet. A group is the records of one address; its generation changes with each step.
create table larder.fleet (
    one boolean primary key default true check (one),
    id uuid not null default gen_random_uuid(),
    epoch bigint not null default 1,
    -- The place and the data of the database, a mark of its own for each time at which it may have forgotten something, and the hash
    -- of the life before; empty until a replica has noted it.
    life text not null default '',
    -- Nothing is recorded as first before this time.
    settle_until timestamptz not null default '-infinity',
    sealed boolean not null default false,
    format integer not null default 1
);
insert into larder.fleet default values;

-- The fleet, and the database as it is now; null on a standby. A restored or promoted database has another place, which is its
-- timeline, its number and that of this table, or other data. Positions in the log only grow, unless the disk was set back; what is
-- flushed survives a crash. What a statement does not ask for is not evaluated: the number of the data is read from a file.
create view larder.here as
select f.epoch, f.life, f.sealed, f.settle_until > now() as settles,
    case when not pg_is_in_recovery() then substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) || '/' || d.oid || '/'
        || 'larder.fleet'::regclass::oid end as place,
    (select system_identifier::text from pg_control_system()) as data,
    case when not pg_is_in_recovery() then (pg_current_wal_insert_lsn() - '0/0')::int8 end as inserted,
    case when not pg_is_in_recovery() then (pg_current_wal_flush_lsn() - '0/0')::int8 end as flushed
from larder.fleet f, pg_database d where d.datname = current_database();

create table larder.replica (
    id uuid primary key,
    url text not null,
    version text not null,
    formats text not null default '',
    -- The seconds of silence after which it serves nothing; null for no limit.
    serve_behind bigint,
    -- The snapshot that the replica has applied, and when it was heard last.
    applied text not null default '',
    seen timestamptz not null default now(),
    left_at timestamptz
);

create sequence larder.gen;
create table larder.grp (
    grp text collate "C" primary key,
    gen bigint not null,
    tx xid8 not null
);
create index grp_tx on larder.grp (tx);

-- A record without a body was removed at its generation.
create table larder.record (
    path text collate "C" primary key,
    grp text collate "C" not null,
    gen bigint not null,
    body bytea,
    -- The beginning of the hash of the body.
    hash bigint,
    written timestamptz not null default now(),
    -- Of a name: its archives and marks, as the index has them.
    entry bytea,
    pinned boolean not null default false,
    imported boolean not null default false
);
create index record_grp on larder.record (grp, gen);
create index record_place on larder.record (translate(path, '/', E'\x01'));
create index record_pinned on larder.record (path) where pinned;
create index record_imported on larder.record (path) where imported;

-- What must never be forgotten: what was seen first, the keys of providers, the times of lists.
create table larder.history (
    path text collate "C" primary key,
    grp text collate "C" not null,
    gen bigint not null,
    body bytea,
    hash bigint,
    written timestamptz not null default now()
);
create index history_grp on larder.history (grp, gen);
create index history_place on larder.history (translate(path, '/', E'\x01'));

-- Every earlier body of a history, and every damaged record.
create table larder.past (
    path text collate "C" not null,
    gen bigint not null,
    body bytea,
    at timestamptz not null default now(),
    primary key (path, gen)
);

create table larder.action (
    n bigint generated always as identity primary key,
    at timestamptz not null default now(),
    who text not null,
    what text not null,
    address text not null,
    outcome text not null
);

-- The archives in the bucket, by their SHA-256, and the objects that must go.
create table larder.blob (
    sha256 bytea primary key,
    object text not null unique,
    size bigint not null,
    touched timestamptz not null default now()
);
create table larder.doomed (
    object text primary key,
    due timestamptz not null
);
create table larder.name_archive (
    path text collate "C" not null,
    sha256 bytea not null references larder.blob,
    primary key (path, sha256)
);
create index name_archive_sha256 on larder.name_archive (sha256);
