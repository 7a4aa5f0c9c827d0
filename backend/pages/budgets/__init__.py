"""Budgets of a team, its projects and people, and questions for more quota, in the browser.

asking  the question for quota on the queue page
typed   a budget as people type it
views   the budgets on the usage page, and the form that sets one
"""
