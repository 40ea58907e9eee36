"""Django's middleware for a Content-Security-Policy, which Django has from 6.0 on, for 5.2: the same setting."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Every answer has the policy SECURE_CSP, but Django's debug pages, which are inline."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if not (settings.DEBUG and response.status_code >= 400):
            policy = "; ".join(f"{directive} {' '.join(values)}" for directive, values in settings.SECURE_CSP.items())
            response.headers.setdefault("Content-Security-Policy", policy)
        return response
