from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "backend.accounts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.accounts.passwords.breached import refuse_faulty_file
        from backend.accounts.signing_in import events  # noqa: F401  # connects its receivers

        refuse_faulty_file()
