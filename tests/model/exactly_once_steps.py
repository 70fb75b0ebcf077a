"""The steps of the model: what a driver, a task or a call of abort() may do next.

See `exactly_once_state` for the meaning of the tuples. `succ` returns every possible step: its
name, the state after it, and the violation if there is one.
"""

# ruff: noqa: C901, PLR0911, PLR0912, PLR0915, N802, N803, N806, RUF005, RUF059, RUF021, PLR1714
# The search visits half a million tuples, so this is written for speed: names are as short as in
# the description of the tuples, and one function has all steps of a driver.

from __future__ import annotations

from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.exactly_once.transitions import (
    Standing,
    Verdict,
    next_generation,
    verdict,
)
from tests.model import exactly_once_state as state
from tests.model.exactly_once_state import (
    BUD,
    CB,
    CBP,
    COORD,
    DEAD,
    DRV,
    FIN,
    LED,
    NP,
    OWNER,
    PREV,
    SLOTS,
    SPARK,
    TASKS,
    TMO,
    VIS,
    D,
    K,
    M,
    abort_one,
    at,
    cget,
    counts,
    cput,
    early,
    end_txn,
    ended_as,
    find,
    fresh,
    iname,
    init_pid,
    judge,
    listed,
    names,
    put,
    put_rec,
    show,
    stands,
    tname,
    to_decide,
    unfinished,
    write_of,
)


# --- driver
def LIST():
    return "CL" if state.P.claim and state.P.claim_first else "L"


def start_tasks(S, i, d):
    q, b, view = d[0], d[1], d[5]
    s = stands(view, q, b)
    if s in (Standing.MIXED, Standing.ROLLED_BACK):
        return f"refuses: {s.value}", put(S, i, DEAD)
    if s is Standing.IN and not (state.P.late_rf and find(view, q)[4] is D):
        return "batch is in, tasks skip", put(S, i, at(d, "X", view=None))
    ts = tuple(sorted(S[TASKS] + tuple((i, q, b, p, 0, 0, (), 0, d[4]) for p in range(NP))))
    nd = at(
        d, "R", view=None, msgs=(None,) * NP, atts=(1,) * NP, roll=d[8] if state.P.late_rf else ()
    )
    return "tasks start", put(S, i, nd, (TASKS, ts))


def recovered(S, i, d, label):
    if d[3]:
        return label, put(S, i, at(d, "C0", view=None)), None
    l2, S2 = start_tasks(S, i, d)
    return label + "; " + l2, S2, None


def drv_steps(S, i, out):
    coord, vis, owner, led, prev, spark, drv, tasks, slots, cb, bud, tmo = S
    d = drv[i]
    q, b, pc = d[:3]
    if pc in "ZFR":
        return
    N = f"D{i + 1} b{b} " if state.C.nq == 1 else f"D{i + 1} q{q}b{b} "
    views = (
        ((led, ""),)
        if state.P.read == "hw" or prev == led
        else ((led, ""), (prev, " but only to the LSO"))
    )
    if pc == "A":
        if state.P.fence == "first":
            out.append((N + "streamWriter: fence ledger", put(S, i, at(d, "B"), (OWNER, i)), None))
            return
        pc = "B"
    if pc == "B":
        for view, how in views:
            U = unfinished(view, q)
            nxt = (
                "B2" if state.P.fence == "after" else "RF" if U and not state.P.late_rf else LIST()
            )
            out.append(
                (
                    N + "streamWriter: read ledger" + how + show(view),
                    put(
                        S,
                        i,
                        at(
                            d,
                            nxt,
                            view=(view[0], tuple(r[:5] + ((), r[6]) for r in view[1])),
                            roll=U,
                        ),
                    ),
                    None,
                )
            )
    elif pc == "B2":
        out.append(
            (
                N + "streamWriter: fence ledger",
                put(S, i, at(d, "RF" if d[8] and not state.P.late_rf else LIST()), (OWNER, i)),
                None,
            )
        )
    elif pc == "RF":  # every winner: the first rejection does not end the loop
        r = d[8][0]
        w = r[5][len(d[9])]
        c2, v2, res, bad = end_txn(coord, vis, w[1], w[2], True)
        rs = d[9] + (res,)
        out.append(
            (
                N + f"roll forward q{r[1]}b{r[2]}: EndTxn(commit {tname(w)}) -> {res}",
                put(
                    S,
                    i,
                    at(d, "RFW" if len(rs) == len(r[5]) or early(rs) else "RF", res=rs),
                    (COORD, c2),
                    (VIS, v2),
                ),
                bad,
            )
        )
    elif pc == "RFW":
        r = d[8][0]
        st, bad = judge(S, r[1], r[2], r[5], d[9])
        rec = ended_as(r, st)
        nd = at(
            d,
            "RF" if d[8][1:] else LIST(),
            roll=d[8][1:],
            res=(),
            marks=d[14] + (rec,),
            view=put_rec(d[5], rec),
        )
        out.append((N + f"q{r[1]}b{r[2]} is {st.value}", put(S, i, nd), bad))
    elif pc == "L" and stands(d[5], q, b) is Standing.MIXED:
        marked = led[0], with_marks(led, d)[1]
        out.append(
            (
                N + "notes the mixed batch, raises"
                if owner == i
                else N + "mixed -> FENCED, raises",
                put(S, i, DEAD, (LED, marked if owner == i else led)),
                None,
            )
        )
    elif pc == "L":
        todo = listed(coord) if state.P.orphan else ()
        if state.P.late_rf:
            todo = tuple(t for t in todo if t not in {(w[1], w[2]) for r in d[8] for w in r[5]})
        if not state.P.claim and d[14]:
            if owner != i:
                out.append((N + "marks -> FENCED, fails", put(S, i, DEAD), None))
                return
            S = put(S, i, d, (LED, with_marks(led, d)))
        nd = at(
            d,
            "CL" if state.P.claim and not state.P.claim_first else "AB",
            todo=todo,
            marks=d[14] if state.P.claim else (),
        )
        if nd[2] == "CL" or todo:
            out.append((N + "lists open transactions" + names(todo), put(S, i, nd), None))
        else:
            out.append(recovered(S, i, nd, N + "lists open transactions: none"))
    elif pc == "CL":
        if owner != i:
            out.append((N + "claim -> FENCED, fails", put(S, i, DEAD), None))
            return
        gen = next_generation(led[0], 0)
        nd = at(d, "AB", gen=gen, marks=())
        if bud[3]:
            again = state.P.believe == "marker"
            lost = put(S, i, fresh(q, b) if again else nd, (BUD, bud[:3] + (bud[3] - 1,)))
            lab = N + f"claims generation {gen}, its MARKER IS LOST"
            out.append((lab, lost, None) if again or d[10] else recovered(lost, i, nd, lab))
        S2 = put(S, i, nd, (LED, (gen, with_marks(led, d)[1])))
        lab = N + f"ledger: claims generation {gen}"
        if state.P.claim_first:
            S2 = put(S2, i, at(nd, "L"))
        out.append((lab, S2, None) if d[10] or state.P.claim_first else recovered(S2, i, nd, lab))
    elif pc == "AB" or pc == "C7":
        c2, lab = abort_one(coord, vis, *d[10][0])
        nd = at(d, pc, todo=d[10][1:])
        S2 = put(S, i, nd, (COORD, c2))
        if nd[10]:
            out.append((N + lab, S2, None))
        elif pc == "C7":
            out.append((N + lab, put(S2, i, to_x(d)), None))
        else:
            out.append(recovered(S2, i, nd, N + lab))
    elif pc == "C":  # Spark calls commit()
        if state.P.plan_in_commit and not d[3]:
            drv_steps(put(S, i, at(d, "A", second=1)), i, out)
        elif state.P.late_rf and d[8]:
            drv_steps(put(S, i, at(d, "LRF", res=())), i, out)
        else:
            drv_steps(put(S, i, at(d, "C0")), i, out)
    elif pc == "LRF":
        r = d[8][0]
        w = r[5][len(d[9])]
        c2, v2, res, bad = end_txn(coord, vis, w[1], w[2], True)
        rs = d[9] + (res,)
        S2 = put(S, i, at(d, "LRF", res=rs), (COORD, c2), (VIS, v2))
        lab = N + f"commit rolls forward q{r[1]}b{r[2]}: EndTxn(commit {tname(w)}) -> {res}"
        if len(rs) == len(r[5]):
            st, bad2 = judge(S2, r[1], r[2], r[5], rs)
            nd = (
                DEAD
                if st is M
                else to_x(d)
                if st is K and r[1:3] == (q, b)
                else at(d, "C", roll=(), res=())
            )
            S2, bad, lab = (
                put(S2, i, nd, (LED, put_rec(led, ended_as(r, st)))),
                bad or bad2,
                lab + "; ledger: " + st.value,
            )
        out.append((lab, S2, bad))
    elif pc == "C0":
        out.append(
            (
                N + "commit: fence ledger",
                put(S, i, at(d, "C2" if state.P.commit == "blind" else "C1"), (OWNER, i)),
                None,
            )
        )
    elif pc == "C1":
        for view, how in views:
            says = verdict(
                view[0], d[4] if state.P.commit == "verify" else view[0], write_of(find(view, q)), b
            )
            if says is Verdict.DECIDE:
                out.append(
                    (
                        N + "commit: read ledger" + how + show(view) + ", verified",
                        put(S, i, at(d, "C2")),
                        None,
                    )
                )
            else:
                out.append(
                    (
                        N + "commit: read ledger" + how + show(view) + f": {says.value}, raises",
                        put(S, i, DEAD),
                        None,
                    )
                )
    elif pc == "C2" and state.P.loser == "before":
        if state.P.precheck and not all(
            e is not None and e[1:3] == (m[1], "O")
            for m, e in ((m, cget(coord, m[0])) for m in d[6])
        ):
            out.append((N + "commit: a winner is no longer open, raises", put(S, i, DEAD), None))
            return
        todo = listed(coord, d[6])
        out.append(
            (N + "commit: lists losers" + names(todo), put(S, i, at(d, "C3", todo=todo)), None)
        )
    elif pc in ("C2", "C3"):
        if owner != i:
            if state.P.retry and not d[13]:
                out.append(
                    (
                        N + "decision -> FENCED, tries again",
                        put(S, i, at(d, "C0", todo=(), retries=1)),
                        None,
                    )
                )
            else:
                out.append((N + "decision -> FENCED, raises", put(S, i, DEAD), None))
            return
        win = tuple((p,) + d[6][p] for p in range(NP))
        try:
            rec = to_decide(led, q, b, d[4], win)
        except IllegalStateError as error:
            out.append((N + f"DECISION: {error}", put(S, i, DEAD), "ILLEGAL"))
            return
        if bud[3]:
            again = at(d, "C0", todo=())
            on = at(d, "C4", res=(None,) * NP, win=win)
            lost = put(
                S,
                i,
                again if state.P.believe == "marker" else on,
                (BUD, bud[:3] + (bud[3] - 1,)),
            )
            out.append((N + "DECISION, its MARKER IS LOST", lost, None))
        out.append(
            (
                N + "DECISION " + ", ".join(map(tname, win)),
                put(S, i, at(d, "C4", res=(None,) * NP, win=win), (LED, put_rec(led, rec))),
                None,
            )
        )
    elif pc == "C4":  # the requests run in parallel, so their answers come in any order
        for k, w in enumerate(d[11]):
            if d[9][k] is None:
                c2, v2, res, bad = end_txn(coord, vis, w[1], w[2], True)
                rs = d[9][:k] + (res,) + d[9][k + 1 :]
                out.append(
                    (
                        N + f"EndTxn(commit {tname(w)}) -> {res}",
                        put(
                            S,
                            i,
                            at(d, "C4" if None in rs and not early(rs) else "C5", res=rs),
                            (COORD, c2),
                            (VIS, v2),
                        ),
                        bad,
                    )
                )
    elif pc == "C5":
        if state.P.fence_winners and set(d[9]) != {"OK"} and d[3] < NP:
            w = d[11][d[3]]
            out.append(
                (
                    N + f"InitProducerId({iname(w[1])}) before judging",
                    put(S, i, at(d, "C5", second=d[3] + 1), (COORD, init_pid(coord, w[1])[0])),
                    None,
                )
            )
            return
        if set(d[9]) != {"OK"} and owner != i:
            out.append(
                (
                    N + "reads the ledger again: another driver has judged or will, raises",
                    put(S, i, DEAD),
                    None,
                )
            )
            return
        r = find(led, q)
        if owner != i:
            out.append((N + "done -> FENCED, never mind", put(S, i, after_done(d)), None))
            return
        if r is None or r[4] is not D:
            out.append((N + "the ledger has no decision to end", put(S, i, DEAD), "ILLEGAL"))
            return
        st, bad = judge(S, q, b, d[11], d[9])
        nd = after_done(d) if st is K else DEAD
        out.append(
            (N + f"ledger: {st.value}", put(S, i, nd, (LED, put_rec(led, ended_as(r, st)))), bad)
        )
    elif pc == "C6":
        todo = listed(coord, d[6])
        out.append(
            (
                N + "lists losers" + names(todo),
                put(S, i, at(d, "C7", todo=todo) if todo else to_x(d)),
                None,
            )
        )
    elif pc == "X":
        if d[12]:
            out.append((N + "commit() returns, Spark had given up on it", put(S, i, DEAD), None))
            return
        if not state.C.job:
            if spark[q] != b:
                out.append((N + "commit log has this batch: dies", put(S, i, DEAD), None))
                return
            spark = spark[:q] + (b + 1,) + spark[q + 1 :]
        bad = None if all(x == 1 for x in counts(vis, q, b)) else "LOST"
        nd = FIN if state.C.job or b + 1 == state.C.nb else fresh(q, b + 1)
        out.append(
            (
                N + ("job returns" if state.C.job else "Spark writes its commit log"),
                put(S, i, nd, (SPARK, spark)),
                bad,
            )
        )
    else:
        raise AssertionError(pc)


def with_marks(led, d):
    for rec in d[14]:
        led = put_rec(led, rec)
    return led


def after_done(d):
    if state.P.loser == "after":
        return at(d, "C6", res=(), win=())
    return at(d, "C7", res=(), win=()) if d[10] else to_x(d)


def to_x(d):
    return at(d, "X", msgs=None, atts=None, res=(), win=(), todo=(), roll=(), marks=())


# --- tasks, and calls of abort()
def task_steps(S, k, out):
    coord, vis, owner, led, prev, spark, drv, tasks, slots, cb, bud, tmo = S
    t = tasks[k]
    i, q, b, p, att, pc, tid, ep, gen = t
    N = (
        f"task D{i + 1} b{b}.p{p}.a{att} "
        if state.C.nq == 1
        else f"task D{i + 1} q{q}b{b}.p{p}.a{att} "
    )
    rest = tasks[:k] + tasks[k + 1 :]
    if pc == 0:
        if state.P.ids == "att":
            cand = (((q, p, att), slots),)
        elif state.P.ids == "noatt":
            cand = (((q, p), slots),)
        elif state.P.ids == "run":
            cand = (((q, p, att, i), slots),)
        else:
            cand = [(("s", len(slots)), slots + ((gen, 1),))]
            if state.P.ids != "uniq":
                for n, (g, busy) in enumerate(slots):
                    if not busy and (state.P.ids == "slot_any" or g < gen):
                        cand.append((("s", n), slots[:n] + ((max(g, gen), 1),) + slots[n + 1 :]))
        for tid2, sl2 in cand:
            c2, ep2 = init_pid(coord, tid2)
            L = list(S)
            L[COORD], L[SLOTS] = c2, sl2
            L[TASKS] = tuple(sorted(rest + ((i, q, b, p, att, 1, tid2, ep2, gen),)))
            out.append((N + f"InitProducerId({iname(tid2)}) -> epoch {ep2}", tuple(L), None))
        return
    L = list(S)
    if tid[0] == "s":
        L[SLOTS] = slots[: tid[1]] + ((slots[tid[1]][0], 0),) + slots[tid[1] + 1 :]
    e = cget(coord, tid)
    if e is None or e[1] != ep or (state.P.tv == 2 and e[2] not in "EO"):
        L[TASKS] = rest
        out.append((N + "writes -> FENCED, fails", tuple(L), None))
        return
    old = e[4][3] if e[2] == "O" and e[4] else 0
    L[COORD] = cput(coord, (tid, ep, "O", 0, (q, b, p, old | (2 if pc == 2 else 1))))
    if state.HALVES == 2 and pc == 1:
        L[TASKS] = tuple(sorted(rest + ((i, q, b, p, att, 2, tid, ep, gen),)))
        L[SLOTS] = slots
        out.append((N + "writes its first half", tuple(L), None))
        return
    L[TASKS] = rest
    if takes(drv, t):
        d = drv[i]
        msgs = d[6][:p] + ((tid, ep),) + d[6][p + 1 :]
        nd = at(d, "R", msgs=msgs) if None in msgs else at(d, "C", msgs=msgs, atts=None)
        L[DRV] = drv[:i] + (nd,) + drv[i + 1 :]
        out.append((N + "writes, flushes, its message is taken", tuple(L), None))
    else:
        out.append((N + "writes, flushes, too late", tuple(L), None))


def takes(drv, t):
    if t[0] >= len(drv):
        return False
    d = drv[t[0]]
    return d[2] == "R" and d[:2] == t[1:3] and d[6][t[3]] is None


def cb_steps(S, out):
    led, owner = S[LED], S[OWNER]
    i, q, b, gen, pc, msgs = S[CBP]
    N = f"abort() of D{i + 1} b{b}: "
    L = list(S)
    if pc == 0 and state.P.cb != "naive":
        L[OWNER], L[CBP] = CB, (i, q, b, gen, 1, msgs)
        out.append((N + "fence ledger", tuple(L), None))
    elif pc == 1:
        if verdict(led[0], gen, write_of(find(led, q)), b) is not Verdict.DECIDE:
            L[CBP] = None
            out.append((N + "read ledger: decided or overtaken, leaves all alone", tuple(L), None))
        else:
            L[CBP] = (i, q, b, gen, 2 if state.P.cb == "verify" else 3, msgs)
            out.append((N + "read ledger: undecided", tuple(L), None))
    elif pc == 2:
        if owner != CB:
            L[CBP] = None
            out.append((N + "claim -> FENCED, leaves all alone", tuple(L), None))
        else:
            L[LED], L[PREV], L[CBP] = (
                (next_generation(led[0], 0), led[1]),
                led,
                (i, q, b, gen, 3, msgs),
            )
            out.append((N + f"ledger: claims generation {led[0] + 1}", tuple(L), None))
    else:
        L[COORD], lab = abort_one(S[COORD], S[VIS], *msgs[0])
        L[CBP] = (i, q, b, gen, 3, msgs[1:]) if msgs[1:] else None
        out.append((N + lab, tuple(L), None))


def succ(S):
    out = []
    drv, tasks, bud = S[DRV], S[TASKS], S[BUD]
    for i in range(len(drv)):
        drv_steps(S, i, out)
    if state.SOLO:  # nothing to interleave: only the choice of a worker process is left
        if not out and tasks:
            task_steps(S, 0, out)
            return out
        return out[:1]
    for k in range(len(tasks)):
        if not k or tasks[k] != tasks[k - 1]:
            task_steps(S, k, out)
    if S[CBP] is not None:
        cb_steps(S, out)
    if len(drv) < len(state.C.qseq):
        q = state.C.qseq[len(drv)]
        if state.C.job or S[SPARK][q] < state.C.nb:
            L = list(S)
            L[DRV] = drv + (fresh(q, 0 if state.C.job else S[SPARK][q]),)
            out.append((f"D{len(drv) + 1} starts", tuple(L), None))
    if bud[0]:
        for i, d in enumerate(drv):
            if d[2] == "R":
                for p in range(NP):
                    if d[6][p] is None and d[7][p] == 1:
                        ts = tuple(sorted(tasks + ((i, d[0], d[1], p, 1, 0, (), 0, d[4]),)))
                        out.append(
                            (
                                f"D{i + 1} launches b{d[1]}.p{p}.a1",
                                put(
                                    S,
                                    i,
                                    at(d, "R", atts=d[7][:p] + (2,) + d[7][p + 1 :]),
                                    (TASKS, ts),
                                    (BUD, (bud[0] - 1,) + bud[1:]),
                                ),
                                None,
                            )
                        )
    if bud[1]:
        for e in S[COORD]:
            if e[2] == "O":
                L = list(S)
                L[COORD], L[BUD], L[TMO] = (
                    cput(S[COORD], (e[0], e[1] + 2, "A", 0, None)),
                    (bud[0], bud[1] - 1) + bud[2:],
                    1,
                )
                out.append((f"broker times out {iname(e[0])}@{e[1]}", tuple(L), None))
    if bud[2] and S[CBP] is None and state.P.cb != "noop":
        for i, d in enumerate(drv):
            if (d[2] == "R" or d[2][0] == "C" and d[2] != "CL") and d[6] is not None and not d[12]:
                msgs = tuple(m for m in d[6] if m is not None)
                if msgs:
                    nd = DEAD if d[2] == "R" else at(d, d[2], nolog=1)
                    out.append(
                        (
                            f"D{i + 1} b{d[1]} "
                            + ("job fails" if d[2] == "R" else "commit() raises or is interrupted")
                            + ", Spark calls abort()",
                            put(
                                S,
                                i,
                                nd,
                                (CBP, (i, d[0], d[1], d[4], 0, msgs)),
                                (BUD, bud[:2] + (bud[2] - 1,) + bud[3:]),
                            ),
                            None,
                        )
                    )
    return out
