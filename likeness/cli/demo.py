"""The command `demo`. `app` registers it."""

import json
import shlex
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from likeness.cli.embed import show_embedded
from likeness.cli.options import console, serve_settings

if TYPE_CHECKING:
    import requests

_TEXT = "a striped red star"
_K = 5


def demo(
    folder: Annotated[Path, typer.Option(help="Where to put the pictures and their collection.")] = Path("demo-data"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8000,
    once: Annotated[bool, typer.Option("--once", help="Exit after the first answers.")] = False,
) -> None:
    """Draw 2,000 pictures, embed and index them, search by picture, URL and words, and serve the result.

    Example: `likeness demo --once`
    """
    from api.build_service import build_service
    from api.http.app import create_app
    from api.local import running
    from index.storage.storage import Storage
    from jobs.demo.gallery import make_gallery
    from jobs.spec import JobSpec
    from jobs.update import Update

    pictures, collection = folder / "pictures", folder / "collection"
    Storage.open(collection)  # raises errors of its path before pictures are drawn
    with console.status(f"drawing 2,000 pictures into {pictures}"):
        gallery = make_gallery(pictures)
    job = JobSpec(source=str(pictures), collection=str(collection), model="demo", missing="keep")
    show_embedded(Update(spec=job, console=console).run())
    port = _free_port(port)
    # One of the example searches is by a URL of this server itself.
    settings = serve_settings(collection=str(collection), port=port, allowed_hosts=frozenset({f"127.0.0.1:{port}"}))
    with (
        closing(build_service(settings)) as service,
        running(create_app(service, limits=settings.limits()), port=port) as url,
    ):
        example = gallery.exhibits[0]
        _show_queries(url, pictures / example.image_id, gallery.exhibits[1].image_id, as_commands=not once)
        if not once:
            console.print(f"\nTry more searches at {url}; the pictures are in {pictures}")
            console.print("Ctrl-C stops the server")
            threading.Event().wait()


def _free_port(preferred: int) -> int:
    """The preferred port, or a free one if that is taken or 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", preferred))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _show_queries(url: str, picture: Path, image_id: str, *, as_commands: bool) -> None:
    """Search the server at `url` as a first-time user would: by a local picture, by the URL of another, and by words.
    Each search is also shown as a command to paste, if the server stays.
    """
    import requests

    console.rule(f"a picture: {picture.name}")
    if as_commands:
        _print_curl(["-F", f"image=@{picture}", "-F", f"k={_K}", f"{url}/search"])
    with picture.open("rb") as file:
        _print_matches(requests.post(f"{url}/search", files={"image": file}, data={"k": _K}, timeout=60))
    page = f"{url}/picture?id={quote(image_id)}"
    words = f"words: {_TEXT}"
    for title, query in ((f"a URL: {image_id}", {"url": page, "k": _K}), (words, {"text": _TEXT, "k": _K})):
        console.rule(title)
        if as_commands:
            _print_curl([f"{url}/search", "-H", "content-type: application/json", "-d", json.dumps(query)])
        _print_matches(requests.post(f"{url}/search", json=query, timeout=60))


def _print_curl(arguments: list[str]) -> None:
    console.print(shlex.join(["curl", *arguments]), soft_wrap=True, highlight=False, markup=False, style="dim")


def _print_matches(response: "requests.Response") -> None:
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    for match in answer["matches"]:
        console.print(f"{match['score']:.3f}  {match['image_id']}", highlight=False, markup=False)
    console.print(f"{answer['timing_ms']['total']:.0f} ms", style="dim")
