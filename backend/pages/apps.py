from django.apps import AppConfig


class PagesConfig(AppConfig):
    name = "backend.pages"

    def ready(self) -> None:
        from backend.pages.job.news import news_text
        from backend.telemetry.live import reads

        reads.news_text.fill(news_text)
