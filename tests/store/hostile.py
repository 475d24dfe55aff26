"""SQL that a sandbox must refuse: 1,500 statements that do more than read views, and some that exceed limits."""

from __future__ import annotations

import itertools

__all__ = ["EXHAUSTING", "hostile"]


def _words(text):
    return text.split()


STATEMENTS = """
attach database '/tmp/x.db' as x
attach ':memory:' as x
attach '' as x
detach main
vacuum
vacuum into '/tmp/stolen.db'
vacuum main into '/tmp/stolen.db'
begin
begin immediate
begin exclusive
commit
end
rollback
savepoint x
release x
rollback to x
drop table totals
drop view totals
drop table v1_totals
drop table if exists v1_totals
drop view hw_pipelines
drop index x
drop trigger x
delete from totals
delete from v1_totals
delete from hw$ledger
update totals set n = 5
update v1_totals set n = 5
update hw$epochs set epoch = 0
update or replace v1_totals set n = 5 returning n
insert into totals values ('x', 1)
insert into v1_totals values (9, 'x', 1)
insert or replace into v1_totals values (9, 'x', 1)
insert into v1_totals select * from v1_totals
insert into hw$epochs values ('x', 1) on conflict do nothing
replace into v1_totals values (9, 'x', 1)
with x as (select 1) delete from v1_totals
with x as (select 1) insert into v1_totals select 9, 'x', 1
with x as (select 1) update v1_totals set n = 1
create table x (y)
create temp table x (y)
create temporary table x as select * from totals
create table x as select * from totals
create view x as select 1
create temp view x as select * from hw$outbox
create temp view totals as select 1
create index x on v1_totals (n)
create unique index x on v1_totals (n)
create trigger x after insert on v1_totals begin select 1; end
create temp trigger x after insert on main.v1_totals begin select 1; end
create virtual table x using fts5(y)
create virtual table x using fts4(y)
create virtual table x using rtree(a,b,c)
create virtual table temp.x using dbstat
create virtual table x using csv(filename='/etc/passwd')
alter table v1_totals rename to x
alter table v1_totals add column x
alter table v1_totals drop column n
alter table v1_totals rename column n to m
reindex
reindex v1_totals
analyze
analyze main
select load_extension('/tmp/x.so')
select load_extension('/tmp/x.so', 'init')
select readfile('/etc/passwd')
select writefile('/tmp/x', 'y')
select edit('x')
select randomblob(1000000000)
select zeroblob(1000000000)
select length(zeroblob(1000000000))
select hex(randomblob(10))
select fts3_tokenizer('simple')
select fts3_tokenizer('simple', x'00')
select sqlite_compileoption_get(1)
select sqlite_compileoption_used('x')
select sqlite_source_id()
select sqlite_log(1, 'x')
select sqlite_offset(n) from totals
select sqlite_version()
select last_insert_rowid()
select changes()
select total_changes()
select match('a', 'b')
select 'a' match 'b'
select 'a' regexp 'b'
select json_patch('{}', '{}')
select soundex('x')
select nope('x')
select * from sqlite_master
select sql from sqlite_schema
select * from main.sqlite_master
select * from temp.sqlite_master
select * from sqlite_temp_master
select * from sqlite_temp_schema
select count(*) from sqlite_master
select * from sqlite_sequence
select * from sqlite_stat1
select 1 from sqlite_schema
select name from pragma_table_info('v1_totals')
select * from pragma_database_list
select * from pragma_database_list()
select file from pragma_database_list
select * from pragma_function_list
select * from pragma_module_list
select * from pragma_compile_options
select * from pragma_table_list
select count(*) from pragma_table_list
select * from pragma_user_version
select * from dbstat
select count(*) from dbstat
select * from sqlite_dbpage
select * from sqlite_stmt
select * from bytecode('select 1')
select * from tables_used('select 1')
select * from generate_series(1, 10)
select * from fts5vocab
select * from hw$outbox
select changes from hw$outbox
select count(*) from hw$outbox
select 1 from hw$outbox
select * from main.hw$outbox
select * from "hw$outbox"
select * from [hw$outbox]
select * from `hw$outbox`
select * from HW$OUTBOX
select * from hw$skips
select value from hw$skips
select count(*) from hw$skips
select * from hw$epochs
select epoch from hw$epochs
select (select value from hw$skips)
select exists (select 1 from hw$skips)
select exists (select value from hw$skips where value like 'c%')
select * from totals where k in (select value from hw$skips)
select * from totals join hw$skips on 1 = 1
select * from totals left join hw$skips s on s.value is not null
select * from totals natural join hw$skips
select k from totals union select value from hw$skips
select k from totals union all select value from hw$skips
select k from totals except select value from hw$skips
select k from totals order by (select value from hw$skips)
select k from totals group by (select value from hw$skips)
select k from totals limit (select length(value) from hw$skips)
select max((select value from hw$skips)) from totals
select sum(n) filter (where (select 1 from hw$skips where value like 'c%')) from totals
select sum(n) over (partition by (select value from hw$skips)) from totals
with totals as (select value from hw$skips) select * from totals
with hw_late as (select value from hw$skips) select * from hw_late
with hw_pipelines(x) as (select value from hw$skips) select x from hw_pipelines
with recursive revenue(x) as (select value from hw$skips union all select x from revenue limit 3) select x from revenue
with v1_totals as (select changes from hw$outbox) select hex(changes) from v1_totals
with x as materialized (select value from hw$skips) select * from x
select * from (select value from hw$skips) as totals
select * from (select value as k from hw$skips) totals
select totals.k from (select value as k from hw$skips) as totals
select case when 1 then (select value from hw$skips) end
select coalesce((select value from hw$skips), 1)
select json_group_array(value) from hw$skips
select group_concat(value) from hw$skips
values ((select value from hw$skips))
explain select value from hw$skips
explain query plan select * from hw$skips
select * from v0_totals
select * from v2_totals
select nope from totals
select * from nope
select
select 1; select 2
select 1; drop table v1_totals
select 1;; drop table v1_totals
select 'x'; commit; drop table v1_totals
;
nonsense
exec xp_cmdshell 'ls'
copy totals to program 'ls'
copy totals to '/tmp/x'
select pg_read_file('/etc/passwd')
select pg_sleep(100)
select * from dblink('x', 'select 1')
select * from read_csv('/etc/passwd')
select * from read_parquet('x')
select * from 'file.csv'
select * from '/etc/passwd'
install httpfs
load httpfs
set x = 1
grant all on totals to public
truncate totals
call x()
show tables
describe totals
.tables
.read /etc/passwd
.shell ls
""".strip().splitlines()
PRAGMAS = _words("""
journal_mode journal_mode=delete synchronous=off query_only=0 writable_schema=1 writable_schema=on trusted_schema=1
user_version user_version=99 application_id=1 schema_version schema_version=5 database_list table_info(v1_totals)
table_list table_xinfo(v1_totals) index_list(v1_totals) foreign_keys=on recursive_triggers=1 temp_store=1
temp_store_directory='/tmp' data_store_directory='/tmp' cache_size=1000000 cache_spill=0 mmap_size=1000000000
wal_checkpoint wal_checkpoint(truncate) wal_autocheckpoint=0 locking_mode=exclusive secure_delete=1 page_size=512
max_page_count=1 auto_vacuum=1 incremental_vacuum busy_timeout=0 case_sensitive_like=1 cell_size_check=0
compile_options collation_list function_list module_list pragma_list integrity_check quick_check optimize
hard_heap_limit=1000 soft_heap_limit=1000 threads=64 encoding='UTF-16' legacy_alter_table=1 defer_foreign_keys=1
ignore_check_constraints=1 analysis_limit=1 automatic_index=0 checkpoint_fullfsync=0 count_changes=1 data_version
empty_result_callbacks=1 freelist_count full_column_names=1 fullfsync=0 key='x' rekey='x' page_count parser_trace=1
read_uncommitted=1 reverse_unordered_selects=1 short_column_names=0 shrink_memory stats vdbe_trace=1 vdbe_debug=1
""")
DISGUISES = ("{}", "{upper}", "/* select */ {}", "-- select 1\n{}", " \n\t {} \n", "{};")


def hostile():
    for pattern in DISGUISES:
        for statement in STATEMENTS:
            yield pattern.format(statement, upper=statement.upper())
    for pragma, form in itertools.product(
        PRAGMAS, ("pragma {}", "PRAGMA main.{}", "pragma temp.{}", "explain pragma {}")
    ):
        yield form.format(pragma)
    for name in ("hw$outbox", "hw$skips", "hw$epochs", "sqlite_master", "sqlite_schema"):
        for alias in ("totals", "revenue", "hw_late", "v1_totals", "x", "sqlite_master"):
            yield f"with {alias} as (select * from {name}) select * from {alias}"
            yield f"select * from (select * from {name}) {alias}"
            yield f"select (with {alias}(a) as (select 1 from {name}) select a from {alias})"


NUMBERS = "with recursive c(x) as (select 1 union all select x + 1 from c)"
LONG = "(select replace(printf('%900000d', 0), ' ', 'a'))"
EXHAUSTING = {
    "recursion": f"{NUMBERS} select count(*) from c",
    "recursion that keeps rows": f"{NUMBERS} select x from c order by x desc",
    "distinct rows": f"{NUMBERS} select distinct printf('%10000d', x) from c order by 1",
    "growing rows": "with recursive c(x) as (select 'a' union all select x || x from c) select x from c",
    "union of long rows": "with recursive c(x) as "
    "(select printf('%900000d', 1) union select printf('%900000d', x + 1) from c) select max(x) from c",
    "queue of long rows": "with recursive c(x, y) as (select 1, '' union all "
    "select x + 1, printf('%900000d', x) from c, json_each('[1,2,3]')) select count(*) from c",
    "cross join": "with t(x) as (select value from json_each('[1,2,3,4,5,6,7,8,9,0]')) select count(*) from "
    + ", ".join(f"t t{number}" for number in range(12)),
    "width": "select printf('%1000000000d', 1)",
    "precision": "select printf('%.1000000000f', 1.5)",
    "width by argument": "select printf('%*d', 1000000000, 1)",
    "format of many": "select format('%s%s', printf('%900000d', 1), printf('%900000d', 1))",
    "concatenation": f"select {LONG} || {LONG}",
    "group_concat": f"{NUMBERS} select group_concat(printf('%100000d', x)) from c limit 1",
    "json_group_array": f"{NUMBERS} select json_group_array(printf('%1000d', x)) from c",
    "json_group_object": f"{NUMBERS} select json_group_object(x, x) from c",
    "window": f"{NUMBERS} select sum(x) over (order by x rows unbounded preceding) from c order by 1 desc",
    "replace": f"select replace({LONG}, 'a', {LONG})",
    "replace nothing": f"select length(replace({LONG}, substr({LONG}, 1, 400000) || 'b', ''))",
    "instr": f"select instr({LONG}, substr({LONG}, 1, 400000) || 'b')",
    "trim": f"select length(trim({LONG}, replace(printf('%900000d', 0), ' ', 'b')))",
    "like": f"select {LONG} like '{'%a' * 400}%b'",
    "like with signs": f"select {LONG} like '{'%_a' * 300}%b'",
    "glob": f"select {LONG} glob '{'*a' * 400}*b'",
    "glob sets": f"select {LONG} glob '{'*[ab]' * 150}*c'",
    "long pattern": f"select {LONG} like {LONG}",
    "deep json": f"select json('{'[' * 40_000}')",
    "hex of hex": f"select hex({LONG})",
    "quote": f"select quote({LONG} || quote({LONG}))",
    "many columns": "select " + ", ".join(["1"] * 5_000),
    "many long columns": "select " + ", ".join(["x"] * 190) + f" from (select {LONG} as x)",
    "many unions": " union all ".join(["select 1"] * 400),
    "deep expression": "select " + "+".join(["1"] * 5_000),
    "deep subqueries": "select " + "(select " * 300 + "1" + ")" * 300,
    "many joins": "select count(*) from " + ", ".join(["totals"] * 80),
    "many views": "select count(*) from " + ", ".join(f"hw_pipelines p{n}" for n in range(40)),
    "order of decimals": f"{NUMBERS} select max(cast(x as text) collate hw_decimal) from c",
}
