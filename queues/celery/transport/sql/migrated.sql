-- Whether the database has Fivewire's tables, those of Celery among them.
select to_regclass('queues_kombubinding') is not null
