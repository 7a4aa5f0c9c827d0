"""The environments page lists all environments, from the tables that validate specs."""

from html import unescape

from django.test import Client

from engine.spec.environments.params import ENVIRONMENTS
from tests.frontend.html_reading import text_of


def test_page_has_all_environments_parameters_and_rewards(owner: Client) -> None:
    page = unescape(text_of(owner.get("/environments/")))
    for name, entry in ENVIRONMENTS.items():
        part = page.split(f'<section id="{name}"')[1].split("</section>")[0]
        assert entry.about in part and part.count("<b>Reward") == 2 and "<b>Reward 1.0</b>" in part
        for key, row in entry.params.items():
            assert f"<code>{key}</code>" in part and row.about in part
    assert 'href="/jobs/new?template=own_code"' in page and "def respond(" in page


def test_it_is_for_people_who_have_signed_in(client: Client) -> None:
    assert client.get("/environments/").status_code == 302
