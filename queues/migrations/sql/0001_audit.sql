-- The audit chains: heads that are found at once, rows partitioned by day that only grow, and the functions that make
-- and drop partitions and lock a head.

-- Moving a head never touches a unique index with an unchanged key, whose dead entries it would have to walk while
-- an old transaction keeps them: the newest version is the first in this index.
create table queues_audithead (
    chain_id integer not null,
    next_seq bigint not null constraint audithead_next_seq check (next_seq >= 0),
    hash bytea not null constraint audithead_hash check (octet_length(hash) = 32),
    last_at timestamptz
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create unique index audithead_newest on queues_audithead (chain_id, next_seq);

alter table queues_auditanchor
    add constraint auditanchor_sizes check (
        octet_length(hash) = 32 and octet_length(previous) = 32 and octet_length(signature) = 64);
alter table queues_auditjournal set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

create table queues_audit (
    chain_id integer not null,
    seq bigint not null constraint audit_seq check (seq >= 0),
    at timestamptz not null,
    event text not null,
    -- Larger ones would not fit into an index.
    record_id text not null constraint audit_record_id check (octet_length(record_id) <= 2000),
    sender text not null,
    recipient text not null,
    hash bytea not null constraint audit_hash check (octet_length(hash) = 32)
) partition by range (at);
alter table queues_audit alter column hash set storage plain;
-- Ids of messages grow: they go to neighbouring places of a tree, and all over the table in a hash index.
create index audit_record on queues_audit (record_id);
-- Catches what no day's partition does, so that nothing that is audited fails for want of one. Statistics are taken
-- when the number of rows has doubled, as of the archive.
create table queues_audit_default partition of queues_audit default
    with (autovacuum_analyze_scale_factor = 1, autovacuum_analyze_threshold = 10000);
create unique index queues_audit_default_seq on queues_audit_default (chain_id, seq);

-- A row of a queue's chain may stand for several messages whose ids follow each other: its id is then FIRST-LAST. Ids
-- with two hyphens, as of letters, are told apart without the regular expression, which takes ten times as long.

create function queues_audit_first(record_id text) returns bigint language sql immutable as
$$ select case when record_id not like '%-%-%' and record_id ~ '^[0-9]{1,18}-[0-9]{1,18}$'
    then split_part(record_id, '-', 1)::bigint end $$;

create function queues_audit_last(record_id text) returns bigint language sql immutable as
$$ select case when record_id not like '%-%-%' and record_id ~ '^[0-9]{1,18}-[0-9]{1,18}$'
    then split_part(record_id, '-', 2)::bigint end $$;
-- Letters have the first two of these events, and no rows that stand for several: their rows pay for two comparisons.
create index audit_span on queues_audit (queues_audit_first(record_id))
    where event <> 'send' and event <> 'ack' and queues_audit_first(record_id) is not null;

create function queues_audit_refuse() returns trigger
language plpgsql as $$
-- Honest mistakes end here. Who means it can take the trigger away: that is what verifying is for.
begin
    if tg_op = 'TRUNCATE' then
        -- Emptying every table together is no mistake.
        if not exists (select from queues_auditchain) then
            return null;
        end if;
    elsif current_setting('fivewire.audit_upkeep', true) = 'on' then
        return case tg_op when 'DELETE' then old else new end;
    end if;
    raise exception 'the audit chain only grows: % refused', lower(tg_op) using errcode = 'insufficient_privilege';
end $$;
create trigger audit_only_grows before update or delete on queues_audit
    for each row execute function queues_audit_refuse();
create trigger audit_is_not_emptied after truncate on queues_audit
    for each statement execute function queues_audit_refuse();
create trigger audit_is_not_emptied after truncate on queues_audit_default
    for each statement execute function queues_audit_refuse();

create function queues_make_audit_partitions(first_day date, days integer) returns integer
language plpgsql as $$
-- Make the partitions of these days (UTC) that do not exist; returns how many were made.
declare
    made integer := 0;
    day date;
    partition text;
    low timestamptz;
    high timestamptz;
    upkeep text := coalesce(current_setting('fivewire.audit_upkeep', true), '');
begin
    perform pg_advisory_xact_lock(hashtext('queues_audit'));
    for i in 0 .. days - 1 loop
        day := first_day + i;
        partition := 'queues_audit_' || to_char(day, 'YYYYMMDD');
        if to_regclass(partition) is null then
            low := day::timestamp at time zone 'UTC';
            high := (day + 1)::timestamp at time zone 'UTC';
            execute format(
                'create table %I (like queues_audit including defaults including constraints including storage)
                 with (autovacuum_analyze_scale_factor = 1, autovacuum_analyze_threshold = 10000)',
                partition);
            execute format('create unique index %I on %I (chain_id, seq)', partition || '_seq', partition);
            execute format('create trigger audit_is_not_emptied after truncate on %I
                for each statement execute function queues_audit_refuse()', partition);
            -- Rows that fell into the default partition would forbid the new one: move them.
            perform set_config('fivewire.audit_upkeep', 'on', true);
            execute format(
                'with moved as (delete from queues_audit_default where at >= %L and at < %L returning *)
                 insert into %I select * from moved', low, high, partition);
            perform set_config('fivewire.audit_upkeep', upkeep, true);
            execute format('alter table queues_audit attach partition %I for values from (%L) to (%L)', partition,
                low, high);
            made := made + 1;
        end if;
    end loop;
    return made;
end $$;

create function queues_drop_audit_partitions(before_day date) returns integer
language plpgsql as $$
-- Drop the partitions of all days before this one, and older rows of the default one; returns how many there were.
declare
    dropped integer := 0;
    partition text;
    upkeep text := coalesce(current_setting('fivewire.audit_upkeep', true), '');
begin
    perform pg_advisory_xact_lock(hashtext('queues_audit'));
    for partition in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'queues_audit'::regclass and c.relname ~ '^queues_audit_\d{8}$'
            and right(c.relname, 8) < to_char(before_day, 'YYYYMMDD')
    loop
        execute format('drop table %I', partition);
        dropped := dropped + 1;
    end loop;
    perform set_config('fivewire.audit_upkeep', 'on', true);
    delete from queues_audit_default where at < before_day::timestamp at time zone 'UTC';
    perform set_config('fivewire.audit_upkeep', upkeep, true);
    return dropped;
end $$;

create function queues_audit_head(chain text)
    returns table (chain_id integer, next_seq bigint, hash bytea, place tid)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off as $$
-- Lock a chain's head until the calling transaction ends, making the chain if need be. Each statement in here sees
-- what was committed while the one before it waited. The place stays right as long as the lock is held.
#variable_conflict use_column
declare
    id_found integer;
begin
    select c.id into id_found from queues_auditchain c where c.name = chain;
    if id_found is null then
        insert into queues_auditchain (name) values (chain) on conflict (name) do nothing returning id into id_found;
        if id_found is not null then
            insert into queues_audithead (chain_id, next_seq, hash)
            values (id_found, 0, '\xaf1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262');
        else -- another transaction was first
            select c.id into strict id_found from queues_auditchain c where c.name = chain;
        end if;
    end if;
    return query select h.chain_id, h.next_seq, h.hash, h.ctid from queues_audithead h
        where h.chain_id = id_found order by h.next_seq desc limit 1 for no key update;
end $$;

create function queues_audit_complete(appended bigint, given bigint) returns bigint
language plpgsql immutable as $$
-- That all rows were appended: if not, the whole transaction fails, with whatever it would have recorded.
begin
    if appended <> given then
        raise exception '% of % rows were appended: the head of the audit chain is not locked', appended, given
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    return appended;
end $$;

create function queues_audit_switched() returns trigger
language plpgsql as $$
-- Note in the queue's own chain that it is audited from now on, is no longer, or is gone. Who did it is what the
-- transaction has said (fivewire.operator), else who is logged in to the database.
declare
    queue text := case when tg_op = 'DELETE' then old.name else new.name end;
begin
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    values (
        'queue:' || queue,
        case when tg_op = 'DELETE' then 'delete' when new.audited then 'audit-on' else 'audit-off' end,
        'queue:' || queue,
        coalesce(nullif(current_setting('fivewire.operator', true), ''), 'database:' || session_user),
        '');
    return null;
end $$;
create trigger queue_begins_audited after insert on queues_queue
    for each row when (new.audited) execute function queues_audit_switched();
create trigger queue_switches_audit after update of audited on queues_queue
    for each row when (old.audited <> new.audited) execute function queues_audit_switched();
create trigger queue_ends_audited after delete on queues_queue
    for each row when (old.audited) execute function queues_audit_switched();

select queues_make_audit_partitions((now() at time zone 'UTC')::date, 7);
