"""The addresses of the pages."""

from django.urls import path

from backend.pages import job_views, submit_views, views

urlpatterns = [
    path("", views.home, name="home"),
    path("jobs/", views.jobs, name="jobs"),
    path("jobs/new", submit_views.new_job, name="new_job"),
    path("jobs/<str:job_id>/", job_views.job_page, name="job"),
    path("jobs/<str:job_id>/cancel", job_views.cancel, name="cancel_job"),
    path("jobs/<str:job_id>/live", job_views.live, name="job_live"),
    path("help/", views.help_page, name="help"),
]
