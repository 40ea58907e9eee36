"""A process that appends to a chain: `python -m tests.queues.audit.writer CHAIN NAME BATCHES [hold]`.

With `hold` it then appends once more, says `held`, and leaves that transaction open until it is killed.
"""

from __future__ import annotations

import os
import sys
import time

import django
from django.db import transaction


def main(chain: str, name: str, batches: int, hold: bool) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    django.setup()
    from queues.audit.chains import append
    from queues.audit.events import AuditEvent

    for n in range(batches):
        append(chain, [AuditEvent("send", f"{name}-{n}-{row}", name, "") for row in range(1 + n % 7)])
    if hold:
        with transaction.atomic():
            append(chain, [AuditEvent("send", f"{name}-never", name, "")])
            print("held", flush=True)
            time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), "hold" in sys.argv[4:])
