"""The lite topics of a topic, page by page, and one of them: what each group does with it."""

from __future__ import annotations

from starlette.responses import Response

from popconsole.paging import PAGE
from popconsole.visits import Visit


async def lite_topics(visit: Visit) -> Response:
    """Lite topics by name, those with a prefix, after a name."""
    name, prefix, after = visit.named("topic"), visit.asked("prefix"), visit.asked("after")
    await visit.pulse.now(visit.admin)
    topic = await visit.admin.get_topic(name)
    found = await visit.admin.list_lite_topics(name, prefix=prefix, after=after, max_topics=PAGE + 1)
    return visit.show(
        "lite_topics.html",
        now=visit.pulse.time,
        topic=topic,
        rows=found[:PAGE],
        next_after=found[PAGE - 1].name if len(found) > PAGE else "",
        prefix=prefix,
        after=after,
    )


async def lite_topic(visit: Visit) -> Response:
    """One lite topic."""
    name = visit.named("topic")
    await visit.pulse.now(visit.admin)
    found = await visit.admin.get_lite_topic(name, visit.named("lite_topic"))
    return visit.show("lite_topic.html", now=visit.pulse.time, topic=name, lite=found.lite_topic, groups=found.groups)
