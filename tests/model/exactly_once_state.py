"""A step-by-step model of the exactly-once protocol, which uses the transition table of the code.

Every state is a tuple. `exactly_once_steps.succ` returns its successors, and `exactly_once_search`
explores them all. The model does not define what a driver may decide, the outcome of a batch or
what to do with it: it calls `spark_kafka_sink.exactly_once.transitions` for every state.

Kafka, per transactional id: (id, epoch, state, epoch at which it ended, content); states E(mpty),
O(ngoing), C(omplete commit), A(borted). InitProducerId aborts an open transaction and bumps the
epoch; EndTxn names id and epoch; TV2 bumps the epoch with every EndTxn, TV1 does not, so that an
aborted task can continue; a timeout may happen at any moment (within a budget).

The ledger is a linearizable append, rejected unless its writer did the latest InitProducerId. An
append may be acknowledged and lose its marker (within a budget): then no reader ever sees it.

Spark: one plan before the tasks; attempt 0 of every partition, attempt 1 at any time; the first
message per partition counts; the commit log is written after commit() has returned; abort() runs in
its own process, possibly while commit() is still running. A crashed process is one that is never
scheduled again, and a new driver may start at any moment.

DUP    rows of a batch are visible twice
LOST   Spark has committed a batch that is not visible exactly once
HALF   a decided batch is mixed without any timeout
TORN   only some of a task's rows are visible
FALSE  a batch is reported as mixed, although all of it is visible
STUCK  a new driver, running alone, cannot finish
UNEVEN an abandoned batch is partly visible and not reported
ILLEGAL the table rejected a step
"""

# ruff: noqa: C901, PLR0911, N803, N806, RUF005, E501, ERA001, C408
# Written for speed: names are short, and the contents of the tuples are described in one place.

from __future__ import annotations

from typing import Any

from spark_kafka_sink.exactly_once.transitions import (
    Fate,
    Write,
    WriteState,
    decided,
    end_of,
    ended,
    standing,
)

NP = 2  # the number of partitions, and thus of tasks in a batch


class Proto:
    """The protocol, with any deliberate mistakes in it."""

    fence = "first"  # the plan fences the ledger "first", or only "after" reading it
    commit = "verify"  # after fencing: "verify" by the table | "reread" ignores the claim | "blind"
    claim = True  # the plan appends a claim, after listing and before aborting
    ids = "slot"  # "noatt" (q, p) | "att" (q, p, attempt) | "run" and driver | "slot" | "slot_any"
    orphan = True  # the plan aborts the open transactions it listed
    loser = "before"  # losers are listed "before" the decision, or "after" the done entry
    how = "exact"  # abort by "exact" EndTxn(id, epoch), or by "init" InitProducerId(id)
    cb = "verify"  # abort(): "verify" | "verify_nomark" does not claim | "naive" aborts immediately
    ledkey = "query"  # one ledger record per "query" (write id), or per "prefix"
    keep_in = True  # the record of a void batch still holds the last committed batch
    scope = "all"  # the plan rolls forward "all" decisions of the prefix, or only its "own"
    read = "hw"  # the ledger is read to the high watermark, or to the "lso", maybe one entry short
    late_rf = False  # roll forward in commit() instead of before the tasks
    precheck = True  # check that the winners are still open, right before the decision
    retry = True  # after a rejected decision, fence and verify again, once
    claim_first = False  # list the open transactions after the claim instead of before it
    void_early = False  # void at the first rejection, without waiting for the other answers
    fence_winners = False  # before a rejection is judged, InitProducerId of all winners
    believe = "marker"  # a driver's own entry counts once its "marker" was read | once "answered"
    plan_in_commit = False  # the plan runs again in the process that commits
    tv = 2

    def __init__(self, name, **changes):
        self.name = name
        self.__dict__.update(changes)


class Conf:
    """A bounded scenario: the batches, the query of each driver, and a budget for each event."""

    def __init__(self, name, *, nb=1, qseq=(0, 0), job=False, spec=0, tmo=0, cb=0, lost=0):
        self.name, self.nb, self.qseq, self.job = name, nb, qseq, job
        #: Budgets of second attempts, timeouts, calls of abort(), and lost markers.
        self.spec, self.tmo, self.cb, self.lost = spec, tmo, cb, lost
        self.nq = max(qseq) + 1


# State: 0 coord 1 vis 2 owner 3 led 4 prev 5 spark 6 drv 7 tasks 8 slots 9 cb 10 budgets 11 tmo
#   coord  ((id, epoch, st, end, content (q,b,p,mask)), ...)       owner  the process with the latest InitProducerId on the ledger: driver index, CB or -1
#   led    (generation, ((key, q, b, gen, st, winners, in), ...))  st: a WriteState; in: the last committed batch before b
#   slots  ((generation, busy), ...)
# Driver: 0 q 1 b 2 pc 3 second 4 gen 5 view 6 msgs 7 atts 8 roll 9 res 10 todo 11 win 12 nolog 13 retries 14 marks
# Task:   (driver, q, b, p, attempt, pc, id, epoch, gen)           Aborter: (driver, q, b, gen, pc, msgs)
COORD, VIS, OWNER, LED, PREV, SPARK, DRV, TASKS, SLOTS, CBP, BUD, TMO = range(12)
D, K, V, M = WriteState.DECIDED, WriteState.DONE, WriteState.VOID, WriteState.MIXED
CB = 99
P: Any = None
C: Any = None
HALVES, SOLO = 1, False
DEAD: Any = (0, 0, "Z", 0, 0, None, None, None, (), (), (), (), 0, 0, ())
FIN = DEAD[:2] + ("F",) + DEAD[3:]


def fresh(q, b):
    return (q, b, "A") + DEAD[3:]


def at(d, pc, **kw):
    L = list(d)
    L[2] = pc
    for k, v in kw.items():
        L[FIELD[k]] = v
    return tuple(L)


FIELD = dict(
    second=3,
    gen=4,
    view=5,
    msgs=6,
    atts=7,
    roll=8,
    res=9,
    todo=10,
    win=11,
    nolog=12,
    retries=13,
    marks=14,
)


def put(S, i, d, *changes):
    L = list(S)
    L[DRV] = S[DRV][:i] + (d,) + S[DRV][i + 1 :]
    for k, v in changes:
        if k == LED:
            L[PREV] = S[LED]
        L[k] = v
    return tuple(L)


# --- Kafka
def cget(coord, tid):
    for e in coord:
        if e[0] == tid:
            return e
    return None


def cput(coord, ent):
    out = [e for e in coord if e[0] != ent[0]]
    out.append(ent)
    out.sort(key=lambda e: e[0])
    return tuple(out)


def init_pid(coord, tid):
    e = cget(coord, tid)
    ep = 1 if e is None else e[1] + (2 if e[2] == "O" else 1)
    return cput(coord, (tid, ep, "E", 0, None)), ep


def vi(q, b, p=0):
    return ((q * C.nb + b) * NP + p) * HALVES


def counts(vis, q, b):
    return vis[vi(q, b) : vi(q, b) + NP * HALVES]


def end_txn(coord, vis, tid, ep, commit):
    e = cget(coord, tid)
    if e is None:
        return coord, vis, "FENCED", None
    _, cep, st, end, content = e
    if st == "O":
        if cep != ep:
            return coord, vis, "FENCED", None
        bump = 1 if P.tv == 2 else 0
        if not commit:
            return cput(coord, (tid, cep + bump, "A", ep, None)), vis, "OK", None
        q, b, p, mask = content
        v, bad = list(vis), None
        for h in range(HALVES):
            if mask >> h & 1:
                v[vi(q, b, p) + h] += 1
                if v[vi(q, b, p) + h] > 1:
                    bad = "DUP"
        if mask != (1 << HALVES) - 1:
            bad = "TORN"
        return cput(coord, (tid, cep + bump, "C", ep, None)), tuple(v), "OK", bad
    if end == ep and st == "C":
        return coord, vis, "OK" if commit else "INVALID", None
    if end == ep and st == "A":
        return coord, vis, "FENCED" if commit else "OK", None
    return coord, vis, "INVALID" if st == "E" and cep == ep else "FENCED", None


def abort_one(coord, vis, tid, ep):
    if P.how == "init":
        return init_pid(coord, tid)[0], f"InitProducerId({iname(tid)}) to abort it"
    c2, _, res, _ = end_txn(coord, vis, tid, ep, False)
    return c2, f"EndTxn(abort {iname(tid)}@{ep}) -> {res}"


def listed(coord, but=()):
    return tuple((e[0], e[1]) for e in coord if e[2] == "O" and (e[0], e[1]) not in but)


# --- ledger
def key_of(q):
    return q if P.ledkey == "query" else 0


def put_rec(led, rec):
    return (led[0], tuple(sorted([r for r in led[1] if r[0] != rec[0]] + [rec])))


def find(led, q):
    for r in led[1]:
        if r[0] == key_of(q) and r[1] == q:
            return r
    return None


def write_of(r):
    return None if r is None else Write(r[2], r[3], r[4], r[6])


def record(q, write, winners=()):
    return (key_of(q), q, write.batch_id, write.generation, write.state, winners, write.in_before)


def stands(led, q, b):
    return standing(write_of(find(led, q)), b)


def to_decide(led, q, b, gen, win):
    before = write_of(find(led, q))
    write = decided(before, b, gen)
    return record(q, write if P.keep_in else write._replace(in_before=-1), win)


def ended_as(r, state):
    return record(r[1], ended(write_of(r), state))


def unfinished(led, q):
    return tuple(r for r in led[1] if r[4] is D and (P.scope == "all" or r[1] == q))


def early(res):
    return P.void_early and "OK" not in res and any(r in ("FENCED", "INVALID") for r in res)


def judge(S, q, b, winners, res):
    """Return the state that follows from the answers and, for rejected ones, the data's markers."""
    if early(res):
        return V, None
    fates = [
        Fate.COMMITTED
        if r == "OK" or any(counts(S[VIS], q, b)[w[0] * HALVES : w[0] * HALVES + HALVES])
        else Fate.ABORTED
        for w, r in zip(winners, res, strict=True)
    ]
    state = end_of(fates)
    if state is not M:
        return state, None
    if all(x == 1 for x in counts(S[VIS], q, b)):
        return M, "FALSE"
    return M, None if S[TMO] else "HALF"


# --- names
def iname(tid):
    return "/".join(map(str, tid))


def tname(w):
    return f"{iname(w[-2])}@{w[-1]}"


def names(todo):
    return " [" + ", ".join(map(tname, todo)) + "]" if todo else ": none"


def show(v):
    return (
        f" (gen {v[0]}; "
        + (", ".join(f"q{r[1]}b{r[2]} {r[4].value}" for r in v[1]) or "empty")
        + ")"
    )
