"""The admin's log-in, where an address that goes on trying wrong passwords has to wait."""

from __future__ import annotations

import math
from typing import Any, Final

from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError
from prometheus_client import Counter

from queues.permissions.throttle import FailureThrottle

throttle: Final = FailureThrottle()
refused = Counter("fivewire_admin_logins_refused", "Log-ins to the admin that were refused.", ["reason"])


class ThrottledLoginForm(AdminAuthenticationForm):
    """Refuses at once, without a look at the password: the site has one thread for all of the admin."""

    def clean(self) -> dict[str, Any]:
        address = "" if self.request is None else str(self.request.META.get("REMOTE_ADDR", ""))
        if wait := throttle.wait(address):
            refused.labels("throttled").inc()
            raise ValidationError(f"Too many wrong passwords from your address. Try again in {math.ceil(wait)} s.")
        try:
            return super().clean()
        except ValidationError:
            refused.labels("wrong").inc()
            throttle.failed(address)
            raise
