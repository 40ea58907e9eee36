drop table queues_rollupdraft;
