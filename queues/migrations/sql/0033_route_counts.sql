-- The total of a route goes with the route, however that is deleted.
alter table queues_routecount
    add constraint queues_routecount_route foreign key (route_id) references queues_route (id) on delete cascade;
