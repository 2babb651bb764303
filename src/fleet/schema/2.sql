-- The settings that all replicas must have in common, as each has them.
alter table larder.replica add column settings text not null default '';
