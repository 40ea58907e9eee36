"""Values that the database cannot take are the request's fault, not the site's."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from brokersite.invalid_values import is_refusal

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "query",
    [
        "key=%00",
        "payload=x",
        "finished_at__gt=9999-12-31T23:59:59-23:59",
        "id__range=1",
        "after=0001-01-01T00:00%2B23:59,1",
    ],
)
def test_an_address_with_a_value_that_no_column_takes_is_a_bad_request(admin_client: Client, query: str) -> None:
    response = admin_client.get(f"{reverse('admin:queues_archivedmessage_changelist')}?{query}")
    assert response.status_code == 400


def test_a_year_that_no_calendar_has_is_a_bad_request(admin_client: Client) -> None:
    address = reverse("admin:django_celery_results_taskresult_changelist")
    assert admin_client.get(f"{address}?date_done__year=2147483648").status_code == 400


def test_a_position_whose_time_has_no_zone_is_one_of_the_projects_zone(admin_client: Client) -> None:
    response = admin_client.get(f"{reverse('admin:queues_archivedmessage_changelist')}?after=2020-01-01 00:00:00,5")
    assert response.status_code == 200


def test_an_action_on_a_row_that_cannot_be_is_a_bad_request(admin_client: Client) -> None:
    data = {"action": "delete_selected", "_selected_action": "x"}
    assert admin_client.post(reverse("admin:queues_queue_changelist"), data).status_code == 400


def test_a_mistake_of_the_site_stays_an_error() -> None:
    assert not is_refusal(ValueError("a mistake"))
