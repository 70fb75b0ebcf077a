"""Exactly-once writes by many processes, with Kafka as the only store; knows no Spark.

Each task attempt writes in its own transaction and leaves it open. The driver ends all of them once
its decision is durable in a ledger topic.

    transitions         the state machine, which the tests explore exhaustively
    ledger              where decisions are recorded
    plan                what driver and tasks exchange
    two_phase_commit    the driver's steps: plan, commit, abort
    markers             how the driver verifies that transaction markers were written
    recovery            how it finishes decisions that another driver left behind
    operations          what an operator sees of a prefix, and can repair

docs/internals/exactly-once-protocol.md explains why this is correct.
"""
