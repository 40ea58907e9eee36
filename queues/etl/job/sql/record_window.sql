-- Note in the database that this run has cut its window: a database that knows the token has all that the window saw.
insert into queues_etlwitness as w (output, token, previous, at) values (%(output)s, %(token)s, null, now())
on conflict (output) do update set previous = w.token, token = excluded.token, at = now()
where w.token <> excluded.token
