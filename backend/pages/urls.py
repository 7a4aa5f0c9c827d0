"""The URLs of the pages, and the tabs of the team pages."""

from dataclasses import dataclass

from django.urls import path

from backend.pages import environment_views, queue_views, views
from backend.pages.assets import views as asset_views
from backend.pages.assets.registry_views import change_model, model
from backend.pages.budgets import asking, usage_views
from backend.pages.budgets import views as budget_views
from backend.pages.evaluations.views import evaluations
from backend.pages.home.views import home
from backend.pages.job import page_views as job_views
from backend.pages.job import series_views
from backend.pages.job.change_views import change
from backend.pages.job.checkpoint_act_views import act, download, retention
from backend.pages.job.checkpoint_acts import ACTS
from backend.pages.job.control_views import control
from backend.pages.job.controls import CONTROLS
from backend.pages.job.evaluate_views import evaluate
from backend.pages.job.retry_views import retry
from backend.pages.job.tabs import TABS
from backend.pages.jobs.list_views import jobs
from backend.pages.jobs.several_views import several_jobs
from backend.pages.new_job import submit_views
from backend.pages.operating import status_views
from backend.pages.operator import urls as operator_urls
from backend.pages.programs import views as program_views
from backend.pages.programs.wheel import wheel_name
from backend.pages.team import audit_views, invitation_views, key_views, team_views, webhook_views
from backend.pages.trajectories.views import trajectory


@dataclass(frozen=True, slots=True)
class Tab:
    page: str
    title: str
    for_rulers: bool = False


TEAM_TABS = (
    Tab("members", "Members"),
    Tab("keys", "Keys"),
    Tab("assets", "Data and models"),
    Tab("evaluations", "Evaluations"),
    Tab("webhooks", "Webhooks", for_rulers=True),
    Tab("audit", "Audit", for_rulers=True),
)
urlpatterns = [
    path("", home, name="home"),
    path("jobs/", jobs, name="jobs"),
    path("jobs/several", several_jobs, name="several_jobs"),
    path("jobs/new", submit_views.new_job, name="new_job"),
    *(path(f"jobs/<id:job_id>/{tab.path}", job_views.job_page, {"slug": tab.slug}, name=tab.page) for tab in TABS),
    *(path(f"jobs/<id:job_id>/{each.verb}", control, {"verb": each.verb}, name=each.page) for each in CONTROLS),
    path("jobs/<id:job_id>/trajectories/<id:trajectory_id>", trajectory, name="job_trajectory"),
    path("jobs/<id:job_id>/retry", retry, name="retry_job"),
    path("jobs/<id:job_id>/change", change, name="change_job"),
    path("jobs/<id:job_id>/retention", retention, name="job_retention"),
    path("jobs/<id:job_id>/live", job_views.live, name="job_live"),
    path("jobs/<id:job_id>/series", series_views.series, name="job_series"),
    path("checkpoints/<id:checkpoint_id>/evaluate", evaluate, name="evaluate_checkpoint"),
    path("checkpoints/<id:checkpoint_id>/download", download, name="download_checkpoint"),
    *(path(f"checkpoints/<id:checkpoint_id>/{each.verb}", act, {"verb": each.verb}, name=each.page) for each in ACTS),
    path("queue/", queue_views.queue, name="queue"),
    path("queue/ask", asking.request_quota, name="request_quota"),
    path("usage/", usage_views.usage, name="usage"),
    path("usage/budgets", budget_views.set_one, name="set_limit"),
    path("environments/", environment_views.environments, name="environments"),
    path("evaluations/", evaluations, name="evaluations"),
    path("assets/", asset_views.assets, name="assets"),
    path("models/<id:model_name>/", model, name="model"),
    path("models/<id:model_name>/change", change_model, name="change_model"),
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
    path("status/", status_views.status, name="status"),
    path("help/", views.help_page, name="help"),
    path("docs/api", program_views.api_guide, name="api_guide"),
    path("client/", program_views.client_page, name="client"),
    path(f"client/{wheel_name()}", program_views.client_wheel, name="client_wheel"),
    *operator_urls.urlpatterns,
]
