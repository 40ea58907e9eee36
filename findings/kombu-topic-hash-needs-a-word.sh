#!/usr/bin/env bash
# kombu's virtual transports: in a topic binding "#" stands for one word or more, not for none.
#
# Versions: kombu 5.7.0, its transport in memory (Redis, SQS, the file system and the others share the code).
# A good guess: as in AMQP 0-9-1 and RabbitMQ, "#" stands for zero or more words, so a queue bound with "video.#" gets
#   what is published with the key "video". kombu's own documentation of Queue says zero or more, too.
# Seen: it gets "video.clip" and "video.clip.hd", and not "video". With "#.end" it does not get "end".
# Whom it hurts: who moves from RabbitMQ to another transport of kombu's, in tests above all: messages with the short key
#   reach no queue, and nothing says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kombu==5.7.0
"$folder/venv/bin/python" - <<'PYTHON'
from kombu import Connection, Exchange, Queue

topics = Exchange("topics", "topic")
keys = ["video", "video.clip", "video.clip.hd", "end", "the.end"]
expected = {"video.#": ["video.clip", "video.clip.hd"], "#.end": ["the.end"]}

with Connection("memory://") as connection:
    channel = connection.channel()
    queues = {pattern: Queue(f"q{n}", topics, pattern)(channel) for n, pattern in enumerate(expected)}
    for queue in queues.values():
        queue.declare()
    producer = connection.Producer(channel)
    for key in keys:
        producer.publish(key, exchange=topics, routing_key=key)
    seen = {}
    for pattern, queue in queues.items():
        got = []
        while (message := queue.get(no_ack=True)) is not None:
            got.append(message.payload)
        seen[pattern] = got
        print(f"{pattern!r} gets {got}")
assert seen == expected, "kombu behaves otherwise now"
PYTHON
