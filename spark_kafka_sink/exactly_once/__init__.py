"""Exactly-once writes by many processes, with Kafka as the only store; knows no Spark.

Every task attempt writes in a transaction of its own and leaves it open; the driver ends them all
after its decision is durable in a ledger topic. `transitions` is what may follow upon what (the
tests explore exactly that table), `ledger` where it is written down, `plan` what driver and tasks
tell each other, `two_phase_commit` the driver's four steps, `markers` how they see that an end has
come about, `recovery` what is done about decisions that somebody else left behind.
docs/exactly-once.md gives the argument.
"""
