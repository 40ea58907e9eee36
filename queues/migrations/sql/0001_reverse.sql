-- Functions go with their triggers and indexes, tables with their partitions and views. Django drops its own tables.
do $$
declare
    made regprocedure;
begin
    for made in
        select oid from pg_proc where pronamespace = current_schema()::regnamespace and proname like 'queues\_%'
    loop
        execute format('drop function if exists %s cascade', made);
    end loop;
end $$;
drop table queues_message, queues_segment, queues_segmentbody, queues_segmentsettlement, queues_queuetally,
    queues_archivedmessage, queues_archivedsegment, queues_audit, queues_audithead, queues_topologychange,
    queues_instruction, queues_rollupdraft cascade;
drop sequence queues_message_id, queues_tally_id, queues_mailbox_connection;
