"""asyncio's debug mode in the tests."""

from __future__ import annotations

import asyncio


async def _made() -> tuple[asyncio.Future[None], asyncio.TimerHandle, asyncio.Task[None]]:
    loop = asyncio.get_running_loop()
    task = loop.create_task(asyncio.sleep(0))
    await task
    return loop.create_future(), loop.call_later(60, print), task


def test_what_is_made_notes_the_function_that_made_it_and_few_others():
    """The whole stack is not noted: that took a quarter of the time of the tests with loops."""
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    made = loop.run_until_complete(_made())
    made[1].cancel()
    loop.close()
    noted = [[frame.name for frame in it._source_traceback] for it in made]
    assert ["create_future", "_made", "_made"] == [names[-1] for names in noted]
    assert [4, 1, 3] == [len(names) for names in noted]
