"""A backend for lineage events, on the loopback interface, and the graph of what it was sent."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Event = dict[str, Any]
#: The namespace and the name of a dataset.
Dataset = tuple[str, str]

_SECONDS = 120


class LineageBackend:
    """Keeps the events that it is sent.

    `status` is its answer to the next ones, `location` where it redirects them.
    """

    def __init__(self) -> None:
        """Start to listen."""
        self.status = 201
        self.location: str | None = None
        self.is_hung = False
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._closed = threading.Event()
        backend = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if backend.is_hung:
                    backend._closed.wait(_SECONDS)
                    return
                backend._keep(json.loads(body))
                self.send_response(backend.status)
                if backend.location is not None:
                    self.send_header("Location", backend.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,))
        self._thread.start()

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def wait_for(self, is_there: Callable[[list[Event]], Any]) -> list[Event]:
        """Return the events as soon as they are as a test needs them."""
        with self._changed:
            found = self._changed.wait_for(lambda: is_there(self.events), _SECONDS)
            assert found, [(event["eventType"], event["job"]["name"]) for event in self.events]
            return list(self.events)

    def close(self) -> None:
        """Stop to listen, and close all connections."""
        self._closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _keep(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


def edges(events: Iterable[Event]) -> set[tuple[Dataset, Dataset]]:
    """Return which dataset was written from which, by the events of all runs."""
    return {
        (key(source), key(target))
        for event in events
        for source in event["inputs"]
        for target in event["outputs"]
    }


def datasets(events: Iterable[Event]) -> set[Dataset]:
    """Return all datasets of events."""
    return {key(one) for event in events for one in (*event["inputs"], *event["outputs"])}


def key(dataset: dict[str, Any]) -> Dataset:
    """Return the key of a dataset."""
    return dataset["namespace"], dataset["name"]
