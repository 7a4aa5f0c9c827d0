"""The tabs of a team's pages."""

from django import template

from backend.pages.urls import TEAM_TABS, Tab

register = template.Library()


@register.simple_tag
def team_tabs(rules: bool) -> list[Tab]:
    return [tab for tab in TEAM_TABS if rules or not tab.for_rulers]
