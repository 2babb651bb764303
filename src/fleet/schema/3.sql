-- The amounts of each replica: what its folder has, and what the bucket has refused so far; null until it says so.
alter table larder.replica add column stored_bytes bigint, add column owed_archives bigint, add column owed_bytes bigint;
-- Work that one replica does for all of them, as long as it claims it anew, and has not ended.
create table larder.claim (
    work text collate "C" primary key,
    replica uuid not null,
    until timestamptz not null
);
