"""The site's addresses."""

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from brokersite import health
from brokersite.login import ThrottledLoginForm

admin.site.login_form = ThrottledLoginForm

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
]
