"""Exhaustive breadth-first search of the model, over states reduced to what can matter.

From every reachable state, a new driver also runs alone to the end, for every query in turn. This
must always be possible, and must leave no batch partly visible.
"""

# ruff: noqa: N802, C901, PLR0912, PLR0915, N803, N806, RUF005, RUF021 - as in the steps

from __future__ import annotations

from typing import Any

from tests.model import exactly_once_state as model
from tests.model.exactly_once_state import (
    CB,
    COORD,
    DRV,
    LED,
    SLOTS,
    SPARK,
    TMO,
    VIS,
    D,
    M,
    counts,
    find,
    fresh,
)
from tests.model.exactly_once_steps import succ, takes


def canon(S):
    coord, vis, owner, led, prev, spark, drv, tasks, slots, cb, bud, tmo = S
    info = {e[0]: e for e in coord}
    slotmode = model.P.ids in ("slot", "slot_any")
    keepid = model.P.how == "init" or model.P.fence_winners
    ren, used = {}, {}

    def R(tid, ep):
        e = info.get(tid)
        lvl = 0 if e is None else 2 if ep == e[1] else 1 if ep and ep == e[3] else 0
        if not lvl and not keepid:
            return (("x",), 0)
        if lvl:
            used[tid] = 1
        if slotmode:
            n = ren.get(tid)
            if n is None:
                n = ren[tid] = ("s", len(ren)) if tid in info else ("x",)
                if tid not in info:
                    del ren[tid]
            return (n, lvl)
        return (tid, lvl)

    commit = set()

    def recs(rs):
        out = []
        for r in rs:
            g = 0
            if r[4] is D:
                w = []
                for p, tid, ep in r[5]:
                    commit.add(tid)
                    w.append((p,) + R(tid, ep))
                out.append((r[0], r[1], r[2], g, D, tuple(w), r[6]))
            else:
                out.append((r[0], r[1], r[2], g, r[4], (), r[6]))
        return tuple(out)

    led2 = recs(led[1])
    prev2 = recs(prev[1]) if model.P.read == "lso" else None
    drv2 = []
    for d in drv:
        if d[2] in "ZF":
            drv2.append(d)
            continue
        L = list(d)
        if d[5] is not None:
            L[5] = (0, recs(d[5][1]))
        if d[6] is not None:
            for m in d[6]:
                if m is not None:
                    commit.add(m[0])
            L[6] = tuple(m and R(*m) for m in d[6])
        if d[8]:
            L[8] = recs(d[8])
        if d[14]:
            L[14] = recs(d[14])
        if d[10]:
            L[10] = tuple(R(*m) for m in d[10])
        if d[11]:
            for w in d[11]:
                commit.add(w[1])
            L[11] = tuple((w[0],) + R(w[1], w[2]) for w in d[11])
        if d[2] in ("A", "B", "B2", "RF", "RFW", "CL") or (d[2] == "L" and not model.P.claim_first):
            L[4] = 0
        drv2.append(L)
    cb2 = None if cb is None else list(cb[:5]) + [tuple(R(*m) for m in cb[5])]
    ts, busy = [], set()
    for t in tasks:
        i, q, b, p, att, pc, tid, ep, gen = t
        tk = takes(drv, t)
        if pc:
            e = info.get(tid)
            if e is None or e[1] != ep or (model.P.tv == 2 and e[2] not in "EO"):
                continue  # its next write is refused, so it has no further effect
            busy.add(tid)
            if tk:
                commit.add(tid)
            n, lvl = R(tid, ep)
        else:
            n, lvl = (), 0
        if not tk:
            if slotmode:
                i, q, b, p, att = 9, 0, 0, 0, 0
            elif pc:
                i, b = 9, 0
            else:
                b = 0
                i = i if model.P.ids == "run" else 9
        ts.append([i, q, b, p, att, pc, n, lvl, gen if model.P.ids == "slot" else 0])
    c2 = []
    if slotmode:
        rest = [e for e in coord if e[0] not in ren and (e[2] == "O" or e[0] in busy)]
        rest.sort(key=lambda e: (slots[e[0][1]][0], e[2]))
        for e in rest:
            ren[e[0]] = ("s", len(ren))
    for e in coord:
        tid, cep, st, end, content = e
        if slotmode and tid not in ren:
            continue
        if st != "O" and tid not in used and not (keepid and tid in ren):
            continue
        c2.append(
            (
                ren[tid] if slotmode else tid,
                2,
                st,
                (2 if end == cep else 1) if end else 0,
                content if tid in commit else None,
            )
        )
    c2.sort(key=lambda e: e[0])
    sl2 = ()
    gmap = None
    if slotmode:
        sl2 = [None] * len(ren)
        for tid, n in ren.items():
            sl2[n[1]] = [slots[tid[1]][0] if model.P.ids == "slot" else 0, 1 if tid in busy else 0]
    if model.P.claim:
        gens = {led[0]}
        if model.P.read == "lso":
            gens.add(prev[0])
        if model.P.ids == "slot":
            gens.update(s[0] for s in sl2)
        if model.P.ids == "slot":
            gens.update(t[8] for t in ts)
        for L in drv2:
            if L[2] not in "ZF":
                gens.add(L[4])
        if cb2:
            gens.add(cb2[3])
        gens.add(0)
        gmap = {g: n for n, g in enumerate(sorted(gens))}
        for L in drv2:
            if L[2] not in "ZF":
                L[4] = gmap[L[4]]
        for t in ts:
            t[8] = gmap.get(t[8], 0)
        if slotmode:
            for s in sl2:
                s[0] = gmap.get(s[0], 0)
        if cb2:
            cb2[3] = gmap[cb2[3]]
    G = gmap[led[0]] if gmap else 0
    led3 = (G, led2)
    if owner == CB and cb is None or owner not in (CB, -1) and drv[owner][2] in "ZF":
        owner = -1
    return (
        tuple(c2),
        vis,
        owner,
        led3,
        led3 if prev2 is None else (gmap[prev[0]] if gmap else 0, prev2),
        spark,
        tuple(map(tuple, drv2)),
        tuple(sorted(map(tuple, ts))),
        tuple(map(tuple, sl2)),
        tuple(cb2) if cb2 else None,
        bud,
        tmo,
    )


def solo(S, q, memo):
    if not model.C.job and S[SPARK][q] == model.C.nb:
        return None, (), S
    cur = (
        S[COORD],
        S[VIS],
        -1,
        S[LED],
        S[LED],
        S[SPARK],
        (fresh(q, 0 if model.C.job else S[SPARK][q]),),
        (),
        tuple((g, 0) for g, _ in S[SLOTS]),
        None,
        (0, 0, 0, 0),
        S[TMO],
    )
    key = q, canon(cur)
    if key in memo:
        return memo[key]
    model.SOLO, worst = True, None
    stack, done = [(cur, ())], set()
    while stack and not worst:
        cur, labels = stack.pop()
        while True:
            o = succ(cur)
            if not o:
                if cur[DRV][0][2] != "F" and not any(r[4] is M for r in cur[LED][1]):
                    worst = "STUCK"
                break
            for lab, S2, _ in o[1:]:
                if S2 not in done:
                    done.add(S2)
                    stack.append((S2, labels + ("   recovery: " + lab,)))
            lab, cur, bad = o[0]
            labels += ("   recovery: " + (lab[3:] if lab[0] == "D" else lab),)
            if bad or len(labels) > 300:
                worst = bad or "STUCK"
                break
    model.SOLO = False
    memo[key] = worst, labels, cur
    return memo[key]


def recover(S, memo):
    order = list(dict.fromkeys(reversed(model.C.qseq)))
    labels, cur, ran = (), S, False
    for q in order:  # the user of an abandoned query may restart it
        bad, labs, cur = solo(cur, q, memo)
        labels += labs
        if bad:
            return bad, labels
        if (
            labs and not ran
        ):  # after the first recovery, every batch of the prefix is all or nothing, or reported
            ran = True
            for qq in range(model.C.nq):
                for b in range(model.C.nb):
                    if len(set(counts(cur[VIS], qq, b))) > 1:
                        r = find(cur[LED], qq)
                        if r is None or r[2] != b or r[4] is not M:
                            return "UNEVEN", labels
    return None, labels


def start_state():
    return (
        (),
        (0,) * (model.C.nq * model.C.nb * model.NP * model.HALVES),
        -1,
        (0, ()),
        (0, ()),
        (0,) * model.C.nq,
        (),
        (),
        (),
        None,
        (model.C.spec, model.C.tmo, model.C.cb, model.C.lost),
        0,
    )


class Result:
    """The result of an exploration: its counts, and each violation with the shortest path to it."""

    def __init__(self) -> None:
        self.states = 0
        self.mixed = 0
        self.finished = 0
        self.violations: dict[str, list[Any]] = {}


def explore(proto, conf, *, stop_at_first=False, max_states=None) -> Result:
    """Explore every state, or stop after about `max_states`."""
    model.P, model.C, model.HALVES = proto, conf, 2 if proto.tv == 1 else 1
    first = canon(start_state())
    seen, order, parents, memo = {first}, [first], [-1], {}
    result = Result()
    head = 0
    while head < len(order) and not (stop_at_first and result.violations):
        for _, after, found in succ(order[head]):
            state, wrong = canon(after), found
            if not wrong:
                if state in seen:
                    continue
                seen.add(state)
                wrong = recover(state, memo)[0]
            if wrong:
                if wrong not in result.violations:
                    result.violations[wrong] = path(order, parents, head, state)
                continue
            order.append(state)
            parents.append(head)
            result.mixed += any(r[4] is M for r in state[LED][1])
            result.finished += bool(state[DRV]) and state[DRV][-1][2] == "F"
        head += 1
        if max_states is not None and len(order) >= max_states:
            break
    result.states = len(order)
    return result


def path(order, parents, head, last):
    """Return the states from the first to `last`."""
    states = [last]
    while head >= 0:
        states.append(order[head])
        head = parents[head]
    return states[::-1]


def describe_path(states, wrong):
    """Describe a path with real epochs and names, ending with the steps of the recovery."""
    current, labels = start_state(), []
    for wanted in states[1:]:
        for label, after, _ in succ(current):
            if canon(after) == wanted:
                labels.append(label)
                current = after
                break
    again, more = recover(current, {})
    return labels + list(more if again == wrong else ())
