-- Give each open message of these segments a row of its own.
select queues_unpack_segments(%(firsts)s::bigint[])
