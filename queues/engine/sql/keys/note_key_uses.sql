-- Note the last log-ins with API keys: for each so many seconds ago, over which protocol, from where.
insert into queues_apikeyuse as u (key_id, at, protocol, address)
select id, now() - make_interval(secs => age), protocol, address
from unnest(%(keys)s::bigint[], %(ages)s::float8[], %(protocols)s::text[], %(addresses)s::text[])
    as used (key, age, protocol, address) join queues_apikey on id = key
on conflict (key_id) do update set at = excluded.at, protocol = excluded.protocol, address = excluded.address
where excluded.at > u.at
