"""`python -m infra.variables`: writes .env.example and the tables of variables in infra/OPERATING.md."""

from infra.variables.documents import documents

for path, text in documents().items():
    if path.read_text() != text:
        path.write_text(text)
        print(f"wrote {path}")
