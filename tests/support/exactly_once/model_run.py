"""One run of the protocol's model, and the requests that its steps require of a driver.

The order of the requests comes from the steps that the model takes: `REQUESTS` only translates each
step into requests, by its label and by what it changed. A step without a translation is an error.
A request is a short text, see `recorded_requests`, which writes the same texts for the real driver.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.model import exactly_once_state as model
from tests.model.exactly_once_search import start_state
from tests.model.exactly_once_steps import cb_steps, drv_steps, succ, task_steps

if TYPE_CHECKING:
    from collections.abc import Callable

FENCE: Final = "fence the ledger"
READ: Final = "read the ledger"
LIST: Final = "list the open transactions"
MARKERS: Final = "check the markers"
#: The requests that follow the entries of an append: EndTxn, and the wait for its marker.
COMMIT_LEDGER: Final = ("commit the ledger's transaction", READ)


def written(*entries: str) -> str:
    """Return the request that writes these entries into the ledger."""
    return f"write to the ledger: {', '.join(sorted(entries))}"


def entry(state: str, batch_id: int, winners: list[str]) -> str:
    """Return an entry for a batch; only a decision has winners."""
    return " ".join([state, f"b{batch_id}", *sorted(winners)])


def described(names: list[str]) -> list[str]:
    """Return the requests that describe transactional ids: none for no id."""
    return [f"describe {' '.join(sorted(names))}"] if names else []


def ended(name: str, *, committed: bool) -> str:
    """Return the request that ends a transaction."""
    return f"{'commit' if committed else 'abort'} {name}"


class Step(NamedTuple):
    """A step of the model: its label, and the states before and after it."""

    label: str
    before: Any
    after: Any
    #: The index of the driver that takes it, or None for a call of abort().
    driver: int | None

    def _driver(self, state: Any) -> Any:
        return None if self.driver is None else state[model.DRV][self.driver]

    def end(self) -> list[str]:
        """Return the request of an EndTxn; the markers are checked after the last abort."""
        committed = "EndTxn(commit" in self.label
        [(coordinated, epoch)] = re.findall(r"EndTxn\(\w+ (\S+)@(\d+)\)", self.label)
        todo = self.after[model.CBP] if self.driver is None else self._driver(self.after)[10]
        checked = [] if committed or todo else [MARKERS]
        return [ended(f"{coordinated}@{epoch}", committed=committed), *checked]

    def check(self) -> list[str]:
        """Return the requests of the check that the winners are still open."""
        return described([model.iname(tid) for tid, _ in self._driver(self.before)[6]])

    def list(self) -> list[str]:
        """Return the requests of a listing, and of the check of the winners in the same step.

        The winners, which are checked before, are not described again.
        """
        is_commit = "lists losers" in self.label
        checks = self._driver(self.before)[2] == "C2" and model.P.precheck
        winners = {tid for tid, _ in self._driver(self.before)[6]} if is_commit else ()
        listed = [
            model.iname(one[0])
            for one in self.before[model.COORD]
            if one[2] == "O" and one[0] not in winners
        ]
        return [*(self.check() if checks else []), LIST, *described(listed)]

    def append(self) -> list[str]:
        """Return the requests of an append, from what it changed in the ledger."""
        (generation, old), (claimed, new) = self.before[model.LED], self.after[model.LED]
        entries = ["claim"] if claimed != generation else []
        for record in set(new) - set(old):
            winners = [model.tname(winner) for winner in record[5]]
            decided = record[4] is model.D
            entries.append(entry(record[4].value, record[2], winners if decided else []))
        judged = self.driver is not None and self._driver(self.before)[2] == "C5"
        return [*([MARKERS] if judged else []), written(*entries), *COMMIT_LEDGER]


#: For each kind of step, a pattern of its label and the requests that carry it out.
REQUESTS: Final[tuple[tuple[str, Callable[[Step], list[str]]], ...]] = (
    (r"fence ledger$", lambda _: [FENCE]),
    (r"read ledger", lambda _: [READ]),
    (r"EndTxn\(", Step.end),
    (r"InitProducerId\(\S+\) to abort it", lambda step: [step.label]),
    (r"a winner is no longer open", Step.check),
    (r"lists (losers|open transactions)", Step.list),
    (r"ledger: claims generation|DECISION|ledger: (done|void|mixed)", Step.append),
    (r"q\d+b\d+ is (done|void|mixed)", lambda _: [MARKERS]),
    (r"Spark writes its commit log|job returns|commit\(\) returns", lambda _: []),
)


def requests_of(steps: list[Step]) -> list[str]:
    """Return the requests that carry out steps of one driver, in order."""
    requests = []
    for step in steps:
        [translate] = [made for pattern, made in REQUESTS if re.search(pattern, step.label)]
        requests += translate(step)
    return normal(requests)


def normal(requests: list[str]) -> list[str]:
    """Return requests without repetitions, and with concurrent ends in one order."""
    result: list[str] = []
    for request in requests:
        at = len(result)
        while (
            at
            and request.startswith(("commit s", "abort s"))
            and (
                result[at - 1].partition(" s")[0] == request.partition(" s")[0]
                and result[at - 1] > request
            )
        ):
            at -= 1
        if not at or result[at - 1] != request:
            result.insert(at, request)
    return result


class ModelRun:
    """One path through the model, without disturbances but those that the caller asks for."""

    def __init__(self, protocol: Any, *, attempts: int = 0, aborts: int = 0) -> None:
        """Start with an empty ledger; the budgets allow second attempts and calls of abort()."""
        model.P = protocol
        model.C = model.Conf("one path", nb=1, qseq=(0, 0, 0), spec=attempts, cb=aborts)
        model.HALVES = 2 if protocol.tv == 1 else 1
        self._state: Any = start_state()

    @property
    def tasks(self) -> list[Any]:
        """The task attempts that have not finished: (driver, query, batch, partition, ...)."""
        return list(self._state[model.TASKS])

    def happen(self, what: str) -> None:
        """Take the one step whose label contains `what`."""
        [self._state] = [after for label, after, _ in succ(self._state) if what in label]

    def drive(self, driver: int, *, until: str | None = None) -> list[str]:
        """Run a driver until it waits or has ended, or up to a step; return its requests."""
        steps: list[Step] = []
        while until is None or not steps or until not in steps[-1].label:
            out: list[Any] = []
            drv_steps(self._state, driver, out)
            if not out:
                break
            label, after, _ = out[0]
            steps.append(Step(label, self._state, after, driver))
            self._state = after
        return requests_of(steps)

    def abort(self) -> list[str]:
        """Run the pending abort to its end; return its requests."""
        steps = []
        while self._state[model.CBP] is not None:
            out: list[Any] = []
            cb_steps(self._state, out)
            [(label, after, _)] = out
            steps.append(Step(label, self._state, after, None))
            self._state = after
        return requests_of(steps)

    def begin(self, task: Any) -> tuple[str, Any]:
        """Begin the transaction of a task; return its name, and the task."""
        label = self._task(task)
        [(name, epoch)] = re.findall(r"InitProducerId\((\S+)\) -> epoch (\d+)", label)
        [task] = [one for one in self.tasks if one[5] and model.iname(one[6]) == name]
        return f"{name}@{epoch}", task

    def write(self, task: Any) -> None:
        """Write all rows of a task that has begun."""
        while "first half" in self._task(task):
            [task] = [one for one in self.tasks if one[6:8] == task[6:8]]

    def _task(self, task: Any) -> str:
        out: list[Any] = []
        task_steps(self._state, self._state[model.TASKS].index(task), out)
        label, self._state, _ = out[0]
        return str(label)
