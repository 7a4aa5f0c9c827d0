"""The URLs of operator pages, all under `operator/`."""

from django.urls import path

from backend.pages.operator import (
    credit_views,
    drain_views,
    maintenance_views,
    people_views,
    pool_views,
    price_views,
    question_views,
    team_views,
)

urlpatterns = [
    path("operator/", pool_views.pools, name="operator_pools"),
    path("operator/pools/new", pool_views.new_pool, name="operator_new_pool"),
    path("operator/pools/<id:pool_id>/", pool_views.pool, name="operator_pool"),
    path("operator/pools/<id:pool_id>/change", pool_views.change, name="operator_change_pool"),
    path("operator/pools/<id:pool_id>/quota", pool_views.quota, name="operator_quota"),
    path("operator/pools/<id:pool_id>/jobs/<id:job_id>/priority", pool_views.priority, name="operator_priority"),
    path("operator/pools/<id:pool_id>/hosts", drain_views.change_host, name="operator_change_host"),
    path("operator/pools/<id:pool_id>/jobs/<id:job_id>/back", drain_views.make_way, name="operator_make_way"),
    path("operator/pools/<id:pool_id>/prices", price_views.set_one, name="operator_set_price"),
    path(
        "operator/pools/<id:pool_id>/prices/<id:price_id>/withdraw",
        price_views.withdraw,
        name="operator_withdraw_price",
    ),
    path("operator/teams/", team_views.teams, name="operator_teams"),
    path("operator/teams/<id:team_id>/budget", team_views.budget, name="operator_budget"),
    path("operator/teams/<id:team_id>/money", team_views.money, name="operator_money"),
    path("operator/teams/<id:team_id>/owner", team_views.owner, name="operator_invite_owner"),
    path("operator/questions/", question_views.questions, name="operator_questions"),
    path("operator/questions/<id:question_id>/answer", question_views.answer_one, name="operator_answer"),
    path("operator/maintenance/", maintenance_views.notices, name="operator_maintenance"),
    path("operator/maintenance/new", maintenance_views.new, name="operator_announce"),
    path("operator/maintenance/<id:notice_id>/change", maintenance_views.change, name="operator_change_maintenance"),
    path("operator/credits/", credit_views.credits, name="operator_credits"),
    path("operator/credits/give", credit_views.give, name="operator_give_credit"),
    path("operator/credits/<id:credit_id>/take-back", credit_views.take_back, name="operator_take_back_credit"),
    path("operator/people/", people_views.people, name="operator_people"),
    path("operator/people/<id:user_id>/change", people_views.change, name="operator_change_person"),
    path("operator/people/<id:user_id>/reset", people_views.reset, name="operator_reset_person"),
]
