"""Three searches on a running server, as a first-time user would try them: by picture, by URL and by words."""

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from rich.console import Console

TEXT = "a striped red star"
K = 5


def show_queries(url: str, picture: Path, image_id: str, console: Console) -> None:
    """Search the server at `url` by a local picture, by the URL of the picture of `image_id`, and by `TEXT`."""
    console.rule("a picture")
    _print_curl(["-F", f"image=@{picture}", "-F", f"k={K}", f"{url}/search"], console)
    with picture.open("rb") as file:
        _print_matches(requests.post(f"{url}/search", files={"image": file}, data={"k": K}, timeout=60), console)
    page = f"{url}/picture?id={quote(image_id)}"
    for title, query in (("a URL", {"url": page, "k": K}), ("words", {"text": TEXT, "k": K})):
        console.rule(title)
        _print_curl([f"{url}/search", "-H", "content-type: application/json", "-d", json.dumps(query)], console)
        _print_matches(requests.post(f"{url}/search", json=query, timeout=60), console)


def _print_curl(arguments: list[str], console: Console) -> None:
    """The same search as a command to paste."""
    console.print(shlex.join(["curl", *arguments]), soft_wrap=True, highlight=False, markup=False, style="dim")


def _print_matches(response: requests.Response, console: Console) -> None:
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    for match in answer["matches"]:
        console.print(f"{match['score']:.3f}  {match['image_id']}", highlight=False, markup=False)
    console.print(f"{answer['timing_ms']['total']:.0f} ms", style="dim")
