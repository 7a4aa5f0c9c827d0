"""All of a list, page by page. The client does this by itself (`client.jobs.list()`)."""

import os
from collections.abc import Iterator

import httpx


def all_of(path: str, **query: str) -> Iterator[dict[str, object]]:
    headers = {"Authorization": f"Bearer {os.environ['LAMINAR_API_KEY']}"}
    with httpx.Client(base_url=f"{os.environ['LAMINAR_URL']}/api/v1", headers=headers) as http:
        while True:
            page = http.get(path, params=query).raise_for_status().json()
            yield from page["data"]
            if not page["has_more"]:
                return
            query["cursor"] = page["next_cursor"]


if __name__ == "__main__":
    for job in all_of("/jobs", limit="2"):
        print(job["id"], job["state"])
