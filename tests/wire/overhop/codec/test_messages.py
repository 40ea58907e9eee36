"""The shapes of the requests: what each may say, and what is answered when it says something else."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.overhop.strategies import PAYLOADS, VALUES
from wire.overhop.codec import messages
from wire.overhop.codec.fields import MAX_NAME, MAX_TEXT, DomainError, ShapeError
from wire.overhop.codec.messages import MAX_CREDITS, MAX_INTERVAL_MS, MAX_PAGE
from wire.overhop.codec.names import Code, Type

SID = "8c7ac1b6-2a3c-4d5e-8f90-a1b2c3d4e5f6"
JID = f"orders:{SID}"
REQUESTS = [kind for kind in Type if kind < Type.OK]

SMALLEST: dict[Type, dict[str, Any]] = {
    Type.HELLO: {},
    Type.REGISTER: {},
    Type.PING: {},
    Type.GQUEUE: {"q": "orders"},
    Type.LQUEUES: {},
    Type.SUBSCRIBE: {"q": "orders"},
    Type.UNSUBSCRIBE: {"sid": SID},
    Type.CREDIT: {"sid": SID, "credits": 1},
    Type.ADDQUEUE: {"name": "orders"},
    Type.STATUS: {},
    Type.RMQUEUE: {"q": "orders"},
    Type.PAUSE: {"q": "orders"},
    Type.RESUME: {"q": "orders"},
    Type.ENQUEUE: {"q": "orders"},
    Type.JOB: {"jid": JID},
    Type.RMJOB: {"jid": JID},
    Type.LSJOB: {"q": "orders", "status": "new"},
    Type.QSTATS: {"q": "orders"},
    Type.ACK: {"jid": JID},
    Type.DONE: {"jid": JID},
    Type.FAIL: {"jid": JID},
    Type.BEAT: {"jid": JID},
    Type.GOODBYE: {},
    Type.LOG: {"jid": JID, "line": "half way"},
}
OPTIONAL: dict[Type, dict[str, Any]] = {
    Type.SUBSCRIBE: {"credits": 0},
    Type.ADDQUEUE: {"config": {}},
    Type.ENQUEUE: {
        "job_payload": 1,
        "scheduled_at": "2026-01-01T00:00:00Z",
        "max_attempts": 1,
        "retry_interval_ms": 1,
        "key": "k",
        "priority": 0,
    },
    Type.LSJOB: {"page_size": 1, "page": 1},
    Type.DONE: {"result": 1},
    Type.FAIL: {"error": "no", "retry_in_ms": 0},
    Type.GOODBYE: {"reason": "night"},
}
EMPTY = (Type.REGISTER, Type.PING, Type.LQUEUES, Type.STATUS)
OF_ANY_TYPE = ("job_payload", "result")


def refusal(t: int, p: dict[str, Any]) -> Code | None:
    """The code that the request is refused with, PROTOCOL_VIOLATION for its shape."""
    try:
        messages.PARSERS[t](p)
    except ShapeError:
        return Code.PROTOCOL_VIOLATION
    except DomainError as error:
        return error.code
    return None


def test_a_refusal_says_why() -> None:
    with pytest.raises(DomainError) as refused:
        messages.PARSERS[Type.CREDIT]({"sid": SID, "credits": 0})
    assert refused.value.msg == str(refused.value) == "credits is 0, not 1 to 4294967295"


def test_every_request_has_a_parser() -> None:
    assert set(messages.PARSERS) == set(SMALLEST) == set(REQUESTS)


@pytest.mark.parametrize("t", REQUESTS)
def test_a_request_needs_no_more_than_its_required_keys(t: Type) -> None:
    assert refusal(t, SMALLEST[t]) is None
    assert refusal(t, SMALLEST[t] | OPTIONAL.get(t, {})) is None


@pytest.mark.parametrize(("t", "key"), [(t, key) for t in REQUESTS for key in SMALLEST[t]])
def test_a_required_key_may_neither_be_missing_nor_of_another_type(t: Type, key: str) -> None:
    others = {name: value for name, value in SMALLEST[t].items() if name != key}
    with pytest.raises(ShapeError, match=f"'{key}' is missing"):
        messages.PARSERS[t](others)
    wrongs: list[Any] = [None, True, b"orders", [], {}, 7 if key != "credits" else "7"]
    for wrong in wrongs:
        with pytest.raises(ShapeError, match=f"'{key}' is (nil|bool|bin|an? )"):
            messages.PARSERS[t](others | {key: wrong})


@pytest.mark.parametrize(("t", "key"), [(t, key) for t in OPTIONAL for key in OPTIONAL[t]])
def test_an_optional_key_may_not_be_nil_or_of_another_type(t: Type, key: str) -> None:
    assert refusal(t, SMALLEST[t] | {key: None}) is Code.PROTOCOL_VIOLATION
    wrongs: list[Any] = [True, b"7", [], "2026" if key not in ("error", "reason", "key") else 7]
    for wrong in wrongs:
        expected = None if key in OF_ANY_TYPE else Code.PROTOCOL_VIOLATION
        assert refusal(t, SMALLEST[t] | {key: wrong}) is expected


@pytest.mark.parametrize("t", REQUESTS)
def test_unknown_keys_are_ignored_except_where_the_payload_has_to_be_empty(t: Type) -> None:
    expected = Code.PROTOCOL_VIOLATION if t in EMPTY else None
    assert refusal(t, SMALLEST[t] | {"unknown": None}) is expected


# Names of queues.

OF_A_QUEUE = [t for t in REQUESTS if "q" in SMALLEST[t]]
SYSTEM_ALLOWED = (Type.GQUEUE, Type.SUBSCRIBE, Type.LSJOB)


@pytest.mark.parametrize("t", OF_A_QUEUE)
def test_the_systems_queues_are_refused_where_they_may_not_be_touched(t: Type) -> None:
    expected = None if t in SYSTEM_ALLOWED else Code.SYSTEM_QUEUE_FORBIDDEN
    assert refusal(t, SMALLEST[t] | {"q": "_system"}) is expected
    assert refusal(t, SMALLEST[t] | OPTIONAL.get(t, {}) | {"q": "_system"}) is expected


@pytest.mark.parametrize("t", [Type.JOB, Type.RMJOB])
def test_the_systems_jobs_are_refused(t: Type) -> None:
    assert refusal(t, {"jid": f"_system:{SID}"}) is Code.SYSTEM_QUEUE_FORBIDDEN


@pytest.mark.parametrize("t", OF_A_QUEUE)
def test_a_name_that_no_queue_can_have_is_not_found(t: Type) -> None:
    assert refusal(t, SMALLEST[t] | {"q": "a\0b"}) is Code.QUEUE_NOT_FOUND
    assert refusal(t, SMALLEST[t] | OPTIONAL.get(t, {}) | {"q": "a\0b"}) is Code.QUEUE_NOT_FOUND
    assert refusal(t, SMALLEST[t] | {"q": "any: näme, may exist"}) is None


@pytest.mark.parametrize("name", ["a", "Z", "0", "a_", "a-b_C-9", "x" * MAX_NAME])
def test_a_queue_may_be_called(name: str) -> None:
    assert messages.add_queue({"name": name}) == (name, None, True)


@pytest.mark.parametrize(
    "name", ["", "_", "_system", "-a", "a b", "a:b", "a.b", "é", "aé", "a\n", "a\0", "x" * (MAX_NAME + 1), "٣"]
)
def test_a_queue_may_not_be_called(name: str) -> None:
    assert refusal(Type.ADDQUEUE, {"name": name}) is Code.INVALID_QUEUE_NAME


@pytest.mark.parametrize(
    ("config", "limit", "overrides"),
    [
        ({}, None, True),
        ({"concurrency_limit": None}, None, True),
        ({"concurrency_limit": 1, "allow_job_overrides": False}, 1, False),
        ({"concurrency_limit": 2**31 - 1, "unknown": 7}, 2**31 - 1, True),
    ],
)
def test_a_queue_is_configured(config: dict[str, Any], limit: int | None, overrides: bool) -> None:
    assert messages.add_queue({"name": "orders", "config": config}) == ("orders", limit, overrides)


@pytest.mark.parametrize(
    "config",
    [
        *([], "x", {"allow_job_overrides": None}, {"allow_job_overrides": 1}),
        *({"concurrency_limit": wrong} for wrong in (0, -1, 2**31, True, "1")),
    ],
)
def test_a_wrong_configuration_is_a_wrong_shape(config: Any) -> None:
    assert refusal(Type.ADDQUEUE, {"name": "orders", "config": config}) is Code.PROTOCOL_VIOLATION
    assert refusal(Type.ADDQUEUE, {"name": "_", "config": config}) is Code.PROTOCOL_VIOLATION


# Jobs.


def test_a_plain_job_has_its_payload_and_nothing_else() -> None:
    plain = ("orders", {"n": 1}, None, None, None, None, 0)
    assert messages.enqueue({"q": "orders", "job_payload": {"n": 1}}) == plain
    assert messages.enqueue({"q": "orders", "job_payload": {"n": 1}, "unknown": 7}) == plain
    assert messages.enqueue({"q": "orders"}).payload is None
    assert messages.enqueue({"q": "orders", "job_payload": False}).payload is False


def test_a_job_has_what_it_is_given() -> None:
    given = {"scheduled_at": "2026-01-01T01:00:00+01:00", "max_attempts": 3, "retry_interval_ms": 250}
    job = messages.enqueue({"q": "orders", "job_payload": b"x", "key": "k", "priority": -7} | given)
    assert job == ("orders", b"x", datetime(2026, 1, 1, tzinfo=UTC), 3, 250, "k", -7)


@pytest.mark.parametrize(
    "wrong",
    [{"key": ""}, {"key": "x" * 256}, {"key": "a\0"}, {"priority": 101}, {"priority": -101}]
    + [{"scheduled_at": text} for text in ("", "tomorrow", "2026-01-01T00:00:00", "9" * 100_000)],
)
def test_an_option_of_an_impossible_form_is_a_wrong_shape(wrong: dict[str, Any]) -> None:
    assert refusal(Type.ENQUEUE, {"q": "orders"} | wrong) is Code.PROTOCOL_VIOLATION
    assert refusal(Type.ENQUEUE, {"q": "_system", "max_attempts": 0} | wrong) is Code.PROTOCOL_VIOLATION


@pytest.mark.parametrize(
    ("t", "key", "least", "most", "code"),
    [
        (Type.ENQUEUE, "max_attempts", 1, 32767, Code.INVALID_MAX_ATTEMPTS),
        (Type.ENQUEUE, "retry_interval_ms", 1, MAX_INTERVAL_MS, Code.INVALID_RETRY_INTERVAL_MS),
        (Type.FAIL, "retry_in_ms", 0, MAX_INTERVAL_MS, Code.INVALID_RETRY_INTERVAL_MS),
        (Type.SUBSCRIBE, "credits", 0, MAX_CREDITS, Code.INVALID_CREDITS),
        (Type.CREDIT, "credits", 1, MAX_CREDITS, Code.INVALID_CREDITS),
        (Type.LSJOB, "page_size", 1, 100, Code.INVALID_PAGE_SIZE),
        (Type.LSJOB, "page", 1, MAX_PAGE, Code.INVALID_PAGE),
    ],
)
def test_a_number_out_of_its_range_has_an_error_code(t: Type, key: str, least: int, most: int, code: Code) -> None:
    assert refusal(t, SMALLEST[t] | {key: least}) is None
    assert refusal(t, SMALLEST[t] | {key: most}) is None
    assert refusal(t, SMALLEST[t] | {key: least - 1}) is code
    assert refusal(t, SMALLEST[t] | {key: most + 1}) is code
    assert refusal(t, SMALLEST[t] | {key: -(2**63)}) is code


def test_the_keys_longest_and_priorities_widest_are_accepted() -> None:
    assert messages.enqueue({"q": "orders", "key": "é" * 255, "priority": -100}).key == "é" * 255
    assert messages.enqueue({"q": "orders", "priority": 100}).priority == 100


# Ids.

OF_A_JOB = [t for t in REQUESTS if "jid" in SMALLEST[t]]


@pytest.mark.parametrize("queue", ["orders", "a", "a:b", "::", "x" * MAX_NAME, "line\nbreak", "é"])
def test_a_job_id_is_split_at_its_last_colon(queue: str) -> None:
    jid = messages.job_id({"jid": f"{queue}:{SID}"})
    assert messages.split_job_id(jid) == (queue, SID)


@pytest.mark.parametrize("written", [SID, SID.upper(), SID.replace("-", ""), SID.upper().replace("-", "")])
def test_an_id_is_understood_however_a_uuid_is_written(written: str) -> None:
    assert messages.job_id({"jid": f"Orders:{written}"}) == f"Orders:{SID}"
    assert messages.subscription_id({"sid": written}) == SID
    assert messages.credit({"sid": written, "credits": 5}) == (SID, 5)


NOT_A_UUID = ["", "1", SID[:-1], SID + "0", SID[:-1] + "g", SID + "\n", " " + SID, SID.replace("-", "", 1)]


@pytest.mark.parametrize("t", OF_A_JOB)
@pytest.mark.parametrize(
    "jid",
    ["", ":", "orders", SID, f":{SID}", f"orders{SID}", f"a\0b:{SID}", f"{'x' * (MAX_NAME + 1)}:{SID}"]
    + [f"orders:{wrong}" for wrong in NOT_A_UUID],
)
def test_an_invalid_job_id_has_an_error_code(t: Type, jid: str) -> None:
    assert refusal(t, SMALLEST[t] | {"jid": jid}) is Code.INVALID_JOB_ID


@pytest.mark.parametrize("t", [Type.UNSUBSCRIBE, Type.CREDIT])
@pytest.mark.parametrize("sid", NOT_A_UUID)
def test_a_subscription_id_that_is_no_uuid_is_a_wrong_shape(t: Type, sid: str) -> None:
    assert refusal(t, SMALLEST[t] | {"sid": sid}) is Code.PROTOCOL_VIOLATION


# The rest.


def test_a_subscription_starts_without_credits_unless_told_otherwise() -> None:
    assert messages.subscribe({"q": "orders"}) == ("orders", 0)
    assert messages.subscribe({"q": "orders", "credits": 7}) == ("orders", 7)


def test_jobs_are_listed_from_the_first_page_unless_told_otherwise() -> None:
    assert messages.list_jobs({"q": "orders", "status": "new"}) == ("orders", "new", 15, 1)
    assert messages.list_jobs({"q": "_system", "status": "active", "page_size": 100, "page": 3}) == (
        ("_system", "active", 100, 3)
    )


@pytest.mark.parametrize("status", messages.STATUSES)
def test_jobs_are_listed_in_each_status(status: str) -> None:
    assert messages.list_jobs({"q": "orders", "status": status}).status == status


@pytest.mark.parametrize("status", ["", "NEW", "dead", "x" * 10_000])
def test_another_status_has_an_error_code(status: str) -> None:
    assert refusal(Type.LSJOB, {"q": "orders", "status": status}) is Code.INVALID_JOB_STATUS_FILTER


def test_a_workers_messages_about_a_job_are_read() -> None:
    assert messages.done({"jid": JID}) == (JID, None)
    assert messages.done({"jid": JID, "result": [1]}) == (JID, [1])
    assert messages.done({"jid": JID, "result": 0}) == (JID, 0)
    assert messages.fail({"jid": JID}) == (JID, None, None)
    assert messages.fail({"jid": JID, "error": "no", "retry_in_ms": 0}) == (JID, "no", 0)
    assert messages.log({"jid": JID, "line": "half way"}) == (JID, "half way")
    assert messages.goodbye({}) is None
    assert messages.goodbye({"reason": "night"}) == "night"


def test_long_text_is_cut_and_nul_is_replaced() -> None:
    long, cut = "é\0" * MAX_TEXT, "é\N{REPLACEMENT CHARACTER}" * (MAX_TEXT // 2)
    assert messages.fail({"jid": JID, "error": long}) == (JID, cut, None)
    assert messages.log({"jid": JID, "line": long}).line == cut
    assert messages.goodbye({"reason": long}) == cut


@given(st.sampled_from(REQUESTS), PAYLOADS)
def test_any_payload_is_read_or_refused(t: Type, p: dict[str, Any]) -> None:
    refusal(t, p)


@given(st.sampled_from(REQUESTS), st.data())
def test_any_value_of_a_known_key_is_read_or_refused(t: Type, data: st.DataObject) -> None:
    p = SMALLEST[t] | OPTIONAL.get(t, {})
    for key in p:
        refusal(t, p | {key: data.draw(VALUES)})
