"""The addresses of the pages, and which of them are tabs of a team."""

from dataclasses import dataclass

from django.urls import path

from backend.pages import (
    audit_views,
    checkpoint_views,
    invitation_views,
    job_views,
    key_views,
    queue_views,
    submit_views,
    team_views,
    usage_views,
    views,
    webhook_views,
)
from backend.pages.assets import views as asset_views


@dataclass(frozen=True, slots=True)
class Tab:
    page: str
    title: str
    for_rulers: bool = False


TEAM_TABS = (
    Tab("members", "Members"),
    Tab("keys", "Keys"),
    Tab("assets", "Data and models"),
    Tab("webhooks", "Webhooks", for_rulers=True),
    Tab("audit", "Audit", for_rulers=True),
)
urlpatterns = [
    path("", views.home, name="home"),
    path("jobs/", views.jobs, name="jobs"),
    path("jobs/new", submit_views.new_job, name="new_job"),
    path("jobs/<id:job_id>/", job_views.job_page, name="job"),
    path("jobs/<id:job_id>/cancel", job_views.cancel, name="cancel_job"),
    path("jobs/<id:job_id>/live", job_views.live, name="job_live"),
    path("checkpoints/<id:checkpoint_id>/evaluate", checkpoint_views.evaluate, name="evaluate_checkpoint"),
    path("queue/", queue_views.queue, name="queue"),
    path("usage/", usage_views.usage, name="usage"),
    path("assets/", asset_views.assets, name="assets"),
    path("keys/", key_views.keys, name="keys"),
    path("keys/<id:key_id>/revoke", key_views.revoke, name="revoke_key"),
    path("members/", team_views.members, name="members"),
    path("members/rules", team_views.rules, name="team_rules"),
    path("members/<id:user_id>/change", team_views.member, name="change_member"),
    path("invitations/<token:token>", invitation_views.accept, name="accept_invitation"),
    path("invitations/<id:invitation_id>/revoke", team_views.invitation, name="revoke_invitation"),
    path("service-accounts/", team_views.service_accounts, name="new_service_account"),
    path("service-accounts/<id:account_id>/close", team_views.close_account, name="close_service_account"),
    path("audit/", audit_views.audit, name="audit"),
    path("webhooks/", webhook_views.webhooks, name="webhooks"),
    path("webhooks/<id:webhook_id>/", webhook_views.webhook, name="webhook"),
    path("webhooks/<id:webhook_id>/change", webhook_views.change, name="change_webhook"),
    path("webhooks/<id:webhook_id>/secret", webhook_views.renew_secret, name="renew_webhook_secret"),
    path("webhooks/<id:webhook_id>/deliveries/<id:delivery_id>/redeliver", webhook_views.redeliver, name="redeliver"),
    path("help/", views.help_page, name="help"),
]
