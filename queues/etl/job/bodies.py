"""Payloads in the output: left out, as bytes, or as JSON with fields as columns."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from msgpack import unpackb  # type: ignore[import-untyped]
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MSGPACK = "application/msgpack"


def msgpack_to_json(body: bytes | None) -> str | None:
    """A MessagePack value as JSON, with bytes as base64. None: the payload is not MessagePack."""
    if body is None:
        return None
    try:
        value = unpackb(bytes(body), strict_map_key=False)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_bytes)
        # JSON has neither NaN nor infinities.
        return text if "N" not in text and "I" not in text else _finite(text)
    except (ValueError, TypeError, RecursionError):
        return None


def _finite(text: str) -> str:
    value = json.loads(text, parse_constant=lambda name: None)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)


def with_content_names(rows: DataFrame, contents: dict[int, str]) -> DataFrame:
    """Replace the number in `content` by its name."""
    names = f.create_map(*(f.lit(part) for item in contents.items() for part in item))
    return rows.withColumn("content", names[f.col("content").cast("int")])


def with_bodies(rows: DataFrame, bodies: str, fields: str) -> DataFrame:
    """Add the columns of payloads and results to rows with named contents."""
    raw, decoded = bodies == "raw", bodies == "json"
    rows = (
        rows.withColumn("body", f.col("payload") if raw else f.lit(None).cast("binary"))
        .withColumn("body_json", _body_json() if decoded else f.lit(None).cast("string"))
        .withColumn("result_json", _unpacked(f.col("result")) if decoded else f.lit(None).cast("string"))
        .withColumn("result", f.col("result") if raw else f.lit(None).cast("binary"))
    )
    return rows.withColumn("data", f.from_json("body_json", fields)) if fields else rows


def _unpacked(column: Column) -> Column:
    return f.udf(msgpack_to_json, StringType(), useArrow=False)(column)


def _body_json() -> Column:
    """The payload as JSON: decoded where `content` is MessagePack, as it is where it is JSON."""
    packed = f.col("content") == MSGPACK
    plain = f.when(f.coalesce(packed, f.lit(False)), None).otherwise(f.col("payload").cast("string"))
    text = f.try_validate_utf8(plain)
    checked = f.when(f.try_parse_json(text).isNotNull(), text)
    return f.coalesce(checked, _unpacked(f.when(packed, f.col("payload"))))
