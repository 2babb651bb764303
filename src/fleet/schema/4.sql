-- The questions that requests wait for. PostgreSQL plans a statement anew for each call, which takes ten times as long as to run it, unless
-- the connection has prepared it; behind PgBouncer none can rely on that. The statement of a function is planned once for each connection.
-- The plans are made for tables of any size: a store may grow a thousandfold on one connection.
--
-- The first three arguments are the life that the caller knows: the epoch of the fleet, the text of the life, and the last position in
-- the log that was seen. In another life no row is returned, and nothing is written. Writes and the feed also look whether the data are
-- still the same. Questions that only read leave that out: PostgreSQL reads a file for it.

-- The one statement that writes. $4: history changes. $5, $6: the group, and the generation that was read, 0 for a new group. $7, $8:
-- paths and bodies of history. $9 to $13: paths, bodies, index entries and marks of other records; a null body removes one. $14: the
-- damaged ones among them. $15: the names that change; $16, $17: their archives. $18, $19: the hashes of the bodies.
create function larder.write(
    bigint, text, bigint, boolean, text, bigint, text[], bytea[], text[], bytea[], bytea[], boolean[], boolean[], text[],
    text[], text[], bytea[], bigint[], bigint[]
) returns table (generation bigint, seconds bigint) language plpgsql
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return query with f as (
        select from larder.here h where h.epoch = $1 and h.life = $2 and starts_with(h.life, h.place || ' ') and h.inserted >= $3
            and starts_with(h.life, h.place || ' ' || h.data || ' ') and not h.sealed and not (h.settles and $4)
    ), up as (
        update larder.grp set gen = nextval('larder.gen'), tx = pg_current_xact_id()
        where grp = $5 and gen = $6 and exists (select from f) returning gen
    ), ins as (
        insert into larder.grp select $5, nextval('larder.gen'), pg_current_xact_id() from f where $6 = 0
        on conflict do nothing returning gen
    ), g as (
        select gen from up union all select gen from ins
    ), old as (
        insert into larder.past (path, gen, body)
        select h.path, h.gen, h.body from larder.history h, g where h.path = any($7)
    ), damaged as (
        insert into larder.past (path, gen, body)
        select r.path, r.gen, r.body from larder.record r, g where r.path = any($14)
    ), hist as (
        insert into larder.history (path, grp, gen, body, hash)
        select p, $5, g.gen, b, h from g, unnest($7, $8, $18) u(p, b, h)
        on conflict (path) do update set grp = excluded.grp, gen = excluded.gen, body = excluded.body, hash = excluded.hash,
            written = now()
    ), rec as (
        insert into larder.record (path, grp, gen, body, hash, entry, pinned, imported)
        select p, $5, g.gen, b, h, e, pin, imp from g, unnest($9, $10, $19, $11, $12, $13) u(p, b, h, e, pin, imp)
        on conflict (path) do update set grp = excluded.grp, gen = excluded.gen, body = excluded.body, hash = excluded.hash,
            written = now(), entry = excluded.entry, pinned = excluded.pinned, imported = excluded.imported
    ), gone as (
        delete from larder.name_archive n using g
        where n.path = any($15) and not exists (select from unnest($16, $17) u(p, d) where u.p = n.path and u.d = n.sha256)
    ), named as (
        insert into larder.name_archive (path, sha256) select p, d from g, unnest($16, $17) u(p, d) on conflict do nothing
    )
    select gen, extract(epoch from now())::bigint from g;
end $$;

-- The records of a group that changed, and its generation, in one look. $4: the group. $5: the generation after which. $6: true for
-- removed records, too, and for bytes, up to a megabyte in all.
create function larder.delta(bigint, text, bigint, text, bigint, boolean)
returns table (
    generation bigint, key text, changed bigint, size_bytes bigint, seconds bigint, bytes bytea, listed bytea, mark bigint,
    objects text
) language plpgsql stable
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return query select g.gen, r.path, r.gen, octet_length(r.body)::bigint, extract(epoch from r.written)::bigint,
        case when $6 and octet_length(r.body) <= 65536
            and sum(octet_length(r.body)) over (order by r.gen, r.path) <= 1048576 then r.body end,
        r.entry, r.hash,
        case when r.entry is not null then (
            select string_agg(encode(n.sha256, 'hex') || ' ' || b.object, ' ') from larder.name_archive n
            join larder.blob b on b.sha256 = n.sha256 where n.path = r.path
        ) end
    from (
        select from larder.here h where h.epoch = $1 and h.life = $2 and starts_with(h.life, h.place || ' ') and h.inserted >= $3
    ) one
    left join larder.grp g on g.grp = $4
    left join (
        select c.path, c.grp, c.gen, c.body, c.hash, c.written, c.entry from larder.record c
        where c.grp = $4 and c.gen > $5 and ($6 or c.body is not null)
        union all
        select c.path, c.grp, c.gen, c.body, c.hash, c.written, null from larder.history c
        where c.grp = $4 and c.gen > $5 and ($6 or c.body is not null)
    ) r on r.grp = g.grp;
end $$;

-- The generation of a group; null without records. $4: the group.
create function larder.moment(bigint, text, bigint, text) returns table (generation bigint) language plpgsql stable
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return query select g.gen from (
        select from larder.here h where h.epoch = $1 and h.life = $2 and starts_with(h.life, h.place || ' ') and h.inserted >= $3
    ) one left join larder.grp g on g.grp = $4;
end $$;

-- The bytes of a record, and its generation; nulls for none. $4: the path. $5: it is history.
create function larder.body_of(bigint, text, bigint, text, boolean)
returns table (generation bigint, bytes bytea) language plpgsql stable
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return query select r.gen, r.body from (
        select from larder.here h where h.epoch = $1 and h.life = $2 and starts_with(h.life, h.place || ' ') and h.inserted >= $3
    ) one left join (
        select c.gen, c.body from larder.record c where not $5 and c.path = $4 and c.body is not null
        union all
        select c.gen, c.body from larder.history c where $5 and c.path = $4 and c.body is not null
    ) r on true;
end $$;

-- The groups that became visible after a snapshot, with the present snapshot and the position of the log, also where nothing changed.
-- $4: the snapshot; null names no group. A group of a dump may have a transaction that this database has not reached.
create function larder.changed_since(bigint, text, bigint, text)
returns table (snapshot text, flushed bigint, changed text, generation bigint) language plpgsql stable
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return query select pg_current_snapshot()::text, one.reached, g.grp, g.gen from (
        select h.flushed as reached from larder.here h
        where h.epoch = $1 and h.life = $2 and starts_with(h.life, h.place || ' ') and h.inserted >= $3
            and starts_with(h.life, h.place || ' ' || h.data || ' ')
    ) one left join larder.grp g on g.tx >= pg_snapshot_xmin($4::pg_snapshot)
        and not pg_visible_in_snapshot(g.tx, $4::pg_snapshot) and g.tx < pg_snapshot_xmax(pg_current_snapshot())
    limit 10001;
end $$;

-- Notes an object before its first byte is sent, unless the archive has one already, which is returned. $1: the object. $2: the hours that
-- its upload may last. $3: the digest of the archive. $4: an object with other bytes, or null.
create function larder.doom(text, integer, bytea, text) returns table (known_object text) language plpgsql
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return query with known as (
        update larder.blob set touched = now() where sha256 = $3 and object is distinct from $4 returning object
    ), noted as (
        insert into larder.doomed (object, due) select $1, now() + $2 * interval '1 hour' where not exists (select from known)
        on conflict do nothing
    )
    select object from known;
end $$;

-- The end of an upload. $4: the object. $5, $6: the digest and the size of the archive. $7: the object whose bytes are wrong, or null. If
-- another replica was first, its object counts, and this one is due.
create function larder.keep(bigint, text, bigint, text, bytea, bigint, text)
returns table (is_sealed boolean, kept_object text) language plpgsql
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return query with f as (
        select h.sealed from larder.here h
        where h.epoch = $1 and h.life = $2 and starts_with(h.life, h.place || ' ') and h.inserted >= $3
            and starts_with(h.life, h.place || ' ' || h.data || ' ')
    ), ours as (
        select d.object from larder.doomed d, f where d.object = $4 and d.due > now() + interval '10 minutes' and not f.sealed
    ), kept as (
        insert into larder.blob as b (sha256, object, size) select $5, object, $6 from ours
        on conflict (sha256) do update set touched = now(),
            object = case when b.object = $7 then excluded.object else b.object end
        returning object
    ), ended as (
        delete from larder.doomed d using kept where d.object = $4 and kept.object = $4
    ), lost as (
        update larder.doomed d set due = now() from kept where d.object = $4 and kept.object <> $4
    ), replaced as (
        insert into larder.doomed (object, due)
        select $7, now() + interval '1 day' from kept where $7 is not null and kept.object = $4
        on conflict do nothing
    )
    select f.sealed, kept.object from f left join kept on true;
end $$;
