-- Move a sequence on by so many of its steps. Not setval, which could take it back behind ids that were taken
-- meanwhile.
select max(nextval(%(sequence)s::text::regclass)) from generate_series(1, %(steps)s)
