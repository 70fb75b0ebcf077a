import threading

from spark_kafka_sink.network.metadata import MetadataTopics


def test_a_topic_is_new_only_on_its_first_use():
    """The first use of a topic returns that it is new, later ones do not."""
    topics = MetadataTopics(max_idle=60.0)
    assert [True, False] == [topics.add("t", now) for now in (0.0, 1.0)]
    assert topics.has_new
    topics.answered({"t"})
    assert not topics.has_new
    assert topics.add("t", 2.0) is False


def test_a_dropped_topic_cannot_be_requested_again():
    """A topic that has been dropped is not added again by a late `ask_again`."""
    topics = MetadataTopics(max_idle=60.0)
    topics.ask_again("t")
    assert () == topics.all() == topics.new()


def test_threads_may_add_topics_while_others_expire():
    """Writing threads add their topics while the network thread drops idle ones."""
    topics = MetadataTopics(max_idle=1.0)
    done = threading.Event()

    def add() -> None:
        for index in range(2_000):
            topics.add(f"t{index % 50}", now=0.0)
            topics.answered(topics.new())
        done.set()

    thread = threading.Thread(target=add, daemon=True)
    thread.start()
    while not done.is_set():
        topics.expire(now=2.0)
    thread.join()
    topics.expire(now=2.0)
    assert () == topics.all()
